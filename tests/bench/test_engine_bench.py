"""The engine's benchmark from end to end, with a miniature model; nothing here looks at a time."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from bench.cells import QUICK_CELLS
from bench.checkpoints import SHAPES, LlamaSizes, adapters, cache_folder, checkpoint
from bench.engine import main
from bench.engine_record import EngineResults
from bench.process import interpreter
from bench.subjects.interface import Precision
from bench.subjects.registry import SUBJECTS

HERE = [name for name, kind in SUBJECTS.items() if kind.environment is None]
"""Subjects of the project's own environment."""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests share the cores: threads that wait for one another would cost minutes."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(tmp_path: Path, *arguments: str, cache: Path | None = None) -> EngineResults:
    folders = ["--cache", str(cache or tmp_path / "cache"), "--output", str(tmp_path)]
    if "--precision" not in arguments:
        arguments = ("--precision", "bf16", *arguments)
    if "--threads" not in arguments:
        arguments = ("--threads", "1", *arguments)
    main(["--quick", *folders, *arguments])
    return msgspec.json.decode((tmp_path / "cpu.json").read_bytes(), type=EngineResults)


@pytest.mark.deep
def test_quick_run_measures_every_cell_and_all_give_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [argument for name in HERE for argument in ("--subject", name)]
    results = run(tmp_path, "--precision", "fp32", *chosen)
    expected = {(name, cell) for name in HERE for cell in QUICK_CELLS if cell in SUBJECTS[name].cells}
    assert {(row.subject, row.cell) for row in results.rows} == expected
    assert {each.entry.subject for each in results.agreement} == {*HERE} - {"transformers generate"}
    assert all(each.answers == each.first_tokens == 1 for each in results.agreement)
    text = (tmp_path / "cpu.md").read_text()
    assert text in capsys.readouterr().out
    assert sum(line.startswith("| fp32 |") for line in text.splitlines()) == len(HERE)
    assert (tmp_path / "cpu.png").read_bytes().startswith(b"\x89PNG")


def test_peers_that_are_not_set_up_are_named_and_left_out(tmp_path: Path) -> None:
    results = run(tmp_path, "--subject", "Roundhouse", "--subject", "OpenVINO", "--cell", "1")
    assert {row.subject for row in results.rows} == {"Roundhouse"}
    assert results.missing == ["OpenVINO"]
    assert "Not set up: OpenVINO." in (tmp_path / "cpu.md").read_text()


@pytest.mark.deep
def test_parts_can_be_measured_one_after_the_other(tmp_path: Path) -> None:
    first = run(tmp_path, "--subject", "Roundhouse", "--cell", "1", "--cell", "8")
    both = run(tmp_path, "--subject", "Roundhouse", "--cell", "8", "--cell", "32", "--merge")
    assert {row.cell for row in both.rows} == {"1", "8", "32"}
    assert [row for row in both.rows if row.cell == "1"] == [row for row in first.rows if row.cell == "1"]
    assert [row for row in both.rows if row.cell == "8"] != [row for row in first.rows if row.cell == "8"]
    assert len(both.load_seconds) == 1


@pytest.mark.deep
def test_a_subject_that_fails_is_reported_in_its_own_words_and_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is named as a LoRA adapter here is none, which our engine and peft must refuse."""
    base = checkpoint("mini", tmp_path / "cache")
    [first, _] = adapters(base, 2, rank=8)
    (first / "adapter_config.json").write_text("{}")
    with pytest.raises(SystemExit):
        run(
            tmp_path,
            "--subject",
            "Roundhouse",
            "--subject",
            "transformers generate",
            "--cell",
            "32",
            "--cell",
            "adapters",
        )
    results = msgspec.json.decode((tmp_path / "cpu.json").read_bytes(), type=EngineResults)
    assert [(failure.entry.subject, failure.cell) for failure in results.failures] == [("Roundhouse", "loading")]
    assert "AdapterError" in results.failures[0].words
    assert {row.subject for row in results.rows} == {"transformers generate"}


def test_a_subject_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path, "--subject", "Roundhouse", "--cell", "1", "--limit", "0.01")
    results = msgspec.json.decode((tmp_path / "cpu.json").read_bytes(), type=EngineResults)
    [failure] = results.failures
    assert "ended after 0.01 seconds" in failure.words


@pytest.mark.parametrize(
    ("subject", "precision"),
    [(name, kind.precisions[0]) for name, kind in SUBJECTS.items() if kind.environment is not None],
)
def test_a_peer_that_is_set_up_gives_the_tokens_that_transformers_gives(
    tmp_path: Path, subject: str, precision: Precision
) -> None:
    """In the highest precision that it has; rounding may decide between near ties."""
    if subject == "vLLM":
        pytest.skip("vLLM compiles for minutes: python -m bench.engine --quick --subject vLLM")
    if interpreter(subject, cache_folder()) is None:
        pytest.skip(f"{subject} is not set up: python -m bench.peers")
    chosen = ["--subject", "transformers generate", "--subject", subject, "--cell", "8", "--cell", "prefix"]
    # OpenVINO divides by zero when it is told to use one thread.
    results = run(tmp_path, "--precision", precision, "--threads", "2", *chosen, cache=cache_folder())
    [agreement] = results.agreement
    assert agreement.entry.subject == subject
    assert agreement.first_tokens >= 0.8


def test_a_checkpoint_is_written_once(tmp_path: Path) -> None:
    directory = checkpoint("mini", tmp_path)
    written = os.stat(directory / "model.safetensors").st_mtime_ns
    assert checkpoint("mini", tmp_path) == directory
    assert os.stat(directory / "model.safetensors").st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [directory.name]


@pytest.mark.parametrize(("name", "millions"), [("S", 15), ("L", 1100)])
def test_shapes_have_the_sizes_they_are_named_for(name: str, millions: int) -> None:
    shape: LlamaSizes = SHAPES[name]
    parameters = shape.read_parameters + shape.hidden_size * shape.vocab_size
    assert parameters / 1e6 == pytest.approx(millions, rel=0.03)
