"""The choice of a tier as a function of its arguments."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.evaluation import choices
from router.success import Basis, Prediction
from router.tier import (
    NEVER,
    NOMINAL,
    TIERS,
    Outlook,
    Terms,
    TierChoice,
    ValueSource,
    again,
    choose,
    price_table,
    relative,
    sentences,
)

COSTS = (0.1, 0.3, 1.0)
MIDDLE = 0.2
UNIT = st.floats(0, 1, allow_subnormal=False)


def terms(price: float = MIDDLE, **others: float) -> Terms:
    return Terms(price, MIDDLE, COSTS, **others)


def learnt(*probabilities: float) -> Outlook:
    small, medium, large = probabilities
    return Outlook(ValueSource.LEARNT, 0.5, Prediction((small, medium, large), Basis.EMBEDDING, 0.5))


OUTLOOKS = st.one_of(
    st.builds(learnt, UNIT, UNIT, UNIT),
    st.builds(Outlook, st.sampled_from([ValueSource.COMPLEXITY, ValueSource.UNCERTAIN]), UNIT),
    st.builds(lambda lot: Outlook(ValueSource.MIXTURE, 0.5, lot=lot), st.floats(0, 1, exclude_max=True)),
)


@pytest.mark.parametrize(
    ("probabilities", "tier"),
    [((0.8, 0.81, 0.82), "small"), ((0.3, 0.6, 0.65), "medium"), ((0.3, 0.4, 0.9), "large"), ((0, 0, 0), "small")],
)
def test_a_tier_is_taken_where_it_gains_more_than_it_costs(probabilities: tuple[float, ...], tier: str) -> None:
    assert choose(learnt(*probabilities), terms()).tier == tier


@pytest.mark.parametrize(("complexity", "tier"), [(0.0, "small"), (0.19, "small"), (0.21, "medium"), (0.46, "large")])
def test_at_the_middle_the_complexity_decides_at_its_thresholds(complexity: float, tier: str) -> None:
    assert choose(Outlook(ValueSource.COMPLEXITY, complexity), terms()).tier == tier


def test_twice_the_price_doubles_the_thresholds() -> None:
    for complexity, tier in ((0.39, "small"), (0.41, "medium"), (0.89, "medium"), (0.91, "large")):
        assert choose(Outlook(ValueSource.COMPLEXITY, complexity), terms(2 * MIDDLE)).tier == tier


def test_what_nothing_is_known_of_goes_to_medium_unless_the_price_is_extreme() -> None:
    unknown = Outlook(ValueSource.UNCERTAIN, 0.9)
    assert [choose(unknown, terms(MIDDLE * times)).tier for times in (5, 3, 1, 0.3, 0.2)] == [
        "small",
        *["medium"] * 3,
        "large",
    ]


@given(OUTLOOKS, st.floats(0, 10), st.floats(0, 10))
def test_a_higher_price_never_takes_a_dearer_tier(outlook: Outlook, one: float, other: float) -> None:
    low, high = sorted((one, other))
    dear, cheap = (TIERS.index(choose(outlook, terms(price)).tier) for price in (low, high))
    assert cheap <= dear


@given(OUTLOOKS, st.floats(0, 10), st.sampled_from(TIERS), st.floats(0, 1, exclude_max=True))
def test_a_conversation_never_falls_below_its_floor(outlook: Outlook, price: float, floor: str, draw: float) -> None:
    choice = choose(outlook, terms(price, explore=0.5), floor=floor, draw=draw)
    assert TIERS.index(choice.tier) >= TIERS.index(floor)


def test_a_tier_with_a_queue_is_taken_less() -> None:
    outlook = learnt(0.3, 0.4, 0.9)
    assert choose(outlook, terms(delay_price=0.05), delays=(0, 0, 2)).tier == "large"
    assert choose(outlook, terms(delay_price=0.05), delays=(0, 0, 12)).tier == "medium"


@given(OUTLOOKS, st.floats(0, 10), st.sampled_from([None, (0.05, 0.4, 3.0)]))
def test_a_choice_says_what_it_was_summed_from(
    outlook: Outlook, price: float, expected: tuple[float, float, float] | None
) -> None:
    """Costs that are expected of this request count, if there are any, and the lot makes cost dearer."""
    choice = choose(msgspec.structs.replace(outlook, costs=expected), terms(price, delay_price=0.1), delays=(1, 2, 3))
    assert choice.costs == (expected or COSTS)
    for number, utility in enumerate(choice.utilities):
        assert utility == choice.values[number] - choice.price * choice.costs[number] - 0.1 * choice.delays[number]


def test_exploring_draws_every_tier_and_propensities_say_how_often() -> None:
    """Over a fine grid of draws each tier comes up as often as its propensity says."""
    outlook, explore = learnt(0.3, 0.6, 0.65), 0.3
    drawn = [choose(outlook, terms(explore=explore), draw=(number + 0.5) / 1000) for number in range(1000)]
    for tier in TIERS:
        taken = [choice for choice in drawn if choice.tier == tier]
        assert len(taken) / 1000 == pytest.approx(taken[0].propensity, abs=0.002)


@given(OUTLOOKS, st.floats(0, 10), UNIT, st.floats(0, 1, exclude_max=True), st.sampled_from([None, *TIERS]))
def test_a_logged_choice_is_made_again(
    outlook: Outlook, price: float, explore: float, draw: float, floor: str | None
) -> None:
    choice = choose(outlook, terms(price, explore=explore), delays=(0.1, 0.2, 0.3), floor=floor, draw=draw)
    logged = msgspec.json.decode(msgspec.json.encode(choice), type=TierChoice)
    assert again(logged) == choice


def test_the_knob_is_linear_in_money() -> None:
    generator = np.random.default_rng(0)
    calibration = np.sort(generator.beta(2, 3, (4000, 3)), axis=1)
    table = price_table(calibration, COSTS)
    assert (table[0], table[100]) == (NEVER, 0.0)
    assert list(table) == sorted(table, reverse=True)
    for knob in (10, 30, 50, 70, 90):
        chosen = [choose(learnt(*row), Terms(table[knob], table[50], COSTS)).tier for row in calibration]
        spent = np.mean([COSTS[TIERS.index(tier)] for tier in chosen])
        assert spent == pytest.approx(COSTS[0] + knob / 100 * (COSTS[2] - COSTS[0]), abs=0.02)


NOTHING_GAINED = [learnt(0.4, 0.4, 0.4), Outlook(ValueSource.COMPLEXITY, 0.0)]


@pytest.mark.parametrize("outlook", [learnt(0.1, 0.1, 0.1001), Outlook(ValueSource.COMPLEXITY, 0.01), *NOTHING_GAINED])
def test_the_ends_of_the_knob_are_all_small_and_all_large(outlook: Outlook) -> None:
    table = price_table(np.sort(np.random.default_rng(0).random((100, 3)), axis=1), COSTS)
    assert choose(outlook, Terms(table[0], table[50], COSTS)).tier == "small"
    assert choose(outlook, Terms(table[100], table[50], COSTS)).tier == "large"


def test_below_its_upper_end_the_knob_buys_no_tier_that_gains_nothing() -> None:
    """Where two tiers of three are believed to be equal, as they are after they were made monotone."""
    calibration = np.sort(np.random.default_rng(0).random((400, 3)), axis=1)
    calibration[::2, 2] = calibration[::2, 1]
    table = price_table(calibration, COSTS)
    assert [choose(outlook, Terms(table[99], table[50], COSTS)).tier for outlook in NOTHING_GAINED] == ["small"] * 2
    chosen = [choose(learnt(*row), Terms(table[99], table[50], COSTS)).tier for row in calibration]
    assert 0.45 < np.mean([tier == "large" for tier in chosen]) <= 0.5
    spread = np.broadcast_to(np.array(COSTS), calibration.shape)
    for quality in (0, 30, 99, 100):
        taken = [choose(learnt(*row), Terms(table[quality], table[50], COSTS)).tier for row in calibration]
        assert taken == [TIERS[tier] for tier in choices(calibration, spread, table[quality])]


def test_costs_that_do_not_rise_with_the_tier_are_replaced() -> None:
    assert relative([1, 3, 9]) == pytest.approx((1 / 9, 1 / 3, 1))
    for costs in ([1, 1, 1], [3, 2, 1], [1, 2]):
        assert relative(costs) == pytest.approx([cost / NOMINAL[-1] for cost in NOMINAL])


@given(OUTLOOKS, UNIT, st.lists(st.sampled_from(TIERS), min_size=1, unique=True), st.sampled_from([None, *TIERS]), UNIT)
def test_the_last_tier_that_the_reasons_name_is_the_one_taken(
    outlook: Outlook, price: float, offered: list[str], floor: str | None, queue: float
) -> None:
    choice = choose(outlook, terms(price, delay_price=0.2), delays=(queue, 0, 0), offered=tuple(offered), floor=floor)
    said = " ".join(sentences(choice)).replace("does not go below it", "")
    named = [word.strip(";,:") for word in said.split("; at")[-1].split() if word.strip(";,:") in TIERS]
    # A floor that is not offered is named, too: there the highest tier that is offered answers.
    assert named[-1] in (choice.tier, floor)


@pytest.mark.parametrize(
    ("complexity", "price", "changed", "said"),
    [
        (0.6, MIDDLE, {}, ["complexity 0.60 asks for the large tier"]),
        (0.6, NEVER, {}, ["complexity 0.60 at this price of quality asks for the small tier"]),
        (
            0.1,
            MIDDLE,
            {"floor": "large"},
            [
                "complexity 0.10 asks for the small tier",
                "the conversation has used the large tier and does not go below it",
            ],
        ),
        (
            0.6,
            MIDDLE,
            {"offered": ("small", "medium")},
            [
                "complexity 0.60 asks for the large tier",
                "the large tier is not open to this request, the medium tier is next",
            ],
        ),
        (
            0.1,
            MIDDLE,
            {"delays": (9.0, 0.0, 0.0)},
            ["complexity 0.10 asks for the small tier", "the small tier has a queue, the medium tier answers sooner"],
        ),
    ],
)
def test_reasons_tell_the_wish_and_what_has_changed_it(
    complexity: float, price: float, changed: dict[str, Any], said: list[str]
) -> None:
    choice = choose(Outlook(ValueSource.COMPLEXITY, complexity), terms(price, delay_price=0.02), **changed)
    assert list(sentences(choice)) == said
