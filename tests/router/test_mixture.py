"""Fixed shares of requests for each tier, dealt by lots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import mixture
from router.tier import NEVER, TIERS, Outlook, Terms, ValueSource, choose, relative, sentences, shares

COSTS = [(0.1, 0.3, 1.0), relative(()), (0.09, 0.333, 1.0), (0.5, 0.9, 1.0)]
LOTS = [(number + 0.5) / 1000 for number in range(1000)]


def dealt(lot: float) -> Outlook:
    return Outlook(ValueSource.MIXTURE, 0.9, lot=lot)


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("quality", [0, 1, 10, 33, 50, 80, 99, 100])
def test_the_knob_is_linear_in_money(costs: tuple[float, float, float], quality: int) -> None:
    """Between two neighbouring tiers each time, as the best mixture is where gains fall."""
    table = mixture.prices(costs, NEVER)
    chosen = [TIERS.index(choose(dealt(lot), Terms(table[quality], table[50], costs)).tier) for lot in LOTS]
    spent = np.mean([costs[tier] for tier in chosen])
    assert spent == pytest.approx(costs[0] + quality / 100 * (1 - costs[0]), abs=0.002)
    assert {*chosen} in ({0}, {0, 1}, {1}, {1, 2}, {2})


@pytest.mark.parametrize("offered", [TIERS, ("small", "large"), ("small", "medium"), ("large",)])
@pytest.mark.parametrize("floor", [None, "medium"])
def test_the_propensity_is_the_share_of_lots(offered: tuple[str, ...], floor: str | None) -> None:
    terms = Terms(0.2, 0.2, COSTS[0], delay_price=0.05, explore=0.1)
    for delays in ((0.0, 0.0, 0.0), (0.0, 1.0, 0.5)):
        chosen = [choose(dealt(lot), terms, delays=delays, offered=offered, floor=floor) for lot in LOTS]
        for tier in {each.tier for each in chosen}:
            taken = [each for each in chosen if each.tier == tier]
            open_tiers = [each for each in offered if floor is None or TIERS.index(each) >= TIERS.index(floor)]
            share = 0.1 / len(open_tiers or offered[-1:]) + 0.9 * len(taken) / len(LOTS)
            assert taken[0].propensity == pytest.approx(share, abs=0.002)


def test_what_is_asked_changes_no_value() -> None:
    """All that differs between two requests is their lot."""
    terms = Terms(0.2, 0.2, COSTS[0])
    one, other = (choose(Outlook(ValueSource.MIXTURE, score, lot=0.3), terms) for score in (0.0, 1.0))
    assert one.values == other.values and one.tier == other.tier
    assert "not calibrated for these models" in sentences(one)[0]


@given(st.floats(0, 1), st.floats(0, 1, exclude_max=True))
def test_a_larger_lot_never_gets_a_larger_tier(price: float, lot: float) -> None:
    terms = Terms(price, 0.2, COSTS[0])
    first, later = (TIERS.index(choose(dealt(each), terms).tier) for each in (lot / 2, lot))
    assert later <= first


def test_shares_of_tiers_sum_to_one() -> None:
    for price in (0.0, 0.05, 0.3, 0.5, 1.0, NEVER):
        assert sum(shares(dealt(0.0), Terms(price, 0.2, COSTS[0])).values()) == pytest.approx(1.0)


def test_lots_are_uniform_and_come_again() -> None:
    lots = np.array([mixture.lot(b"tenant", str(number).encode()) for number in range(4000)])
    assert mixture.lot(b"tenant", b"7") == lots[7] and mixture.lot(b"tenan", b"t7") != lots[7]
    assert lots.min() >= 0 and lots.max() < 1
    counts = np.histogram(lots, bins=10, range=(0, 1))[0]
    assert (abs(counts - 400) < 5 * np.sqrt(400)).all()


def test_prices_of_two_tables_are_alike_where_as_much_is_spent() -> None:
    table, other = mixture.prices(COSTS[0], NEVER), mixture.prices(COSTS[3], NEVER)
    for quality in (0, 1, 20, 50, 99, 100):
        assert mixture.alike(table[quality], table, other) == pytest.approx(other[quality])
    assert mixture.alike(2 * table[1], table, other) == pytest.approx(2 * other[1])
