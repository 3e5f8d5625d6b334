"""Numbers as people write them."""

from __future__ import annotations

import pytest

from scale.decimals import plain


@pytest.mark.parametrize(
    ("value", "digits", "written"),
    [
        (1234.5, 3, "1,230"),
        (999.6, 3, "1,000"),
        (1.234, 3, "1.23"),
        (0.000005, 3, "0.000005"),
        (1_000_000, 10, "1,000,000"),
        (2.0, 10, "2"),
        (-0.85, 10, "-0.85"),
    ],
)
def test_no_number_has_an_exponent(value: float, digits: int, written: str) -> None:
    assert plain(value, digits) == written
