"""The benchmark of grammars from end to end with this repository's model; nothing here looks at a time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.grammar import GRAMMARS, GrammarRecord, main


@pytest.mark.parametrize("tokenizer", [None, "deploy/demo/model"])
def test_quick_run_measures_every_grammar_and_every_way(
    tokenizer: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ["--tokenizer", tokenizer, "--vocabulary", "5000", "--eos", "2"] if tokenizer else []
    main(["--quick", "--output", str(tmp_path), *other])
    record = msgspec.json.decode((tmp_path / "grammar.json").read_bytes(), type=GrammarRecord)
    assert [row.name for row in record.grammars] == list(GRAMMARS)
    assert all(row.tokens > 0 for row in record.grammars)
    assert record.vocabulary == (5000 if tokenizer else 4096)
    assert [(row.concurrency, row.way) for row in record.steps] == [
        (concurrency, way) for concurrency in (1, 2) for way in ("none", "half", "all")
    ]
    text = (tmp_path / "grammar.md").read_text()
    assert text in capsys.readouterr().out
    assert text.count("\n| ") == 2 + len(record.grammars) + len(record.steps)
