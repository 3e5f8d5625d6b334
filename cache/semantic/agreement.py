"""Whether a fresh answer says the same as a stored one. Pure.

It labels checks, so it errs on the side of "no": a wrong "no" makes the cache stricter than it must be, a wrong "yes"
lets a wrong answer be served. Two answers agree if they are the same but for case, spaces and punctuation; or if they
are close in meaning and have the same numbers, negations and names.
"""

from __future__ import annotations

import re

from cache.semantic.profile import MAX_CHARACTERS, profile

CLOSE = 0.9
"""Cosine of two answers' embeddings from which they may say the same."""
_APART = re.compile(r"[\W_]+")


def same(fresh: str, stored: str) -> bool:
    """Whether two answers are the same but for case, spaces and punctuation."""
    return _plain(fresh) == _plain(stored)


def agree(fresh: str, stored: str, similarity: float | None) -> bool:
    """Whether two answers say the same.

    Args:
        similarity: cosine of their embeddings; None if there is none.
    """
    if same(fresh, stored):
        return True
    if similarity is None or similarity < CLOSE or max(len(fresh), len(stored)) > MAX_CHARACTERS:
        return False
    ours, theirs = profile(fresh), profile(stored)
    return (
        sorted(ours.numbers) == sorted(theirs.numbers)
        and ours.units == theirs.units
        and ours.dates == theirs.dates
        and ours.names == theirs.names
        and ours.negations % 2 == theirs.negations % 2
        and not set(ours.opposites) & set(theirs.words)
    )


def _plain(text: str) -> str:
    return _APART.sub(" ", text).strip().casefold()
