"""What the Python scripts of this folder share: where the server is, and one line of JSON for each check."""

import asyncio
import inspect
import json
import os
import signal
import traceback
from collections.abc import Callable

URL = os.environ["ROUNDHOUSE_URL"]
API = f"{URL}/v1"
KEY = os.environ["ROUNDHOUSE_KEY"]
MODEL = os.environ["ROUNDHOUSE_MODEL"]
EMBEDDING_MODEL = os.environ["ROUNDHOUSE_EMBEDDING_MODEL"]
"""None: there is nothing to check embeddings with."""

QUESTION = "What is Roundhouse?"
TOO_LONG = "word " * 40_000
"""Fits no model's context."""
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Berlin", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Arguments of a function: whatever a model makes of them, they are valid."""

_checks: list[Callable[[], object]] = []


def check(function: Callable[[], object]) -> None:
    """Make a function a check, which fails when it raises."""
    _checks.append(function)


def run(seconds: int = 60) -> None:
    """Run all checks in their order, and print what came of them; one that takes longer than `seconds` fails."""
    signal.signal(signal.SIGALRM, _too_long)
    for function in _checks:
        detail = ""
        signal.alarm(seconds)
        try:
            result = function()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except Exception as error:
            detail = _told(error)
        finally:
            signal.alarm(0)
        name = function.__name__.replace("_", " ")
        print(json.dumps({"name": name, "ok": not detail, "detail": detail}), flush=True)


def _too_long(*_: object) -> None:
    raise TimeoutError("it takes too long")


def _told(error: Exception) -> str:
    """The error in a line, with the line of the script that raised it."""
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if "/scripts/" in frame.filename]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} (at: {lines[-1] if lines else 'its library'})"
