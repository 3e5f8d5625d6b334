"""Drafts of chosen quality, for tests of their verification."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from engine.plan import Row
from engine.request import Request
from tests.engine.ledger_runner import VOCABULARY, expected_output


def partly_right(truth: Sequence[int], vocabulary: int, seed: int = 0) -> Callable[[Request], tuple[int, ...]]:
    """Drafts of up to six tokens of an answer that is known to be `truth`; each token is wrong one time in four."""
    generator = random.Random(seed)

    def draft(request: Request) -> tuple[int, ...]:
        said = len(request.output)
        guess = truth[said : said + generator.randint(0, 6)]
        return tuple(token if generator.random() < 0.75 else (token + 1) % vocabulary for token in guess)

    return draft


def ledger_drafts(generator: random.Random, right: float = 0.75) -> Callable[[Row], tuple[int, ...]]:
    """Drafts of up to six tokens for the ledger runner, of which each is right with this probability."""

    def draft(row: Row) -> tuple[int, ...]:
        known = row.request.tokens(0, row.start + row.count)
        guess = expected_output(known, generator.randint(0, 6))
        return tuple(token if generator.random() < right else (token + 1) % VOCABULARY for token in guess)

    return draft
