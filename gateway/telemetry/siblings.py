"""The gateway processes of one `serve`: each has a Unix socket of its own beside the port that all share."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec import Struct

PATIENCE = 2.0
"""Seconds within which a process must answer."""


class Siblings(Struct, frozen=True):
    """All processes, and which of them this one is."""

    sockets: dict[int, Path]
    """Own socket of each process, by its number."""
    number: int
    """This process's."""

    async def pages(self, path: str, accept: str) -> dict[int, bytes]:
        """Return what each process answers at `path`, in which `{}` stands for its number; without those that do not.

        Args:
            accept: header of the requests.
        """
        numbers = sorted(self.sockets)
        answers = await asyncio.gather(
            *(fetch(self.sockets[number], path.format(number), accept) for number in numbers), return_exceptions=True
        )
        return {
            number: answer[1]
            for number, answer in zip(numbers, answers, strict=True)
            if not isinstance(answer, BaseException) and answer[0] == 200
        }


async def fetch(socket: Path, path: str, accept: str = "*/*") -> tuple[int, bytes]:
    """GET a path of the process with this socket; return the status and the body.

    Raises:
        OSError, TimeoutError: it does not answer.
    """
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        try:
            request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
            writer.write(request.encode("latin-1"))
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    words = head.split(maxsplit=2)
    if len(words) < 2:
        raise ConnectionResetError(f"{socket}: no answer")
    return int(words[1]), body
