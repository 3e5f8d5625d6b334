"""The mailboxes by which gateways talk about turns: one Redis stream per gateway, which it alone reads.

What is sent is bounded in number and time; a gateway that does not read loses messages, which whoever waits for an
answer notices. Reading blocks a connection of its own, so that no command ever waits behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.storage.seal import BrokenSeal, Seal
from gateway.turns.messages import GatewayMessage, decode_message, encode

log = logging.getLogger("roundhouse.turns")

INBOX_KEY = "rh1:gateway-inbox:{id}"
MAX_UNREAD = 4096
"""Number of unread messages that a mailbox keeps, approximately."""
LIFETIME = 30
"""Seconds after the last message at which a mailbox expires."""
BLOCK = 2.0
"""Seconds that one read waits for a message; far below `gateway.turns.following.ANSWER_TIMEOUT`, because a read that
began before Redis' clock was set back sees nothing until it ends."""
READ_TIMEOUT = 10.0
"""Seconds after which a read on the reader's connection has failed."""


class Mailbox:
    """Reads this gateway's messages and sends messages to other gateways."""

    def __init__(self, redis: Redis, reader: Redis, id: str, seal: Seal) -> None:
        """Args: reader: a client for reads that wait, whose timeout is `READ_TIMEOUT`; its maker closes it."""
        self.id = id
        self._redis = redis
        self._reader = reader
        self._seal = seal
        self._stopping = False

    def stop(self) -> None:
        """Stop reading. Cancel `run` too: a flag alone does not end a read, and redis-py may swallow a cancellation."""
        self._stopping = True

    async def send(self, gateway: str, message: GatewayMessage) -> None:
        """Send a message to a gateway's mailbox.

        Raises:
            RedisError, OSError: Redis does not answer; it may have been left all the same.
        """
        inbox = INBOX_KEY.format(id=gateway)
        sealed = self._seal.seal(encode(message), inbox)
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.xadd(inbox, {"m": sealed}, maxlen=MAX_UNREAD, approximate=True)
            pipeline.expire(inbox, LIFETIME)
            await pipeline.execute()

    async def run(self, handle: Callable[[GatewayMessage], None]) -> None:
        """Read and handle messages in their order until `stop`."""
        inbox, last = INBOX_KEY.format(id=self.id), b"0"
        while not self._stopping:
            try:
                found = await self._reader.xread({inbox: last}, count=256, block=int(1000 * BLOCK))
                batches = cast("list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]", found)
                for _, entries in batches:
                    for last, fields in entries:  # noqa: B007  where the next read goes on
                        self._deliver(fields, inbox, handle)
                    await self._redis.xdel(inbox, *(entry for entry, _ in entries))
                if not batches:
                    last = b"0"  # an inbox that is made anew after Redis' clock was set back begins with lower ids
            except (RedisError, OSError) as error:
                log.warning("inbox not read", extra={"error": type(error).__name__})
                await asyncio.sleep(0.5)

    async def aclose(self) -> None:
        """Delete the mailbox: nobody reads it any more."""
        with contextlib.suppress(RedisError, OSError):  # it goes by itself too
            await self._redis.delete(INBOX_KEY.format(id=self.id))

    def _deliver(self, fields: dict[bytes, bytes], inbox: str, handle: Callable[[GatewayMessage], None]) -> None:
        try:
            handle(decode_message(self._seal.open(fields[b"m"], inbox)))
        except (BrokenSeal, msgspec.MsgspecError) as error:
            log.warning("a message cannot be read", extra={"error": type(error).__name__})
        except Exception:
            log.exception("a message was not handled")
