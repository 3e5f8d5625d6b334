"""When an answer that looks bad is worth another one of the next larger tier."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cascade import (
    DEPENDENCE,
    AnswerEvidence,
    CascadeSignal,
    Escalation,
    again,
    decide,
    escalate,
    next_tier,
    sentence,
    signal,
)
from router.refit import read_suite
from router.success import Basis, Prediction, shipped
from router.tier import Outlook, Terms, TierChoice, ValueSource, choose

FINE = AnswerEvidence(empty=False, valid=True, refusal=False, logprob=-0.2)
COSTS = (0.1, 0.2, 1.0)
TYPICAL = (0.2, 0.3, 0.4)
shares = st.floats(0, 1)


def choice(
    price: float = 0.3, probabilities: tuple[float, float, float] | None = (0.5, 0.52, 0.6), **how: object
) -> TierChoice:
    source = ValueSource.LEARNT if probabilities else ValueSource.COMPLEXITY
    outlook = Outlook(source, 0.1, Prediction(probabilities, Basis.FEATURES, 0.5))
    explore = float(str(how.pop("explore", 0.0)))
    return choose(outlook, Terms(price, 0.2, COSTS, explore=explore), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, None),
        ({"empty": True, "valid": False, "refusal": True}, CascadeSignal.EMPTY),
        ({"valid": False, "refusal": True}, CascadeSignal.SCHEMA),
        ({"refusal": True, "logprob": -9.0}, CascadeSignal.REFUSAL),
        ({"logprob": -1.5}, CascadeSignal.DOUBT),
        ({"logprob": -1.0}, None),
        ({"logprob": None}, None),
    ],
)
def test_the_strongest_signal_counts(change: dict[str, object], found: CascadeSignal | None) -> None:
    assert signal(msgspec.structs.replace(FINE, **change), -1.0) is found


def test_without_a_bound_log_probabilities_are_no_signal() -> None:
    assert signal(msgspec.structs.replace(FINE, logprob=-50.0), None) is None


def test_there_is_one_tier_above_unless_the_choice_was_drawn_or_is_the_highest() -> None:
    assert next_tier(choice()) == "medium"
    assert next_tier(choice(offered=("small", "large"))) == "large"
    assert next_tier(choice(offered=("small",))) is None
    assert next_tier(choice(price=0.0)) is None
    assert next_tier(choice(explore=0.2, draw=0.01)) is None


def test_an_answer_of_no_use_is_made_again_where_the_larger_tier_is_worth_its_cost() -> None:
    """The whole cost of the larger tier's answer, not only what it costs more: the first one is paid already."""
    made = escalate(choice(), "medium", CascadeSignal.EMPTY, TYPICAL)
    assert (made.gain, made.paid, made.pays) == (pytest.approx(0.52), pytest.approx(0.06), True)
    assert not escalate(choice(price=3.0), "medium", CascadeSignal.EMPTY, TYPICAL).pays
    assert "the small tier's answer was empty: the medium tier is expected to do better by 52%" in sentence(made)


def test_where_nothing_is_known_the_typical_request_counts() -> None:
    assert escalate(choice(probabilities=None), "medium", CascadeSignal.SCHEMA, TYPICAL).success == (0.2, 0.3)


def test_a_queue_in_front_of_the_larger_tier_counts() -> None:
    terms = Terms(0.3, 0.2, COSTS, delay_price=0.1)
    chosen = choose(choice().outlook, terms, delays=(0.0, 7.0, 0.0))
    assert escalate(chosen, "medium", CascadeSignal.EMPTY, TYPICAL).paid == pytest.approx(0.3 * 0.2 + 0.7)


@given(st.sampled_from(CascadeSignal), shares, shares, shares, shares)
def test_gains_are_probabilities_and_the_decision_can_be_made_again(
    found: CascadeSignal, this: float, that: float, price: float, cost: float
) -> None:
    """Doubt about an answer never gains more than an answer that is of no use, and nothing beyond the larger tier's."""
    success = (min(this, that), max(this, that))
    made = decide(found, ("small", "medium"), success, price=price, cost=cost)
    assert -1e-9 <= made.gain <= success[1] + 1e-9
    none = decide(CascadeSignal.EMPTY, ("small", "medium"), success, price=price, cost=cost)
    assert made.gain <= none.gain + 1e-9
    assert again(made) == made
    assert msgspec.json.decode(msgspec.json.encode(made), type=Escalation) == made


def test_the_documented_example_says_yes(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path("docs/routing.md").read_text("utf-8")
    (example,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "router.cascade" in each]
    exec(example)
    assert capsys.readouterr().out.startswith("True the small tier's answer was empty")


@pytest.mark.parametrize(("tier", "larger"), [(0, 1), (1, 2)])
def test_the_dependence_is_that_of_the_frozen_suite(tier: int, larger: int) -> None:
    """How often a larger tier answers well where a smaller one has failed, between both extremes."""
    suite = read_suite(shipped())
    believed = shipped().estimate(suite.vectors, suite.projected)[0].astype(float)
    failed = suite.outcomes[:, tier] == 0
    this, that, truly = believed[failed, tier], believed[failed, larger], suite.outcomes[failed, larger]
    nested = np.maximum(0, (that - this) / (1 - this))
    drawn = np.random.default_rng(0).integers(0, len(this), (500, len(this)))
    independent, seen, ahead = (values[drawn].mean(axis=1) for values in (that, truly, nested))
    low, high = np.quantile((independent - seen) / (independent - ahead), (0.025, 0.975))
    assert low < DEPENDENCE < high
    assert high - low < 0.3
