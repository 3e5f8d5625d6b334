"""The semantic cache's latency: what is made of a gateway's histogram and a client's times."""

from __future__ import annotations

from math import inf

import pytest

from bench.question_pairs import Pair
from bench.semantic_latency import TimedTurn, markdown, questions, summarise, within

COUNTS = {0.01: 50.0, 0.02: 90.0, 0.05: 100.0, inf: 100.0}


@pytest.mark.parametrize(("share", "expected"), [(0.25, 0.005), (0.5, 0.01), (0.7, 0.015), (0.95, 0.035), (1.0, 0.05)])
def test_quantiles_of_a_histogram_lie_between_its_limits(share: float, expected: float) -> None:
    assert within(COUNTS, share) == pytest.approx(expected)


def test_half_of_what_is_asked_is_known_in_other_words() -> None:
    pairs = [Pair(f"a{number}", f"b{number}", number % 2 == 0) for number in range(100)]
    first, then = questions(pairs, 20, 0)
    known = {pair.b for pair in pairs if pair.a in first}
    assert len(first) == 10 and len(then) == 20 and len(known & set(then)) == 10
    assert all(pair.same for pair in pairs if pair.a in first)


def test_hits_and_misses_are_told_apart() -> None:
    """By what the gateway said of each turn."""
    asked = [
        TimedTurn(0.004, "similar"),
        TimedTurn(0.03, "absent"),
        TimedTurn(0.05, "checked"),
        TimedTurn(0.02, "person"),
    ]
    result = summarise(asked, {0.01: 2.0, 0.02: 3.0, inf: 3.0}, [TimedTurn(0.02, "absent")] * 4)
    assert (result.hits, result.misses, result.look_ups, result.late) == (1, 2, 3, 1)
    assert (result.hit_p50, result.miss_p99, result.without_p50) == (4.0, 50.0, 20.0)
    text = markdown(result, "- here")
    assert "| first token, answered from a similar question | 1 | 4.0 | 4.0 |" in text
