"""Numbers as people write them."""

from __future__ import annotations

from decimal import Decimal


def plain(value: float, digits: int = 10) -> str:
    """Write a number to so many significant digits, with commas and never with an exponent."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"
