"""The benchmark of what fewer bits cost: its parts, and a run of it on one demo model and a small random one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from bench.quantization import VARIANTS, Distance, Exam, QuantizedVariant, distance, main, markdown, read
from bench.report import Environment
from deploy.demo.conversations import build_exam
from deploy.demo.corpus import HERE, load_intents, split_corpus
from deploy.demo.evaluate import says_exactly
from deploy.demo.model import load_checkpoint
from deploy.demo.tokenizer import Encoder

HERE_AND_NOW = Environment("2026-01-01", "a CPU", 1, "2", "5", "abc")


def test_the_same_log_probabilities_are_at_no_distance() -> None:
    expected = torch.randn(4, 9).log_softmax(-1)
    assert distance(expected, expected) == (0.0, 0.0)


def test_distances_are_those_of_the_definitions() -> None:
    expected, found = torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log(), torch.tensor([[0.25, 0.75], [0.2, 0.8]]).log()
    relative, divergence = distance(found, expected)
    assert divergence == pytest.approx((0.5 * math.log(2) + 0.5 * math.log(2 / 3)) / 2)
    spread = math.log(4) / math.sqrt(2)  # of the second row; the first has none
    assert relative == pytest.approx(math.hypot(math.log(2), math.log(1.5)) / spread)


def test_the_table_has_a_row_for_everything() -> None:
    exams = [Exam("small", QuantizedVariant("int8", "fp8"), 1000, 700, 300, 150, 0.25)]
    text = markdown(exams, [Distance("S", QuantizedVariant(None, "int8"), 0.0123, 0.00045)], HERE_AND_NOW)
    assert "| small | int8 | fp8 | 50.0% | 70.0% | 0.2500 |" in text
    assert "| S | bf16 | int8 | 1.23% | 0.00045 |" in text
    assert "1,000 questions, of which 300" in text


def test_answers_are_graded_as_the_demo_grades_them() -> None:
    """By the model that trained the checkpoint, which is not the engine's."""
    folder = HERE / "models" / "small"
    encoder = Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))
    questions = build_exam(split_corpus(load_intents()))[::120]
    graded = list(read(QuantizedVariant().load(folder), encoder, questions))
    assert len(graded) == len(questions) == len({id(question) for question, _, _ in graded})
    right = {id(question): right for question, right, _ in graded}
    expected = says_exactly(load_checkpoint(folder).float(), encoder, questions)
    # The engine computes in bf16, so that one may turn out otherwise.
    assert sum(right[id(question)] != one for question, one in zip(questions, expected, strict=True)) <= 1
    assert 0 < sum(expected) < len(expected)
    assert all(loss < 0.3 for _, right, loss in graded if right)


def test_a_run_in_miniature(tmp_path: Path) -> None:
    main(
        [
            *("--sizes", "small", "--questions", "40", "--random", "mini", "--threads", "1"),
            *("--cache", str(tmp_path / "cache"), "--out", str(tmp_path)),
        ]
    )
    results = json.loads((tmp_path / "quantization.json").read_bytes())
    exams, distances = results["exams"], results["distances"]
    variants = [QuantizedVariant(**exam["variant"]) for exam in exams]
    relative = {QuantizedVariant(**one["variant"]): one["relative"] for one in distances}
    assert list(relative) == variants == list(VARIANTS)
    assert (
        0 < relative[QuantizedVariant()] < relative[QuantizedVariant("int8")] < relative[QuantizedVariant("int4")] < 1
    )
    assert relative[QuantizedVariant()] < relative[QuantizedVariant(None, "fp8")]
    assert (tmp_path / "quantization.md").read_text().count("| small |") == len(variants)
