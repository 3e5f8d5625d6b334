"""Measures the error of served answers, and acts on it. Pure.

Some look-ups that would have been served are answered by the model instead, by chance, and the two answers compared.
Weighted by the inverse of that chance (Horvitz and Thompson), those checks estimate without bias how many look-ups are
answered wrongly. Two things follow. Wrong checks make the cache stricter and look-ups without one a little less so, by
the step of adaptive conformal inference (Gibbs and Candes, 2021), but never laxer than it was calibrated. And if even
the lower limit of the estimate lies above the bound, the cache serves nothing until fresh checks clear it.
"""

from __future__ import annotations

import enum
import math

from msgspec import Struct, structs


class Mode(enum.StrEnum):
    ON = "on"
    EXACT_ONLY = "exact_only"


class Estimate(Struct, frozen=True):
    """The share of look-ups that are answered wrongly, with an interval."""

    error: float
    low: float
    high: float


class Control(Struct, frozen=True, kw_only=True):
    """Constants by which the monitor acts."""

    step: float = 0.005
    """Logits of strictness per wrong answer above the bound."""
    most: float = 6.0
    """The highest strictness."""
    memory: float = 20_000.0
    """Number of look-ups after which an old one counts 1/e."""
    wrong: int = 3
    """Wrong checks that must have happened before it trips: one mistake early on says little."""
    z: float = 3.29
    """Standard deviations between estimate and limit at which it trips: many, because it is tested after every
    check."""
    recover: int = 50
    """Checks in exact-only mode before it may serve again."""


class Monitor(Struct, frozen=True, kw_only=True):
    """The measured error of a scope (a tenant's partition). Sums fade, so that it follows the traffic."""

    mode: Mode = Mode.ON
    strictness: float = 0.0
    checks: int = 0
    """Checks since the last change of mode; the next field counts likewise."""
    wrong_checks: int = 0
    look_ups: float = 0.0
    weight: float = 0.0
    """Sum of 1/propensity over all checks."""
    wrong: float = 0.0
    """Sum of 1/propensity over checks that found a wrong answer: an estimate of how many were or would have been
    served."""
    squares: float = 0.0
    """Sum of 1/propensity^2 over checks that found a wrong answer."""

    @property
    def tripped(self) -> bool:
        """Whether nothing is served until fresh checks clear it."""
        return self.mode is Mode.EXACT_ONLY

    def estimate(self, z: float = 1.96) -> Estimate:
        """The error per look-up, with the score interval of a Poisson count (by default 95 %)."""
        if self.look_ups <= 0 or self.weight <= 0:
            return Estimate(0.0, 0.0, 1.0)
        # Wrong answers come in units of what one check stands for.
        unit = self.squares / self.wrong if self.wrong else self.weight / self.checks
        count = self.wrong / unit
        middle, half = count + z * z / 2, z * math.sqrt(count + z * z / 4)
        low, high = (max(0.0, limit * unit / self.look_ups) for limit in (middle - half, middle + half))
        return Estimate(min(1.0, self.wrong / self.look_ups), min(1.0, low), min(1.0, high))


def after_check(
    monitor: Monitor, *, correct: bool, propensity: float, look_ups: int, delta: float, control: Control
) -> Monitor:
    """The monitor after a check of a look-up that would have been served (`Decision.would_serve`).

    Args:
        propensity: with what probability it was checked.
        look_ups: how many there were since the check before, this one included.

    Raises:
        ValueError: the propensity is no probability above 0, or there was no look-up.
    """
    if not 0 < propensity <= 1:
        raise ValueError(f"a propensity lies in (0, 1], not {propensity}")
    if look_ups < 1:
        raise ValueError(f"a check is of a look-up; {look_ups} were counted")
    weight, kept = 1 / propensity, math.exp(-look_ups / control.memory)
    wrong = 0.0 if correct else weight
    strictness = monitor.strictness + control.step * (wrong - delta * look_ups)
    after = structs.replace(
        monitor,
        strictness=min(control.most, max(0.0, strictness)),
        checks=monitor.checks + 1,
        wrong_checks=monitor.wrong_checks + (not correct),
        look_ups=monitor.look_ups * kept + look_ups,
        weight=monitor.weight * kept + weight,
        wrong=monitor.wrong * kept + wrong,
        squares=monitor.squares * kept + wrong * weight,
    )
    if after.mode is Mode.ON and after.wrong_checks >= control.wrong and after.estimate(control.z).low > delta:
        # Evidence from before the trip would keep it tripped for long: what counts from now on is how it is now.
        return Monitor(mode=Mode.EXACT_ONLY, strictness=after.strictness)
    if after.mode is Mode.EXACT_ONLY and after.checks >= control.recover and after.estimate().error <= delta:
        return reset(after)
    return after


def reset(monitor: Monitor) -> Monitor:
    """Serve again after an operator has removed the cause. Strictness stays, checks are forgotten."""
    return Monitor(strictness=monitor.strictness)
