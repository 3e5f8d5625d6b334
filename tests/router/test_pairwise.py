"""A judge's comparisons: which pairs it is asked about, what they make of answers, and what it is worth."""

from __future__ import annotations

import numpy as np
import pytest

from router.judging import FEWEST
from router.pairwise import AnswerPair, figures, judged, pairs

UNGRADED = [np.nan] * 3


def test_every_pair_of_a_question_without_a_grader_is_compared_and_one_that_tells_of_the_others() -> None:
    right = np.array([UNGRADED, [0, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]])
    found = pairs(right, ["0", "0", "1", "2", "1"])
    assert [(each.row, each.pools) for each in found] == [
        (0, (0, 1)),
        (0, (0, 2)),
        (0, (1, 2)),
        (1, (0, 2)),
        (2, (0, 2)),
        (4, (1, 2)),
    ]


def test_an_answer_is_right_if_none_was_found_better() -> None:
    right = np.array([UNGRADED, UNGRADED, UNGRADED, [0.0, 1, 0]])
    opinions = {(0, 1): 1, (0, 2): 1, (1, 2): 0}, {(0, 1): 0, (0, 2): -1, (1, 2): -1}, {}, {(0, 1): -1}
    compared = [(AnswerPair(row, pools), said) for row, each in enumerate(opinions) for pools, said in each.items()]
    found = judged(right, *zip(*compared, strict=True))
    assert found.tolist() == [[0, 1, 1], [1, 1, 0], [1, 1, 1], [0, 1, 0]]
    assert np.isnan(right[0]).all()


@pytest.mark.parametrize(("sharp", "established"), [(True, True), (False, False)])
def test_a_judge_counts_if_it_names_the_right_answer_more_often_than_a_rule_would(
    sharp: bool, established: bool
) -> None:
    """One that always names the larger pool's is as good as that rule."""
    rows = 2 * FEWEST
    right = np.array([[row % 2, 0, 1 - row % 2] for row in range(rows)] + [[1, 1, 1], UNGRADED], np.float64)
    compared = [AnswerPair(row, (0, 2)) for row in range(rows + 2)]
    opinions = [(1 if not sharp or row % 2 == 0 else -1) for row in range(rows)] + [1, 1]
    opinions[:2] = [0, 0]
    found = figures("judge", right, np.ones_like(right), compared, opinions)
    assert (found.trust.pairs, found.silent, found.judged) == (rows - 2, 2, 1)
    assert (found.alike, found.preferred) == (1, 1)
    assert found.trust.agreement.value == (1.0 if sharp else 0.5) and found.established == established
