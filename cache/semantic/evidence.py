"""Tells from comparisons of answers whether enough of what is served is right. Pure.

The promise is about hits: of the answers that are served at most the share `max_wrong_hits` is wrong. It is kept by
evidence from the tenant's own traffic. A stored answer that might be served is first compared with a fresh one, and
comparisons are counted by band, the class of the model's bound on the probability that the answer fits. A band's
answers are served while the upper end of the interval of its wrong share is at most the promise; otherwise every one of
them is compared, which costs what a miss costs. While they are served, a share drawn by chance is still compared.

The interval is a confidence sequence: the shares that a mixture of likelihood ratios does not reject (Robbins, 1970).
It covers the true share at all times together with 95 % probability, so that looking at it after every comparison, and
serving from the first moment at which it allows that, does not weaken it.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

from msgspec import Struct

LEVEL = 0.05
"""Probability that the interval misses the true share at any time."""
_MEMORY = 40.0
"""Comparisons after which an old one counts 1/e, in units of 1 / `max_wrong_hits`: ten times what serving takes. What
the interval promises for all times holds for spans of that length."""


class Comparisons(Struct, frozen=True, array_like=True):
    """Comparisons of one band. Counts fade, so that they follow the traffic."""

    right: float = 0.0
    wrong: float = 0.0

    @property
    def total(self) -> float:
        return self.right + self.wrong

    @property
    def share(self) -> float:
        """Share of wrong ones; 0 before the first comparison."""
        return self.wrong / self.total if self.total else 0.0

    def interval(self, promise: float) -> tuple[float, float]:
        """Return the limits of the true share that hold at all times with 95 %.

        Args:
            promise: the share around which the interval is to be narrow.
        """

        def rejected(share: float) -> bool:
            return self.against(share, promise) >= math.log(1 / LEVEL)

        low = _edge(rejected, 0.0, self.share) if self.wrong else 0.0
        high = _edge(rejected, 1.0, self.share) if self.right else 1.0
        return low, high

    def against(self, share: float, promise: float) -> float:
        """Return the logarithm of the evidence against a true share: how much likelier the comparisons are under the
        mixture, whose shares are spread around the promise by a beta distribution."""
        a, b = 0.5, 0.5 / promise
        mixture = _log_beta(a + self.wrong, b + self.right) - _log_beta(a, b)
        if not 0 < share < 1:
            return math.inf
        return mixture - self.wrong * math.log(share) - self.right * math.log1p(-share)

    def after(self, correct: bool, promise: float) -> Comparisons:
        kept = math.exp(-promise / _MEMORY)
        return Comparisons(self.right * kept + correct, self.wrong * kept + (not correct))


class Evidence(Struct, frozen=True, kw_only=True):
    """All comparisons of one tenant that say something about what is served."""

    basis: str = ""
    """Embedder and model that they were made with; those of others say nothing."""
    bands: tuple[Comparisons, ...] = ()
    """By band, the least sure one first."""

    def of(self, band: int) -> Comparisons:
        return self.bands[band] if band < len(self.bands) else Comparisons()

    def on(self, basis: str) -> Evidence:
        """Return what counts for this embedder and model."""
        return self if self.basis == basis else Evidence(basis=basis)

    def after(self, band: int, correct: bool, promise: float) -> Evidence:
        """Return the evidence after one more comparison."""
        bands = [self.of(place) for place in range(max(band + 1, len(self.bands)))]
        bands[band] = bands[band].after(correct, promise)
        return Evidence(basis=self.basis, bands=tuple(bands))


class PromiseStanding(enum.StrEnum):
    """What the evidence says of a band."""

    KEPT = "kept"
    """At most the promised share is wrong: its answers are served."""
    UNPROVEN = "unproven"
    """Too few comparisons to tell."""
    BROKEN = "broken"
    """More than the promised share is wrong."""


class BandReport(Struct, frozen=True, kw_only=True):
    """What the evidence says of one band, for people."""

    bound: float
    """Least probability of being right, by the model, from which an answer belongs to the band."""
    compared: int
    wrong: int
    share: float
    """Share of wrong ones."""
    low: float
    high: float
    standing: PromiseStanding
    lacking: int
    """Right comparisons in a row after which the promise is kept; 0 if it is."""


def standing(compared: Comparisons, promise: float) -> PromiseStanding:
    """Return what comparisons say of a promise: kept if the interval's upper end is at most it, broken if the lower end
    is above it."""
    if compared.against(promise, promise) < math.log(1 / LEVEL):
        return PromiseStanding.UNPROVEN
    return PromiseStanding.KEPT if compared.share < promise else PromiseStanding.BROKEN


def report(evidence: Evidence, bounds: Sequence[float], promise: float) -> list[BandReport]:
    """Return what the evidence says of each band, the surest one first.

    Args:
        bounds: where the bands begin (`CorrectnessModel.bands`).
    """
    reports = []
    for band in reversed(range(len(bounds))):
        compared = evidence.of(band)
        low, high = compared.interval(promise)
        reports.append(
            BandReport(
                bound=bounds[band],
                compared=round(compared.total),
                wrong=round(compared.wrong),
                share=compared.share,
                low=low,
                high=high,
                standing=standing(compared, promise),
                lacking=lacking(compared, promise),
            )
        )
    return reports


def lacking(compared: Comparisons, promise: float) -> int:
    """Return how many right comparisons in a row are needed before answers are served."""

    def enough(number: int) -> bool:
        kept = math.exp(-number * promise / _MEMORY)
        added = (1 - kept) / -math.expm1(-promise / _MEMORY)
        return (
            standing(Comparisons(compared.right * kept + added, compared.wrong * kept), promise) is PromiseStanding.KEPT
        )

    most = 1
    while not enough(most - 1):
        most *= 2
    return bisect_left(range(most), True, key=enough)


def _edge(rejected: Callable[[float], bool], outside: float, inside: float) -> float:
    """Return where the interval ends, between a share outside and one inside it."""
    for _ in range(40):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if rejected(middle) else (outside, middle)
    return outside


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
