"""Corrects a model of success by judged answers, and decides whether the result may replace it.

Where tiers were drawn now and then, the log itself decides (`router.off_policy`): two thirds of the judged answers
teach, and by the newest third, which the correction has not seen, it has to choose better beyond chance. A frozen suite
of the same tiers must agree (`router.refit`); where nothing was drawn, it decides alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from router.evaluation import Interval
from router.expense import Three
from router.off_policy import JudgedAnswer, gain
from router.refit import Opinion, Preference, RefitVerdict, Suite, judge, moves, refit
from router.success import SuccessModel, calibrated


class Correction(Struct, frozen=True):
    """A corrected model, and what was found of it."""

    content: bytes
    """The model's file."""
    taught: int
    """Number of opinions that it has learnt from."""
    gain: Interval | None
    """What it would have gained per request, by the newest third of the judged answers; None: nothing was explored."""
    verdict: RefitVerdict | None
    """Comparison on the frozen suite; None if that is of other tiers and the log has decided."""

    @property
    def objection(self) -> str | None:
        """What speaks against using it."""
        if self.gain is not None and self.gain.low <= 0:
            return "the new model would not have chosen better beyond chance"
        if self.verdict is not None and self.verdict.worse:
            return "the new model is worse on the frozen suite"
        return None


def correct(
    model: SuccessModel,
    answers: Sequence[JudgedAnswer],
    preferences: Sequence[Preference],
    suite: Suite,
    prices: Three,
) -> Correction:
    """Correct a model. Args: answers: the oldest first; prices: of a token at each tier, relative to the dearest's."""
    split = 2 * len(answers) // 3
    explored = any(answer.explored for answer in answers[split:])
    taught, kept = (answers[:split], answers[split:]) if explored else (answers, [])
    opinions = [
        Opinion(answer.choice.tier, answer.probabilities[answer.tier], answer.choice.propensity, answer.good)
        for answer in taught
    ]
    content = refit(model, opinions, preferences)
    found = None
    if kept:
        before = np.array([answer.probabilities for answer in kept], np.float32)
        after = calibrated(before, moves(opinions, preferences).astype(np.float32))
        found = gain(kept, after.astype(np.float64))
    carried = any(name.startswith("suite_") for name in model.arrays)
    verdict = judge(SuccessModel.read(content), model, suite, prices) if found is None or carried else None
    return Correction(content, len(opinions), found, verdict)
