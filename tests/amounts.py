"""How much of what is much is tested by default; `make test-deep` tests the rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import settings

DEEP = settings.get_current_profile_name() == "deep"


def examples(number: int) -> int:
    """As many for a search whose examples are dear, and ten times as many in a deep run."""
    return number * settings().max_examples // 50


def crossed(ones: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Parameters: by default each of the ones with every second of the others, in turn; all pairs in a deep run."""
    pairs = product(enumerate(ones), enumerate(others))
    return [pytest.param(one, other, marks=pytest.mark.deep if (i + j) % 2 else ()) for (i, one), (j, other) in pairs]


def some_of(cases: Sequence[Sequence[Any]], step: int) -> list[Any]:
    """Parameters: every so many-th case runs by default, the others in a deep run."""
    return [pytest.param(*case, marks=pytest.mark.deep if at % step else ()) for at, case in enumerate(cases)]
