"""What a turn costs. Pure, and in integers throughout.

A price is in micro-dollars per million tokens, which is the same as picodollars per token (10^-12 dollars), so that
tokens times price is exact. The ledger and its sums are kept in picodollars and never rounded: no micro-dollar is lost
or invented, over however many turns. Rounding happens where a figure leaves the books:

- one turn's cost, as clients and spending limits see it, is rounded up to whole micro-dollars (`cost`), so that limits
  are never overshot; it is above the exact figure by less than one micro-dollar;
- a sum is rounded once, after it was added up (`microdollars`), and is off by half a micro-dollar at most.
"""

from __future__ import annotations

from typing import Protocol

PICODOLLARS_PER_MICRODOLLAR = 1_000_000


class TokenPrices(Protocol):
    """Prices in micro-dollars per million tokens, as `PriceSettings` and the directory's `Price` give them."""

    @property
    def input(self) -> int:
        """Price of prompt tokens that were computed."""

    @property
    def cached_input(self) -> int | None:
        """Price of prompt tokens found in the prefix cache; None: as `input`."""

    @property
    def output(self) -> int:
        """Price of generated tokens."""


def picodollars(price: TokenPrices, input: int, cached: int, output: int) -> int:
    """The exact cost of a turn in picodollars.

    Args:
        input: prompt tokens, those found in the prefix cache included.
        cached: those found in the prefix cache.
        output: generated tokens.

    Raises:
        ValueError: a count is negative, or more was cached than there was input.
    """
    if not (0 <= cached <= input and output >= 0):
        raise ValueError(f"no such turn: {input} input tokens, {cached} of them cached, {output} output tokens")
    cached_price = price.input if price.cached_input is None else price.cached_input
    return (input - cached) * price.input + cached * cached_price + output * price.output


def cost(price: TokenPrices, input: int, cached: int, output: int) -> int:
    """The cost of a turn in micro-dollars, rounded up. Arguments and errors as those of `picodollars`."""
    return rounded_up(picodollars(price, input, cached, output))


def rounded_up(picodollars: int) -> int:
    """One turn's exact cost in whole micro-dollars, rounded up."""
    return -(-picodollars // PICODOLLARS_PER_MICRODOLLAR)


def most(price: TokenPrices, input: int, output: int) -> int:
    """Return the highest cost that a turn may have, in micro-dollars, whatever the prefix cache holds."""
    return max(cost(price, input, 0, output), cost(price, input, input, output))


def microdollars(picodollars: int) -> int:
    """A sum of exact costs in micro-dollars, rounded to the nearest; a half goes to the even one."""
    whole, rest = divmod(picodollars, PICODOLLARS_PER_MICRODOLLAR)
    twice = 2 * rest
    up = twice > PICODOLLARS_PER_MICRODOLLAR or (twice == PICODOLLARS_PER_MICRODOLLAR and whole % 2 == 1)
    return whole + up


def dollars(picodollars: int) -> str:
    """A sum of exact costs for people and spreadsheets: dollars with six decimals, such as `0.000150`."""
    whole, micro = divmod(microdollars(picodollars), 1_000_000)
    return f"{whole}.{micro:06d}"
