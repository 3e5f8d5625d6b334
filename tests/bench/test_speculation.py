"""The speculation benchmark from end to end with the demo's models; nothing here looks at a time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.speculation import SpeculationRow, main


def test_quick_run_measures_every_way_and_all_give_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--quick", "--output", str(tmp_path)])
    rows = msgspec.convert(
        msgspec.json.decode((tmp_path / "speculation.json").read_bytes())["rows"], list[SpeculationRow]
    )
    assert {row.way for row in rows} == {"off", "ngram", "draft", "auto", "draft, always"}
    assert {row.concurrency for row in rows} == {1, 2}
    assert all(row.same == 1 for row in rows)
    drafting = [row for row in rows if row.way == "draft, always" and row.workload != "questions, sampled"]
    assert all(row.acceptance and row.acceptance > 0.3 for row in drafting)
    text = (tmp_path / "speculation.md").read_text()
    assert text in capsys.readouterr().out
    assert text.count("\n| ") == 1 + len(rows)
