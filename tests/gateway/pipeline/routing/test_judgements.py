"""What is learnt from the opinions of a judge, beside those of people."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.pipeline.routing.decisions import Compared, Feedback, LoggedDecision
from gateway.pipeline.routing.judgements import JudgeOpinion, judged_preferences, trusts
from router.judging import FEWEST
from router.success import Basis, Prediction
from router.tier import Outlook, Terms, ValueSource, choose

CHOICE = choose(
    Outlook(ValueSource.LEARNT, 0.1, Prediction((0.2, 0.3, 0.6), Basis.FEATURES, 0.5)),
    Terms(0.3, 0.2, (0.1, 0.2, 1.0), explore=0.3),
    draw=0.5,
)


def decision(number: int = 0) -> LoggedDecision:
    return LoggedDecision(
        response=f"resp_{number}",
        at=number,
        choice=CHOICE,
        features={},
        model="m",
        tier=CHOICE.tier,
        input_tokens=1,
        output_tokens=1,
        outcome="stop",
    )


def judgement(number: int = 0, **changes: Any) -> JudgeOpinion:
    """That the large tier's answer is better than the small one's."""
    fields: dict[str, Any] = {
        "at": number,
        "judge": "wise",
        "responses": (f"resp_{number}", f"resp_{number}+large"),
        "tiers": ("small", "large"),
        "said": (-1, -1),
        "characters": (10, 10),
    }
    return JudgeOpinion(**{**fields, **changes})


def prefers(number: int, better: str, worse: str) -> Feedback:
    """A person's opinion on the same answers."""
    ids = {"small": f"resp_{number}", "large": f"resp_{number}+large"}
    return Feedback(
        response=ids[better], at=number, signal="preferred", tier=better, over=(Compared(ids[worse], worse),)
    )


def believed(number: int = FEWEST) -> tuple[list[JudgeOpinion], list[Feedback]]:
    """A judge and people who agree on so many pairs; they prefer either tier equally often."""
    judgements, feedback = [], []
    for each in range(1000, 1000 + number):
        larger = bool(each % 2)
        judgements.append(judgement(each, said=(-1, -1) if larger else (1, 1)))
        feedback.append(prefers(each, *(("large", "small") if larger else ("small", "large"))))
    return judgements, feedback


@pytest.mark.parametrize(
    ("said", "opinion"), [((1, 1), 1), ((-1, -1), -1), ((1, -1), 0), ((-1, 1), 0), ((1, 0), 0), ((0, 0), 0)]
)
def test_an_opinion_holds_in_both_orders(said: tuple[int, int], opinion: int) -> None:
    assert judgement(said=said).opinion == opinion


def test_a_judge_that_agrees_with_people_teaches() -> None:
    """By the decision that one of the answers came from, with the weight that it has earned."""
    judgements, feedback = believed()
    trusted = trusts(judgements, feedback)
    (found,) = judged_preferences([*judgements, judgement()], [decision()], feedback, "m", trusted)
    assert (found.better, found.worse, found.probabilities) == ("large", "small", (0.6, 0.2))
    assert found.weight == trusted["wise"].weight > 0.5
    assert found.propensity == CHOICE.propensity
    other = judged_preferences([judgement(said=(1, 1))], [decision()], feedback, "m", trusted)
    assert [(each.better, each.worse) for each in other] == [("small", "large")]


def test_without_people_a_judge_teaches_nothing() -> None:
    judgements, _ = believed()
    trusted = trusts([*judgements, judgement()], [])
    assert trusted["wise"].pairs == 0
    assert judged_preferences([judgement()], [decision()], [], "m", trusted) == []


def test_each_judge_earns_its_own_trust() -> None:
    judgements, feedback = believed()
    another = judgement(judge="another")
    trusted = trusts([*judgements, another], feedback)
    assert trusted["wise"].established and not trusted["another"].established
    assert judged_preferences([another], [decision()], feedback, "m", trusted) == []


def test_what_teaches_nothing_is_left_out() -> None:
    """No opinion, another version of the model, no decision, and pairs of which a person has spoken."""
    judgements, feedback = believed()
    trusted = trusts(judgements, feedback)
    for judged, decisions, model in (
        (judgement(said=(1, -1)), [decision()], "m"),
        (judgement(), [decision()], "another"),
        (judgement(), [], "m"),
        (judgements[0], [decision(1000)], "m"),
    ):
        assert judged_preferences([judged], decisions, feedback, model, trusted) == []


def test_the_newest_word_counts() -> None:
    """Of people and of the judge."""
    judged = [judgement(1, at=1, said=(1, 1)), judgement(1, at=2)]
    changed = [prefers(1, "small", "large"), Feedback(**{**_fields(prefers(1, "large", "small")), "at": 5})]
    found = trusts(judged, changed)["wise"]
    assert (found.pairs, found.agreement.value) == (1, 1.0)


def _fields(feedback: Feedback) -> dict[str, Any]:
    return {name: getattr(feedback, name) for name in feedback.__struct_fields__}
