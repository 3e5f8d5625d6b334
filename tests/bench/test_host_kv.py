"""The benchmark of KV in host memory from end to end with a random model; nothing here looks at a time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.host_kv import main
from bench.host_kv_report import HostKvComparison, Known, break_even


def test_quick_run_finds_in_host_memory_what_the_kv_cache_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main(["--quick", "--output", str(tmp_path)])
    record = msgspec.json.decode((tmp_path / "host-kv.json").read_bytes())
    comparison = msgspec.convert(record["comparison"], HostKvComparison)
    assert [known.blocks for known in comparison.known] == [1, 4]
    alone, host, full = comparison.lines
    assert (alone.host_share, full.host_share) == (0, 0)
    assert host.host_share > 0.2
    assert alone.hit_share < host.hit_share <= full.hit_share
    assert alone.again_tokens > host.again_tokens >= full.again_tokens
    assert host.loaded_bytes > 0
    assert host.loaded_bytes % comparison.copies.block_bytes == host.saved_bytes % comparison.copies.block_bytes == 0
    assert [line.same for line in comparison.lines] == [1, 1, 1]
    assert all(len(line.ttfts) == comparison.turns for line in comparison.lines)
    text = (tmp_path / "host-kv.md").read_text()
    assert text in capsys.readouterr().out
    assert (tmp_path / "host-kv.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [([0.5, 0.5, 0.5], 1), ([2.0, 0.5, 0.5], 2), ([0.5, 2.0, 0.5], 4), ([2.0, 2.0, 2.0], None)],
)
def test_a_load_pays_from_where_it_is_never_slower_again(loaded: list[float], expected: int | None) -> None:
    known = [Known(blocks, 1.0, seconds, 0.1) for blocks, seconds in zip((1, 2, 4), loaded, strict=True)]
    assert break_even(known) == expected
