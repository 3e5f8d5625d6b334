"""How hard a request is, from 0 to 1, with reasons that a person can read.

Every sign of difficulty is a number in [0, 1] with a weight; they combine as independent evidence ("noisy or"):
`score = 1 - product(1 - weight * sign)`. One strong sign suffices, weak ones add up, nothing can push the score out of
its range, and each sign's contribution is what it added to those before it, so that contributions sum to the score.
The weights are judgement, checked against real questions in `bench/router.py`; a learnt head will replace them.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from router.features import Features


class Reason(Struct, frozen=True):
    """One sign of difficulty, and what it added to the score."""

    sign: str
    contribution: float
    sentence: str


class Complexity(Struct, frozen=True):
    """A score in [0, 1] and its reasons, largest contribution first."""

    score: float
    reasons: tuple[Reason, ...]


def _saturating(half: float) -> Callable[[float], float]:
    """x -> x / (x + half): 0 at 0, one half at `half`, below 1 always."""
    return lambda x: x / (x + half)


def _arithmetic(features: Features) -> float:
    """Arithmetic as a sign: numbers alone are data; with operators they are a calculation, and each further number
    another step."""
    if features.operators == 0 or features.numbers < 2:
        return 0.0
    return min(1.0, 0.45 + 0.2 * (features.numbers - 2) + 0.1 * (features.operators - 1))


_HALF = _saturating(1.0)
_SIGNS: tuple[tuple[str, float, Callable[[Features], float], str], ...] = (
    ("reasoning", 0.60, lambda f: _HALF(2 * f.reasons), "asks for an explanation or comparison"),
    ("arithmetic", 0.70, _arithmetic, "contains a calculation"),
    ("code", 0.45, lambda f: _HALF(f.code), "contains code"),
    ("production", 0.40, lambda f: _HALF(f.produces), "wants something written or worked out"),
    ("procedure", 0.35, lambda f: _HALF(f.procedure), "asks how to do something"),
    ("constraints", 0.35, lambda f: _saturating(2.0)(f.constraints), "sets conditions"),
    ("parts", 0.35, lambda f: _saturating(2.0)(f.parts + max(0, f.questions - 1)), "has several parts"),
    ("length", 0.50, lambda f: _saturating(60.0)(f.words), "its length"),
    ("terms", 0.35, lambda f: _saturating(4.0)(f.terms), "uses technical terms"),
    ("question", 0.20, lambda f: float(f.asks), "is a question"),
    ("history", 0.25, lambda f: _saturating(400.0)(f.history_words), "continues a conversation"),
)


def score(features: Features) -> Complexity:
    """Compute the complexity of a conversation with these features."""
    remaining = 1.0
    reasons = []
    for sign, weight, value, sentence in _SIGNS:
        evidence = weight * value(features)
        if evidence > 0:
            reasons.append(Reason(sign, remaining * evidence, sentence))
            remaining *= 1.0 - evidence
    reasons.sort(key=lambda reason: reason.contribution, reverse=True)
    return Complexity(score=1.0 - remaining, reasons=tuple(reasons))
