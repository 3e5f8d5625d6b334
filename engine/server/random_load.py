"""Steps as they come under load: requests of random lengths are served, many or few at the same time.

A step between others takes longer than one of a row of like steps: it finds other memory in the processor's caches,
requests were accepted before it, and whatever else the machine does comes in between.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from engine.cache.blocks import BLOCK_SIZE
from engine.core import EngineCore
from engine.plan import StepPlan
from engine.scheduling.work import WorkTally
from engine.step_times import StepWork, TimedStep
from engine.wire import Generate

_PROMPT, _ANSWER = (16, 512), (4, 64)
"""Fewest and most tokens of prompts, and of answers, in the mean of a load."""


class _Observed(WorkTally):
    """Remembers what the last step did."""

    last: StepWork | None = None

    def ran(self, plan: StepPlan, seconds: float) -> None:
        super().ran(plan, seconds)
        self.last = plan.work


def random_load(
    core: EngineCore,
    clock: Callable[[], float],
    generate: Callable[[int, int], Generate],
    chance: random.Random,
    seconds: float,
) -> Iterator[TimedStep]:
    """Serve for so many seconds; each step's are those since the end of the one before, but for making requests.

    How many requests run at the same time and how long they are in the mean is drawn first; whenever one has ended
    another comes. The core has to be idle, and is afterwards.

    Args:
        generate: makes a request with so many tokens of prompt and answer.
    """
    config = core.config
    tally, core.work = core.work, (observed := _Observed())
    most = min(core.model.context, config.blocks * BLOCK_SIZE) // 2 - 1
    running, prompt, answer = (_between(chance, low, high) for low, high in ((1, config.max_running), _PROMPT, _ANSWER))
    live: set[str] = set()
    try:
        while seconds > 0:
            requests = [
                generate(*(min(most, 1 + int(chance.expovariate(1 / mean))) for mean in (prompt, answer)))
                for _ in range(round(running) - len(live))
            ]
            began = clock()
            for request in requests:
                core.add(request)
                live.add(request.id)
            observed.last = None
            outputs = core.step()
            spent = clock() - began
            seconds -= spent
            if observed.last is not None:
                yield TimedStep(observed.last, spent, under_load=True)
            live -= {output.id for output in outputs if output.finish}
    finally:
        core.work = tally
        for id in live:
            core.cancel(id)
        core.step()


def _between(chance: random.Random, low: float, high: float) -> float:
    """Draw a number whose logarithm is as likely anywhere between both."""
    return math.exp(chance.uniform(math.log(low), math.log(high)))
