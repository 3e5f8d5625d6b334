"""When a corrected model may replace the one in use."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from router.correction import correct
from router.evaluation import Interval
from router.refit import RefitVerdict, read_suite
from router.success import SuccessModel, shipped
from router.tier import NOMINAL, relative
from tests.router.test_off_policy import TERMS, beliefs, routed

PRICES = relative(NOMINAL)
NOT_DRAWN = msgspec.structs.replace(TERMS, explore=0.0)


def test_the_newest_third_decides_where_tiers_were_drawn() -> None:
    """A large tier that is far worse than believed is taken less often afterwards, whatever a suite of other tiers
    says."""
    old = beliefs(3000)
    true = np.column_stack([old[:, 0], old[:, 1], 0.3 * old[:, 2]])
    answers = routed(old, true)
    found = correct(shipped(), answers, [], read_suite(shipped()), PRICES)
    assert found.taught == 2000 and found.verdict is None
    assert found.gain is not None and found.gain.low > 0 and found.objection is None
    assert SuccessModel.read(found.content).metadata.corrected_by == 2000
    assert correct(shipped(), answers, [], read_suite(shipped()), PRICES) == found, "the same log gives the same model"


def test_what_is_not_clearly_better_is_not_used() -> None:
    old = beliefs(900)
    found = correct(shipped(), routed(old, old), [], read_suite(shipped()), PRICES)
    assert found.gain is not None and found.gain.low <= 0
    assert found.objection is not None and "better beyond chance" in found.objection


def test_the_suite_decides_where_nothing_was_drawn() -> None:
    old = beliefs(900)
    found = correct(shipped(), routed(old, 1 - old, NOT_DRAWN), [], read_suite(shipped()), PRICES)
    assert (found.taught, found.gain) == (900, None)
    assert found.verdict is not None and found.objection == "the new model is worse on the frozen suite"


@pytest.mark.parametrize("worse", [True, False])
def test_a_suite_of_the_same_tiers_must_agree(worse: bool) -> None:
    old = beliefs(900)
    found = correct(shipped(), routed(old, old), [], read_suite(shipped()), PRICES)
    area = Interval(-0.1, -0.2, -0.05) if worse else Interval(0.0, -0.1, 0.1)
    verdict = RefitVerdict(area, Interval(0.0, 0.0, 0.0))
    judged = msgspec.structs.replace(found, gain=Interval(0.1, 0.05, 0.2), verdict=verdict)
    assert (judged.objection is not None) is worse
