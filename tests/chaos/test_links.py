"""Links between processes that are held up, slowed down and cut."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.links import Link

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[Link]:
    """A link to a server that sends back what it gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1024):
                writer.write(data)
        writer.close()

    with tempfile.TemporaryDirectory(prefix="rh-") as folder:
        target = Path(folder, "target")
        async with await asyncio.start_unix_server(serve, target):
            link = Link(Path(folder, "link"), target)
            async with link.serving():
                yield link


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes) -> bytes:
    writer.write(words)
    return await reader.readexactly(len(words))


async def test_what_was_held_up_arrives_in_order() -> None:
    async with echo() as link:
        reader, writer = await asyncio.open_unix_connection(link.path)
        assert await say(reader, writer, b"before") == b"before"
        link.hold()
        writer.write(b"one ")
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        link.release()
        assert await reader.readexactly(7) == b"one two"
        writer.close()


async def test_a_cut_ends_connections_and_new_ones_are_refused_until_allowed() -> None:
    async with echo() as link:
        reader, writer = await asyncio.open_unix_connection(link.path)
        assert await say(reader, writer, b"before") == b"before"
        link.refuse(True)
        link.cut()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        refused, other = await asyncio.open_unix_connection(link.path)
        with contextlib.suppress(ConnectionError):
            assert await refused.read() == b""
        link.refuse(False)
        again, third = await asyncio.open_unix_connection(link.path)
        assert await say(again, third, b"after") == b"after"
        for each in (writer, other, third):
            each.close()


async def test_a_slow_link_loses_nothing() -> None:
    async with echo() as link:
        link.delay = 0.01
        reader, writer = await asyncio.open_unix_connection(link.path)
        words = bytes(range(256)) * 100
        assert await say(reader, writer, words) == words
        writer.close()
