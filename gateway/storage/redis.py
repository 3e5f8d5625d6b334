"""A Redis client that sends what many tasks ask for in the same instant as one pipeline, on one connection of its own.

A command costs redis-py more than 100 µs of this process: a connection taken and given back, a task and a timeout for
the write, a timeout for the read. A busy gateway has dozens of turns that ask for something while Redis still answers
the last ones; together they cost little more than one of them. A task that is cancelled meanwhile takes nothing away
from the others, and never leaves a reply behind that another one could mistake for its own: the pipeline runs to its
end in a task of its own.

redis-py documents clients and pipelines, but no way to use a connection: this file alone depends on its `Connection`,
and on how a client reads an answer from one. `tests/test_internals.py` fails when they move.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic
from typing import Any, cast

import hiredis
from redis.asyncio import Connection, Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, DataError, RedisError, ResponseError, TimeoutError

from gateway.storage.patience import Patience

MAX_BATCH = 128
"""Most commands of one pipeline; more go in a second one after it."""

CONNECT_TIMEOUT = 1.0
"""Seconds that making a connection may take, greetings included, unless `socket_connect_timeout` says otherwise."""

# fmt: off
_BLOCKING = frozenset(
    {
        "BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "WAIT", "XREAD",
        "XREADGROUP",
    }
)
"""Commands that may wait in Redis; they are never sent in a batch, where others would wait with them."""

_READS = frozenset(
    {
        "EXISTS", "EXPIRETIME", "GET", "GETRANGE", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HVALS",
        "LINDEX", "LLEN", "LRANGE", "MGET", "PEXPIRETIME", "PING", "PTTL", "SCARD", "SISMEMBER", "SMEMBERS",
        "SMISMEMBER", "STRLEN", "TIME", "TTL", "TYPE", "VSIM", "XINFO", "XLEN", "XRANGE", "XREVRANGE", "ZCARD",
        "ZCOUNT", "ZLEXCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZRANK", "ZREVRANGE", "ZREVRANK",
        "ZSCORE",
    }
)
# fmt: on
"""Commands that change nothing, and may be sent again when nobody knows whether they were carried out. For any other
the caller gets the error of the lost connection: a second time might use up another ticket, or count twice."""

_Waiting = tuple[str, bytes, dict[str, Any], asyncio.Future[Any]]
"""A waiting command: its name, its packed bytes, redis-py's options for its answer, and the answer's future."""


def _packed(name: str, *args: Any) -> bytes:
    """Pack a command in Redis' protocol, in C: asyncio connections of redis-py do it in Python.

    Raises:
        DataError: an argument has a type that Redis does not know.
    """
    try:
        packed: bytes = hiredis.pack_command((*name.encode().split(), *args))
    except TypeError as error:
        raise DataError(str(error)) from error
    return packed


def _packing(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return a kind of connection whose pipelines are packed in C too."""
    return type(kind.__name__, (kind,), {"pack_command": lambda _, *words: [_packed(*words)]})


