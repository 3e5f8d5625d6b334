"""The mailbox of one gateway and the client of Redis that it reads with."""

from __future__ import annotations

from typing import Any, cast

import pytest
from redis.asyncio import Redis

from gateway.turns.mailbox import Mailbox

pytestmark = pytest.mark.anyio


async def test_its_end_leaves_the_reader_connected(redis_url: str) -> None:
    """Others read with it too, and are still to be ended themselves."""
    async with Redis.from_url(redis_url) as redis, Redis.from_url(redis_url) as reader:
        before = await reader.client_id()
        await Mailbox(redis, reader, "one", cast(Any, None)).aclose()
        assert await reader.client_id() == before
