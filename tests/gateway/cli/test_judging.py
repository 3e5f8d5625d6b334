"""`roundhouse route calibrate` with questions that nothing can grade: a judge compares the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.cli.judging import Verdict, comparisons
from gateway.config.settings import load
from gateway.pipeline.routing.calibration import calibration, installed
from router.assessment import grade as graded_answers
from router.questions import PoolAnswer, Question, digest, read_questions
from router.tier import TIERS
from tests.gateway.cli.test_calibrate import calibrate, configuration, quick, tiers
from tests.gateway.conftest import Serve

__all__ = ["quick", "tiers"]

pytestmark = pytest.mark.anyio


def judged_by(folder: Path, judge: str = "tiny-large") -> tuple[str, ...]:
    return "--judge", judge, "--verdicts", str(folder / "verdicts")


def write_questions(path: Path, graded: int, ungraded: int) -> list[Question]:
    """Write questions whose right answer has the word `good`, and others without a grader."""
    lines: list[dict[str, Any]] = [
        {
            "id": f"q{number}",
            "prompt": f"What is {number} plus {number}?",
            "grade": {"by": "contains", "words": ["good"]},
        }
        for number in range(graded)
    ]
    lines += [
        {"id": f"own{number}", "kind": "own", "prompt": f"Prove that lemma {number} holds.\nGiven: {number} cases."}
        for number in range(ungraded)
    ]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    return read_questions(path.read_bytes())


def write_answers(folder: Path, asked: list[Question], right: bool) -> None:
    """Write what the pools answered, and what the judge says of it.

    Every second question with a grader is answered by the small pool alone, the others by the large one. The judge
    prefers the better answer, or, if it is not `right`, the worse one; without a grader the large pool's is better.
    """
    answers = [
        PoolAnswer(each.id, each.digest, tier, f"tiny-{tier}", 4, text, "stop", 20, 4, 0.1, f"tiny-{tier}")
        for number, each in enumerate(asked)
        for tier in TIERS
        for text in ["good" if tier == ("large" if each.grade is None or number % 2 else "small") else "poor"]
    ]
    (folder / "outcomes").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in answers))
    compared = comparisons(asked, graded_answers(asked, TIERS, by_key := {each.key: each for each in answers}), by_key)
    verdicts = [
        Verdict(each.question, digest(prompt), "tiny-large", "tiny-large", said if right else -said)
        for each in compared
        for prompt in each.prompts
        for said in [1 if "good" in prompt.partition("## Answer B")[0].partition("## Answer A")[2] else -1]
    ]
    (folder / "verdicts").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in verdicts))


async def test_a_judge_is_asked_in_both_orders_and_an_interruption_loses_nothing(
    serve: Serve, tiers: Any, tmp_path: Path
) -> None:
    """Questions of which the graded one tells nothing: nobody is right."""
    asked = write_questions(tmp_path / "questions", 1, 2)
    answers = [
        PoolAnswer(each.id, each.digest, tier, f"tiny-{tier}", 4, f"It is {tier}.", "stop", 20, 4, 0.1, f"tiny-{tier}")
        for each in asked
        for tier in TIERS
    ]
    (tmp_path / "outcomes").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in answers))
    async with serve(engines=tiers) as served:
        unasked = await calibrate(tmp_path, served.url, *judged_by(tmp_path), answer="n\n")
        assert unasked.exit_code == 1 and not (tmp_path / "verdicts").exists()
        first = await calibrate(tmp_path, served.url, *judged_by(tmp_path), "--json")
        assert first.exit_code == 0, first.output
        kept = (tmp_path / "verdicts").read_bytes().splitlines(keepends=True)
        # As if it was killed while it wrote the sixth verdict.
        (tmp_path / "verdicts").write_bytes(b"".join(kept[:5]) + kept[5][:30])
        again = await calibrate(tmp_path, served.url, *judged_by(tmp_path), answer="y\n")
        assert again.exit_code == 0, again.output
        (tmp_path / "verdicts").write_bytes(b'{"asked": 7}\n')
        broken = await calibrate(tmp_path, served.url, *judged_by(tmp_path))
    verdicts = [msgspec.json.decode(line, type=Verdict) for line in kept]
    assert len({each.asked for each in verdicts}) == 12 and {each.judge for each in verdicts} == {"tiny-large"}
    assert {each.question for each in verdicts} == {"own0", "own1"} and {each.said for each in verdicts} <= {1, 0, -1}
    assert "judge tiny-large: 12 comparisons are left to ask" in unasked.output
    assert "judge tiny-large: 7 comparisons are left to ask" in again.output
    assert "tiny-large: 12 of 12 comparisons" in again.stderr
    found = json.loads(first.stdout)
    assert found["questions"] == 1 and found["judge"]["judged"] == 2
    assert "the 2 questions without graders are left out" in again.stdout
    assert broken.exit_code == 1 and "verdicts: line 1: " in broken.output


@pytest.mark.parametrize("right", [True, False])
async def test_questions_without_graders_teach_if_the_judge_is_better_than_a_rule(
    serve: Serve, tiers: Any, tmp_path: Path, right: bool
) -> None:
    """They show a difference that those with graders do not."""
    write_answers(tmp_path, write_questions(tmp_path / "questions", 60, 60), right)
    async with serve(engines=tiers) as served:
        result = await calibrate(tmp_path, served.url, *judged_by(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    judge = found["judge"]
    assert judge["trust"]["pairs"] == 60 and judge["trust"]["agreement"]["value"] == right
    model = calibration(load(configuration(tmp_path), environ={})).model
    if not right:
        assert found["questions"] == 60 and found["kinds"] == {"questions": 60} and model is None
        return
    assert found["questions"] == 120 and found["kinds"]["own"] == 60
    assert found["pools"][2]["kinds"]["own"] == 1.0 and found["pools"][0]["kinds"]["own"] == 0.0
    assert model is not None and len(model.metadata.digests) == 120
    assert installed(load(configuration(tmp_path), environ={})).exists()
    assert "60 questions without graders count" in (tmp_path / "report").read_text()


@pytest.mark.parametrize(
    ("graded", "words", "said"),
    [
        (1, (), "2 questions have no `grade`: name the pool whose model compares the answers with --judge"),
        (1, ("--judge", "huge"), "the configuration has no pool huge; name one of tiny-small, tiny-medium, tiny-large"),
        (0, ("--judge", "tiny-large"), "a judge is measured by questions that have one"),
    ],
)
async def test_what_a_judge_cannot_do_is_said_before_anything_is_asked(
    tmp_path: Path, graded: int, words: tuple[str, ...], said: str
) -> None:
    write_questions(tmp_path / "questions", graded, 2)
    result = await calibrate(tmp_path, "http://127.0.0.1:1", *words)
    assert result.exit_code == 2 and said in " ".join(result.output.split()), result.output


async def test_a_judge_without_a_word_of_its_own_is_measured_by_questions_with_graders(
    serve: Serve, tiers: Any, tmp_path: Path
) -> None:
    write_answers(tmp_path, write_questions(tmp_path / "questions", 60, 0), right=True)
    async with serve(engines=tiers) as served:
        result = await calibrate(tmp_path, served.url, *judged_by(tmp_path))
    assert result.exit_code == 0, result.output
    assert "tiny-large is better than always naming" in " ".join(result.output.split())
    assert "without graders" not in result.output