class BatchingRedis(Redis):
    """`redis.asyncio.Redis` whose single commands are batched; pipelines, transactions and subscriptions are not.

    While one batch is under way, the next is collected. `socket_timeout` bounds a batch as a whole, and grows with its
    commands; what this process itself is late by does not count (`Patience`). After a timeout nobody waits longer than
    that for a new connection, and while one is being made commands fail at once.
    """

    observe: Callable[[float, bool], None] | None = None
    """Called after every round trip with its seconds and whether it failed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None
        self.connection_pool.connection_class = _packing(self.connection_pool.connection_class)
        settings = self.connection_pool.connection_kwargs
        self._timeout: float | None = settings.get("socket_timeout")
        self._connect_timeout: float = settings.get("socket_connect_timeout") or CONNECT_TIMEOUT
        # redis-py's own timeouts are a task for every write and a timer for every reply, and measure this process too.
        unbounded = settings | {"socket_timeout": None, "socket_connect_timeout": None}
        self._line = cast(Connection, self.connection_pool.connection_class(**unbounded))
        self._connecting: asyncio.Task[None] | None = None
        self._hangs = False
        """Whether the connection's last answer did not come in time."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, together with those of other tasks.

        Raises:
            DataError: an argument has a type that Redis does not know; nothing is sent.
        """
        if args[0] in _BLOCKING:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        packed = _packed(*args)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((args[0], packed, options, answer))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await answer

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections; commands that wait are cancelled."""
        for task in (self._sending, self._connecting):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        for _, _, _, waiter in self._waiting:  # of a task that had not begun
            waiter.cancel()
        await self._line.disconnect(nowait=True)
        await super().aclose(close_connection_pool)

    async def _send(self) -> None:
        batch: list[_Waiting] = []
        try:
            while self._waiting:
                batch = list(islice(self._waiting, MAX_BATCH))
                for _ in batch:
                    self._waiting.popleft()
                await self._exchange(batch)
        except asyncio.CancelledError:
            for _, _, _, waiter in (*batch, *self._waiting):
                waiter.cancel()
            self._waiting.clear()
            raise
        finally:
            self._sending = None

    async def _exchange(self, batch: Sequence[_Waiting]) -> None:
        began = monotonic()
        answers: Sequence[Any]
        try:
            answers = await self._round_trips(batch)
        except Exception as error:
            answers = [error] * len(batch)
        if self.observe is not None:
            failed = any(isinstance(answer, ConnectionError | TimeoutError | OSError) for answer in answers)
            self.observe(monotonic() - began, failed)
        for (_, _, _, waiter), answer in zip(batch, answers, strict=True):
            if waiter.done():  # its task was cancelled
                continue
            if isinstance(answer, Exception):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)

    async def _round_trips(self, batch: Sequence[_Waiting]) -> list[Any]:
        """Send a batch; return its answers, or errors in their place. Nothing is sent again after a timeout.

        A connection that Redis has closed while nothing was asked is opened again before anything is sent. If it breaks
        later, answers that have come are kept, and only reads are sent once more.
        """
        line, answers = self._line, list[Any]()
        if not line.is_connected or self._connecting is not None or await self._closed_by_redis():
            await self._round_trip(batch, answers)
            return answers
        try:
            await self._round_trip(batch, answers)
        except ConnectionError as lost:
            unanswered = batch[len(answers) :]
            reads = [waiting for waiting in unanswered if waiting[0] in _READS]
            again: list[Any] = []
            if reads:
                try:
                    await self._round_trip(reads, again)
                except (RedisError, OSError) as error:
                    again += [error] * (len(reads) - len(again))
            answered = iter(again)
            answers += [next(answered) if waiting[0] in _READS else lost for waiting in unanswered]
        return answers

    async def _closed_by_redis(self) -> bool:
        """Whether Redis has closed the connection while nothing was asked; it is then disconnected."""
        try:
            ended = await self._line.can_read()
        except (ConnectionError, OSError):
            ended = True
        if ended:
            await self._line.disconnect(nowait=True)
        return bool(ended)

    async def _round_trip(self, batch: Sequence[_Waiting], answers: list[Any]) -> None:
        """Append answers as they come. Raises RedisError, OSError: the connection is lost, or Redis is too slow."""
        line = self._line
        if self._connecting is not None or not line.is_connected:
            await self._connected()
        try:
            async with Patience(self._patience(len(batch))):
                await line.send_packed_command(b"".join([packed for _, packed, _, _ in batch]), check_health=False)
                for command, _, options, _ in batch:
                    answers.append(await self._answer(command, options))
        except BaseException as error:
            # Answers that are still to come would be taken for those to other commands.
            await line.disconnect(nowait=True)
            if isinstance(error, asyncio.TimeoutError):
                self._hangs = True
                raise TimeoutError("Timeout: Redis did not answer in time") from None
            raise

    def _patience(self, commands: int) -> float | None:
        """Return the seconds for a batch: those of one command, and as many again for the longest."""
        return None if self._timeout is None else self._timeout * (1 + commands / MAX_BATCH)

    async def _connected(self) -> None:
        """Wait for a connection. Raises RedisError, OSError: there is none, or none yet."""
        began = self._connecting is None
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        connecting = self._connecting
        if began:
            await asyncio.wait([connecting], timeout=self._timeout if self._hangs else None)
        if not connecting.done():
            raise TimeoutError("Timeout: Redis did not answer in time; a new connection is being made")
        connecting.result()

    async def _connect(self) -> None:
        """Connect, in a task of its own, because it may take longer than callers wait for it."""
        try:
            async with Patience(self._connect_timeout):
                await self._line.connect()  # type: ignore[no-untyped-call]
            self._hangs = False
        except BaseException as error:
            await self._line.disconnect(nowait=True)
            if isinstance(error, asyncio.TimeoutError):
                self._hangs = True
                raise TimeoutError("Timeout: Redis could not be connected to in time") from None
            raise
        finally:
            self._connecting = None

    async def _answer(self, command: str, options: dict[str, Any]) -> Any:
        try:
            return await self.parse_response(self._line, command, **options)
        except ResponseError as error:
            return error
