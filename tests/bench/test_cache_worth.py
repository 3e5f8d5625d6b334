"""What the caches save: the stream, and the reckoning."""

from __future__ import annotations

import pytest

from bench.cache_worth import REPEATED, RequestCost, compare, markdown, trace, worth
from bench.question_pairs import QuestionPool, split
from bench.semantic_policies import SemanticOutcome
from tests.bench.test_semantic_cache import embed, pairs

COST = RequestCost(shared=100, own=20, output=50, prefill=100, decode=10, look_up=0.1)


@pytest.fixture(scope="module")
def pool() -> QuestionPool:
    return split(pairs(), "test", embed)


def test_a_stream_repeats_questions_in_the_same_words_and_in_others(pool: QuestionPool) -> None:
    asked = trace(pool, 30, 0.8, 0)
    assert len(asked) == 30 and asked == trace(pool, 30, 0.8, 0)
    assert len(set(asked)) < 30
    assert len({pool.clusters[question] for question in asked}) < len(set(asked))
    assert len(set(trace(pool, 10, 0.0, 0))) == 10


def test_what_is_computed_is_paid_for() -> None:
    """Of 100 requests 30 are exact hits, and 10 semantic ones."""
    outcome = SemanticOutcome(requests=100, exact=30, hits=10, wrong=1)
    none, prefix, exact, semantic = (worth(outcome, name, 0.5, COST) for name in ("none", "prefix", "exact", "ours"))
    assert none.seconds == pytest.approx(120 / 100 + 5)
    assert prefix.seconds == pytest.approx(20 / 100 + 5)
    assert exact.seconds == pytest.approx(0.7 * prefix.seconds)
    assert semantic.seconds == pytest.approx(0.6 * prefix.seconds + 0.7 * 0.1)
    assert none.dollars == pytest.approx(1000 * (120 * 0.15 + 50 * 0.6) / 1e6)
    assert prefix.dollars == pytest.approx(1000 * (100 * 0.075 + 20 * 0.15 + 50 * 0.6) / 1e6)
    assert (exact.dollars / prefix.dollars, semantic.dollars / prefix.dollars) == pytest.approx((0.7, 0.6))
    assert [row.wrong for row in (none, prefix, exact, semantic)] == [0, 0, 0, 10]


def test_the_table_has_every_stream(pool: QuestionPool) -> None:
    rows = compare(pool, 20, COST)
    assert len(rows) == 6 * len(REPEATED)
    assert rows[0].dollars > rows[1].dollars >= rows[2].dollars >= rows[3].dollars
    text = markdown(rows, 20, COST)
    assert text.count("| none |") == len(REPEATED)
    assert "more than 1.9% of its look-ups" in text
