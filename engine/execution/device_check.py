"""Tells a request that fails its own step from a device on which every step fails.

An error of a GPU may stay for as long as the process lives: every step fails after it, and an engine that went on would
look idle and healthy. So a step that fails is followed by one of the engine's own, a single token through the whole
model, whose result is read back. If that runs, the failure was the requests' own. If not, and not again either, only a
fresh process can serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.cache.blocks import BlockPool
from engine.plan import Row, Runner, StepPlan
from engine.request import Request
from engine.wire import SamplingParams

logger = logging.getLogger(__name__)

MOST_FAILED = 3
"""Failed steps in a row, the engine's own included, after which the device counts as lost."""


class DeviceLost(Exception):
    """The device does not compute any more; the process has to end."""


class DeviceCheck:
    """Counts steps that fail in a row. `clear` makes blocks ready that were just allocated from the `pool`."""

    def __init__(self, runner: Runner, pool: BlockPool, clear: Callable[[], None]) -> None:
        self.failed = 0
        """Number of failed steps since the last one that ran."""
        self._runner = runner
        self._pool = pool
        self._clear = clear

    def passed(self) -> None:
        """Record that a step has run."""
        self.failed = 0

    def suspect(self) -> None:
        """Run a step of the engine's own after a failure on the device, whose requests have given back their blocks.

        Raises:
            DeviceLost: the device does not compute.
        """
        self.failed += 1
        while self._pool.available:
            try:
                self._probe()
            except Exception as error:
                self.failed += 1
                logger.warning("a step of one token of the engine's own failed too: %s", error)
                if self.failed >= MOST_FAILED:
                    message = f"the device does not compute any more: {self.failed} steps in a row failed"
                    logger.critical("%s; this process ends, so that a fresh one can take its place", message)
                    raise DeviceLost(message) from error
            else:
                return self.passed()

    def _probe(self) -> None:
        request = Request("", [0], SamplingParams(max_tokens=1, temperature=0.0), arrival=0.0)
        request.block_table = self._pool.allocate(1)
        try:
            self._clear()
            (sampled,) = self._runner.launch(StepPlan([Row(request, 0, 1, sample=True)])).result()
            if len(sampled.tokens) != 1:
                raise RuntimeError(f"one token was expected of it, not {len(sampled.tokens)}")
        finally:
            self._runner.release(request)
            self._pool.release(request.block_table)
