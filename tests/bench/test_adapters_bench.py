"""The adapters' benchmark from end to end, with few steps; nothing here looks at a time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.adapters import Curve, main


def test_quick_run_draws_a_curve_over_the_number_of_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main(["--quick", "--model", "mini", "--output", str(tmp_path)])
    stem = tmp_path / "adapters-mini-bfloat16"
    curve = msgspec.convert(msgspec.json.decode(stem.with_suffix(".json").read_bytes())["curve"], Curve)
    assert [point.adapters for point in curve.points] == [0, 1, 2, 4]
    base, one, *_, four = curve.points
    assert four.step_bytes - base.step_bytes == 4 * (one.step_bytes - base.step_bytes) == 4 * curve.adapter_bytes
    text = stem.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    assert text.count("\n| ") == 1 + len(curve.points)
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
