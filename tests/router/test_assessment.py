"""All figures of an evaluation, from answers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from router.assessment import assess, grade
from router.knob import draw, turn
from router.questions import PoolAnswer, Question, read_questions
from router.tier import Outlook, ValueSource, price_table

POOLS = ("small", "medium", "large")
COSTS = (0.1, 0.4, 1.0)


def questions(count: int = 20) -> list[Question]:
    lines = [
        {
            "id": f"q{number}",
            "kind": "even" if number % 2 == 0 else "odd",
            "prompt": f"{number}?",
            "grade": {"by": "number", "expected": number},
        }
        for number in range(count)
    ]
    return read_questions(b"\n".join(map(msgspec.json.encode, lines)))


def answers(asked: list[Question]) -> dict[tuple[str, str, str], PoolAnswer]:
    """Small is right on even numbers, medium nowhere, large everywhere."""
    made = []
    for number, each in enumerate(asked):
        texts = (str(number if number % 2 == 0 else -1), "-1", str(number))
        for pool, text in zip(POOLS, texts, strict=True):
            finish = "length" if pool == "medium" else "stop"
            made.append(PoolAnswer(each.id, each.digest, pool, f"{pool}-model", 50, text, finish, 60, 40, 2.0))
    return {each.key: each for each in made}


def test_answers_are_graded_by_question_and_pool() -> None:
    asked = questions()
    found = grade(asked, POOLS, answers(asked))
    assert found.models == ("small-model", "medium-model", "large-model")
    assert found.right.mean(axis=0) == pytest.approx((0.5, 0, 1))
    assert (found.tokens == 100).all() and found.cut.mean(axis=0) == pytest.approx((0, 1, 0))


def test_figures_of_pools_oracle_and_auto() -> None:
    asked = questions()
    graded = grade(asked, POOLS, answers(asked))
    outlooks = [Outlook(ValueSource.COMPLEXITY, 0.3) for _ in asked]
    table = price_table(np.sort(np.random.default_rng(0).random((100, 3)), axis=1), COSTS)
    spent = graded.tokens * np.array(COSTS)
    routed = turn(outlooks, [table] * len(asked), COSTS, graded.right, spent)
    found = assess(asked, graded, COSTS, spent, ("in use", 0.25, routed), None, draw(len(asked)))
    small, medium, large = found.pools
    assert [each.spent for each in found.pools] == pytest.approx(COSTS)
    assert small.kinds == {"even": 1.0, "odd": 0.0} and found.kinds == {"even": 10, "odd": 10}
    # Medium answers nothing right, where a third of the way from small to large answers two thirds.
    assert medium.above == pytest.approx(-(0.5 + 0.5 / 3)) and small.above > 0 and large.above > 0
    assert (found.oracle.right, found.oracle.spent) == pytest.approx((1.0, 0.55))
    assert found.fitted is None and found.comparison is None
    assert (found.in_use.positions[0].right.value, found.in_use.positions[-1].right.value) == pytest.approx((0.5, 1))
    assert msgspec.json.decode(msgspec.json.encode(found))["questions"] == 20
