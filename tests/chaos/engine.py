"""`python -m tests.chaos.engine`: an engine whose steps hang or fail while the file that `HARM` names says so."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from engine.execution import runner
from engine.execution.readout import LaunchedStep
from engine.plan import StepPlan, TokenMasks

HARM = "CHAOS_HARM"
"""Environment variable with the path of the file."""
HANG, FAIL = "hang", "fail"
"""What may stand in it."""


class HarmedRunner(runner.ModelRunner):
    """A model on a device that can be harmed from outside."""

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> LaunchedStep:
        harm = Path(os.environ[HARM])
        if harm.exists():
            match harm.read_text():
                case "hang":
                    threading.Event().wait()
                case "fail":
                    raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return super().launch(plan, masks)


if __name__ == "__main__":
    runner.ModelRunner = HarmedRunner  # type: ignore[misc]
    from engine.server.command import main

    main()
