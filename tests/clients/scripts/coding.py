"""What the scripts of coding agents share: a small task in an empty folder, and whether it was done."""

import os
import subprocess
from pathlib import Path

from checks import check, run

TASK = "Create a file hello.txt in the current folder. Its only content is the word hello. Then stop."
INSTRUCTIONS = (
    "You are a coding agent. Do what the user asks by calling your functions; then say in a sentence what you did."
)
"""Stands in for an agent's own instructions of thousands of tokens, with which a small model writes about its functions
instead of calling one."""
_SECONDS = 900


def perform(*command: str, **variables: str) -> None:
    """Let an agent do the task, and check that it ends of itself and has done it."""

    @check
    def runs_to_its_end() -> None:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **variables}
        )
        assert done.returncode == 0, f"exit status {done.returncode}: {(done.stdout + done.stderr)[-300:]}"

    @check
    def does_the_task() -> None:
        assert Path("hello.txt").read_text().strip() == "hello"

    run(seconds=_SECONDS)
