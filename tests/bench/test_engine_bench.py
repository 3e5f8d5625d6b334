"""The engine's benchmark from end to end, with a miniature model; nothing here looks at a time."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from bench.checkpoints import SHAPES, Shape, checkpoint
from bench.engine import main
from bench.report import Table
from bench.subjects import SUBJECTS


def test_quick_run_measures_every_subject_and_all_give_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other tests share the cores: threads that wait for one another would cost minutes.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main(["--quick", "--dtype", "float32", "--cache", str(tmp_path / "cache"), "--output", str(tmp_path)])
    record = msgspec.json.decode((tmp_path / "engine-mini-float32.json").read_bytes())
    table = msgspec.convert(record["table"], Table)
    assert [(row.concurrency, row.subject) for row in table.rows] == [(n, name) for n in (1, 3) for name in SUBJECTS]
    assert table.same_tokens == [1.0, 1.0]
    text = (tmp_path / "engine-mini-float32.md").read_text()
    assert text in capsys.readouterr().out
    assert text.count("\n| ") == 1 + len(table.rows)


def test_a_subject_that_fails_ends_the_run_with_its_own_words(tmp_path: Path) -> None:
    """A prompt beyond the model's context is refused by the engine."""
    arguments = ["--model", "mini", "--subject", "Roundhouse", "--prompt-tokens", "4000", "--probe-bytes", "1024"]
    with pytest.raises(SystemExit, match=r"Roundhouse failed:(.|\n)*prompt"):
        main([*arguments, "--cache", str(tmp_path), "--output", str(tmp_path)])


def test_a_checkpoint_is_written_once(tmp_path: Path) -> None:
    directory = checkpoint("mini", tmp_path)
    written = os.stat(directory / "model.safetensors").st_mtime_ns
    assert checkpoint("mini", tmp_path) == directory
    assert os.stat(directory / "model.safetensors").st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [directory.name]


@pytest.mark.parametrize(("name", "millions"), [("S", 15), ("L", 1100)])
def test_shapes_have_the_sizes_they_are_named_for(name: str, millions: int) -> None:
    shape: Shape = SHAPES[name]
    parameters = shape.read_parameters + shape.hidden_size * shape.vocab_size
    assert parameters / 1e6 == pytest.approx(millions, rel=0.03)
