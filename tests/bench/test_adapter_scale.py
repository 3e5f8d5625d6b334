"""The benchmark of many adapters from end to end, with few of them; nothing here looks at a time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.adapter_scale import Report, main


def test_quick_run_serves_all_traffic_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main(["--quick", "--model", "mini", "--threads", "1", "--output", str(tmp_path)])
    stem = tmp_path / "adapter-scale-mini-bfloat16"
    report = msgspec.convert(msgspec.json.decode(stem.with_suffix(".json").read_bytes())["report"], Report)
    assert [(run.traffic, run.errors) for run in report.runs] == [("none", 0), ("one", 0), ("many", 0)]
    none, one, many = report.runs
    assert (none.distinct, none.loads, one.distinct) == (0, 0, 1)
    assert many.distinct > report.active
    assert many.loads >= many.distinct - 1
    # The system may take some pages back, so that a peak can be a little below the start.
    assert min(run.peak_memory for run in report.runs) > 0.9 * report.start_memory > 0
    text = stem.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    assert text.count("\n| ") == 1 + len(report.runs)
