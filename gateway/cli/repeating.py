"""Requests to a running gateway that are repeated until there is an answer, and files that keep a line of each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import httpx2

ATTEMPTS = 12
"""Attempts in a row at one question."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts, at most."""
NO_ROOM = "context_length_exceeded"
_AGAIN = (429, 502, 503, 504)
"""Statuses after which the same request may succeed."""
T = TypeVar("T")


class AskError(Exception):
    """A pool cannot be asked; the message says why and what to do."""


class GatewayRefused(Exception):
    """The gateway refuses a request for good."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class NoAnswer(Exception):
    """No attempt brought an answer; the message is that of the last one."""


async def posted(
    client: httpx2.AsyncClient,
    path: str,
    body: Any,
    wrong: Callable[[httpx2.Response], str | None] = lambda response: None,
) -> tuple[httpx2.Response, float]:
    """Post until there is an answer that is not `wrong`; return it, and the seconds that it took.

    Raises:
        GatewayRefused, NoAnswer: there is none.
    """
    pause, said = 0.0, ""
    for attempt in range(1, ATTEMPTS + 1):
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, random.uniform(0.25, 0.5) * 2**attempt)
        begun = monotonic()
        try:
            response = await client.post(path, json=body)
        except httpx2.HTTPError as error:
            said = f"{type(error).__name__} {error}".strip()
            continue
        if response.status_code == 200:
            if (why := wrong(response)) is None:
                return response, monotonic() - begun
            said = why
            continue
        said, code = error_of(response)
        if response.status_code not in _AGAIN:
            raise GatewayRefused(said, code)
        pause = max(pause, min(LONGEST_PAUSE, _seconds(response.headers.get("retry-after"))))
    raise NoAnswer(said)


async def together(work: Iterable[Coroutine[Any, Any, T]], most: int) -> AsyncIterator[T]:
    """Yield the results of work as they come, of which at most so much is done at the same time."""
    waiting, running = iter(work), set[asyncio.Task[T]]()
    try:
        while True:
            while len(running) < most and (each := next(waiting, None)) is not None:
                running.add(asyncio.create_task(each))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()


def read_lines(path: Path, read: Callable[[bytes], T]) -> T:
    """Read a file of lines, which may not be there yet; what was being written when a run was killed is cut off.

    Raises:
        ValueError: of `read`, with the file's name; then nothing is cut off.
        OSError: it cannot be read.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    try:
        found = read(content[:whole])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    return found


def error_of(response: httpx2.Response) -> tuple[str, str]:
    """Return message and code of an error."""
    try:
        error = response.json()["error"]
        return str(error["message"]), str(error["code"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}", ""


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0
