"""Requests shared among the targets of a route, and the test that takes a bad target out.

**Split.** By a digest of route, tenant and conversation: all turns of a conversation go to the same target, on every
gateway, and more weight for a target moves conversations to it only.

**Test.** A canary of weight c beside a stable target of weight s gets every request with probability c / (c + s),
whatever becomes of it. If the canary fails as often as the stable one, then of the requests that *fail* the same share
must be the canary's, however rare or frequent failures are. Only failures are counted therefore, and the test is exact:
the likelihood of their shares if the canary fails `ratio` times as often, over the likelihood if it does not fail more
often than `tolerance` times, averaged over several ratios. That is a mixture sequential probability ratio test
(Robbins, 1970; Johari et al., "Peeking at A/B tests", KDD 2017). If the canary is no worse, the chance that the
evidence ever reaches 1 / alpha is at most alpha, however often one looks (Ville's inequality).

Failures of one conversation are not independent. Whoever counts should count each conversation once.

Pure.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

RATIOS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Failure ratios between a bad canary and the stable target that the test looks for."""


class CanarySignal(enum.StrEnum):
    """A way in which an answer can fail."""

    ERROR = "error"
    """No answer came."""
    SLOW = "slow"
    """The first token came too late."""
    POOR = "poor"
    """The answer was empty."""


class WeightedTarget(Struct, frozen=True):
    """A target of a route and its weight."""

    model: str
    weight: int


class Failures(Struct, frozen=True):
    """Number of conversations with a failure of one kind, at the canary and at the stable target."""

    stable: int = 0
    canary: int = 0


class CanaryRule(Struct, frozen=True, kw_only=True):
    """The conditions under which a canary is taken out."""

    alpha: float = 0.01
    """Probability that a canary that is no worse is ever taken out, over all signals together."""
    tolerance: float = 1.0
    """Ratio of failures up to which a canary is not worse than the stable target."""
    least: int = 5
    """Failures of the canary that must have happened before anything is decided."""


class CanaryVerdict(Struct, frozen=True):
    """Whether a canary is taken out, and the evidence."""

    out: bool
    signal: CanarySignal | None
    """The signal with the most evidence against the canary."""
    evidence: float
    """Likelihood ratio of the failures if the canary is worse; at `threshold` it is taken out."""
    threshold: float


def split(route: str, tenant: str, conversation: bytes, shares: Sequence[WeightedTarget]) -> str | None:
    """Choose the target of a conversation; None if no target has a weight."""
    total = sum(share.weight for share in shares)
    if total == 0:
        return None
    digest = hashlib.blake2b(digest_size=8, person=b"rh canary")
    for part in (route.encode(), tenant.encode(), conversation):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    point = int.from_bytes(digest.digest(), "little") / 2**64 * total
    for share in shares:
        point -= share.weight
        if point < 0:
            return share.model
    return next(share.model for share in reversed(shares) if share.weight)  # the sum of floats fell short


def judge(canary: int, stable: int, failures: Mapping[CanarySignal, Failures], rule: CanaryRule) -> CanaryVerdict:
    """Decide whether a canary is taken out.

    Args:
        canary, stable: the weights that the two have had all the time. Both are above 0 if there are failures.
    """
    threshold = len(CanarySignal) / rule.alpha
    worst, most = None, 0.0
    for signal, counted in failures.items():
        found = evidence(canary / (canary + stable), counted, rule.tolerance)
        if found > most:
            worst, most = signal, found
    out = worst is not None and most >= threshold and failures[worst].canary >= rule.least
    return CanaryVerdict(out, worst, most, threshold)


def evidence(share: float, failures: Failures, tolerance: float = 1.0) -> float:
    """Return the likelihood ratio of these failures if the canary is worse.

    Args:
        share: of the requests to both that are the canary's.
        tolerance: how many times as often it may fail without being worse.
    """
    expected = _share_of_failures(share, tolerance)
    logs = []
    for ratio in RATIOS:
        worse = _share_of_failures(share, tolerance * ratio)
        logs.append(
            failures.canary * math.log(worse / expected) + failures.stable * math.log((1 - worse) / (1 - expected))
        )
    largest = max(logs)
    return math.exp(min(largest, 700.0)) * sum(math.exp(log - largest) for log in logs) / len(logs)


def _share_of_failures(share: float, ratio: float) -> float:
    """The canary's share of all failures if it fails `ratio` times as often."""
    return share * ratio / (share * ratio + 1 - share)
