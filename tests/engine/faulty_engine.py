"""`python -m tests.engine.faulty_engine`: an engine whose runner fails when the first token of a prompt says so."""

from __future__ import annotations

import threading

from engine.execution import runner
from engine.execution.readout import LaunchedStep
from engine.plan import StepPlan, TokenMasks

POISON, FATAL, ENDLESS = 301, 302, 303
"""Prompts' first tokens that fail their own steps, that fail every step from then on, as after most errors of a GPU,
and whose step never ends."""


class FaultyRunner(runner.ModelRunner):
    """A model on a device that can be lost."""

    _lost = False

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> LaunchedStep:
        first = {row.request.prompt[0] for row in plan.rows}
        if POISON in first:
            raise ValueError("nobody can run this")
        if ENDLESS in first:
            threading.Event().wait()
        self._lost |= FATAL in first
        if self._lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().launch(plan, masks)


if __name__ == "__main__":
    runner.ModelRunner = FaultyRunner  # type: ignore[misc]
    from engine.server.command import main

    main()
