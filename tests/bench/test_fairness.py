"""The trace replay and the greedy load from end to end, with tiny ones; nothing here looks at a time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from bench import greedy
from bench.fairness import GREEDY, POLITE, FairnessResult, arrivals, main, tenant_of
from engine.scheduling.config import POLICIES
from load.traces import TracePoint
from tests.engine.checkpoints import write_checkpoint


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """120 requests of 40 conversations, in batches of ten."""
    path = tmp_path / "trace.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        for number in range(120):
            conversation = 1 + number % 40
            entry = {
                "timestamp": number // 10 * 60_000,
                "input_length": 1500 + 10 * number,
                "output_length": 160,
                "hash_ids": [0, conversation, 1000 + number, 2000 + number, 3000 + number, 4000 + number],
            }
            lines.write(json.dumps(entry) + "\n")
    return path


def test_every_tenant_and_policy_is_reported(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--trace", str(trace), "--output", str(tmp_path)])
    result = msgspec.json.decode((tmp_path / "fairness.json").read_bytes(), type=FairnessResult)
    assert [total.policy for total in result.totals] == list(POLICIES)
    assert result.requests == 120
    for policy in POLICIES:
        assert sum(row.requests for row in result.rows if row.policy == policy) == 120
    text = (tmp_path / "fairness.md").read_text()
    assert text in capsys.readouterr().out
    assert (tmp_path / "fairness.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_trace_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_BENCH_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="ROUNDHOUSE_BENCH_DATA"):
        main([])


def test_a_conversation_stays_with_its_tenant_and_shares_its_prefix() -> None:
    first = TracePoint(0.0, 2000, 100, (0, 7, 8, 9))
    later = TracePoint(9.0, 2500, 100, (0, 7, 8, 9, 10))
    assert tenant_of(first) == tenant_of(later) in {GREEDY, *POLITE}
    one, other = arrivals([first, later], speed=1.0)
    assert other.prompt[: len(one.prompt)] == one.prompt


@pytest.mark.deep
def test_the_greedy_load_runs_against_a_real_engine_process(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model", max_position_embeddings=128)
    greedy.main(["--quick", "--model", str(model), "--threads", "1", "--output", str(tmp_path)])
    record = msgspec.json.decode((tmp_path / "greedy.json").read_bytes())
    assert [row["policy"] for row in record["rows"]] == list(POLICIES)
    assert (tmp_path / "greedy.md").read_text().count("\n| ") == 1 + len(POLICIES)
