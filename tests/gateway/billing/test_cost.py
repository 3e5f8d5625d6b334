"""Costs are exact integers, rounded only where they leave the books."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.cost import cost, dollars, microdollars, picodollars
from gateway.config.settings import PriceSettings

amounts = st.integers(0, 10**12)
prices = st.builds(PriceSettings, name=st.just("m"), input=amounts, output=amounts, cached_input=st.none() | amounts)
tokens = st.integers(0, 2**32)
turns = st.tuples(tokens, tokens, tokens).map(lambda counts: (max(counts[:2]), min(counts[:2]), counts[2]))


def in_dollars(price: PriceSettings, input: int, cached: int, output: int) -> Fraction:
    """The same in fractions of a dollar, as a price list for people would have it."""
    million = Fraction(1_000_000)
    per_token = [
        Fraction(amount) / million / million
        for amount in (price.input, price.input if price.cached_input is None else price.cached_input, price.output)
    ]
    return (input - cached) * per_token[0] + cached * per_token[1] + output * per_token[2]


@given(prices, turns)
def test_the_books_are_exact(price: PriceSettings, turn: tuple[int, int, int]) -> None:
    """A picodollar is fine enough for every price that can be written down."""
    assert Fraction(picodollars(price, *turn), 10**12) == in_dollars(price, *turn)


@given(prices, st.lists(turns, max_size=50))
def test_the_sum_of_many_turns_is_rounded_once(price: PriceSettings, many: list[tuple[int, int, int]]) -> None:
    """So nothing is lost or invented, as the decimal module has it."""
    exact = sum((in_dollars(price, *turn) for turn in many), Fraction(0)) * 10**6
    total = sum(picodollars(price, *turn) for turn in many)
    assert microdollars(total) == round(exact)
    assert abs(microdollars(total) - exact) <= Fraction(1, 2)
    expected = (Decimal(total) / 10**12).quantize(Decimal("0.000001"), rounding=ROUND_HALF_EVEN)
    assert dollars(total) == f"{expected:f}"


@given(prices, turns)
def test_one_turn_is_rounded_up(price: PriceSettings, turn: tuple[int, int, int]) -> None:
    """By less than a micro-dollar, so that limits which add such figures up never let too much through."""
    assert cost(price, *turn) == math.ceil(in_dollars(price, *turn) * 10**6)


def test_a_million_tokens_cost_their_price() -> None:
    """The figures of a price list, by hand."""
    price = PriceSettings(name="m", input=150_000, cached_input=75_000, output=600_000)
    assert cost(price, 1_000_000, 0, 0) == 150_000
    assert cost(price, 1_000_000, 1_000_000, 0) == 75_000
    assert cost(price, 0, 0, 1_000_000) == 600_000
    assert cost(price, 10, 0, 1) == 3  # 1.5 + 0.6, rounded up
    assert dollars(picodollars(price, 1_000, 0, 0)) == "0.000150"


@pytest.mark.parametrize("turn", [(-1, 0, 0), (1, 2, 0), (1, -1, 0), (1, 0, -1)])
def test_impossible_turns_raise(turn: tuple[int, int, int]) -> None:
    """A wrong count must not become a wrong bill."""
    with pytest.raises(ValueError, match="no such turn"):
        picodollars(PriceSettings(name="m", input=1, output=1), *turn)
