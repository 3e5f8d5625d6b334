"""The measured error of what is served, and what follows from it. Pure.

Some look-ups that would have been served are answered by the model instead, by chance, and the two answers compared.
Weighted by the inverse of that chance (Horvitz and Thompson), those checks estimate without bias how many served
answers are wrong. Two things follow. Each wrong check makes the cache stricter and each right one a little less so,
by the step of adaptive conformal inference (Gibbs and Candes, 2021), never below what was calibrated. And if even the
lower end of the estimate's interval lies above the bound, the cache serves nothing any more until fresh checks clear
it.
"""

from __future__ import annotations

import enum
import math

from msgspec import Struct, structs


class Mode(enum.StrEnum):
    ON = "on"
    EXACT_ONLY = "exact_only"


class Estimate(Struct, frozen=True):
    """The share of wrong answers among those served, with a 95 % interval."""

    error: float
    low: float
    high: float
    checks: int


class Control(Struct, frozen=True, kw_only=True):
    """How the monitor acts."""

    step: float = 0.5
    """Logits of strictness per unit of error above the bound."""
    most: float = 6.0
    """The highest strictness."""
    memory: float = 500.0
    """Checks after which an old one counts 1/e."""
    recover: int = 50
    """Checks in exact-only mode before it may serve again."""


class Monitor(Struct, frozen=True, kw_only=True):
    """What is known of a scope (a tenant's partition); kept with it. Sums fade, so that it follows the traffic."""

    mode: Mode = Mode.ON
    strictness: float = 0.0
    checks: int = 0
    """Since the last change of mode."""
    weight: float = 0.0
    """Sum of 1/propensity."""
    wrong: float = 0.0
    """The same of the checks that found a wrong answer."""
    squares: float = 0.0
    """Sum of 1/propensity^2."""

    def estimate(self) -> Estimate:
        """The error per served answer: Wilson's interval at the effective number of checks (Kish)."""
        if self.weight <= 0:
            return Estimate(0.0, 0.0, 1.0, 0)
        size = self.weight**2 / self.squares
        low, high = wilson(self.wrong / self.weight * size, size)
        return Estimate(self.wrong / self.weight, low, high, self.checks)


def after_check(monitor: Monitor, *, correct: bool, propensity: float, delta: float, control: Control) -> Monitor:
    """The monitor after a check of a look-up that would have been served (`Decision.would_serve`).

    Raises:
        ValueError: the propensity is no probability above 0.
    """
    if not 0 < propensity <= 1:
        raise ValueError(f"a propensity lies in (0, 1], not {propensity}")
    weight, kept = 1 / propensity, math.exp(-1 / control.memory)
    strictness = monitor.strictness + control.step * ((0.0 if correct else 1.0) - delta)
    after = structs.replace(
        monitor,
        strictness=min(control.most, max(0.0, strictness)),
        checks=monitor.checks + 1,
        weight=monitor.weight * kept + weight,
        wrong=monitor.wrong * kept + (0.0 if correct else weight),
        squares=monitor.squares * kept**2 + weight**2,
    )
    estimate = after.estimate()
    if after.mode is Mode.ON and estimate.low > delta:
        # Evidence from before the trip would keep it tripped for long: what counts from now on is how it is now.
        return Monitor(mode=Mode.EXACT_ONLY, strictness=after.strictness)
    if after.mode is Mode.EXACT_ONLY and after.checks >= control.recover and estimate.error <= delta:
        return structs.replace(after, mode=Mode.ON, checks=0)
    return after


def reset(monitor: Monitor) -> Monitor:
    """Serve again: an operator has found and removed the cause. Strictness stays, checks are forgotten."""
    return Monitor(strictness=monitor.strictness)


def wilson(successes: float, trials: float, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share; by default 95 %, both sides."""
    if trials <= 0:
        return 0.0, 1.0
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)
