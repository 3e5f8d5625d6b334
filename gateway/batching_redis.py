"""A Redis client that sends what many tasks ask for in the same instant as one pipeline.

A command costs redis-py about 100 µs of this process: a connection taken and given back, a timeout, a write, a read. A
busy gateway has dozens of turns that ask for something in the same round of the event loop; together they cost little
more than one of them. A task that is cancelled meanwhile takes nothing away from the others, and never leaves a reply
behind that another one could mistake for its own: the pipeline runs to its end in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from redis.asyncio import Redis

MAX_BATCH = 128
"""Commands of one pipeline; more go in a second one beside it."""

_BLOCKING = frozenset(
    {
        "BLPOP",
        "BRPOP",
        "BLMOVE",
        "BLMPOP",
        "BRPOPLPUSH",
        "BZPOPMIN",
        "BZPOPMAX",
        "BZMPOP",
        "XREAD",
        "XREADGROUP",
        "WAIT",
    }
)
"""Commands that may wait in Redis: others must not wait with them."""

_Waiting = tuple[tuple[Any, ...], dict[str, Any], asyncio.Future[Any]]


class BatchingRedis(Redis):
    """`redis.asyncio.Redis` whose single commands are batched; pipelines, transactions and subscriptions are not."""

    _waiting: list[_Waiting]
    _sending: set[asyncio.Task[None]]
    observe: Callable[[float, bool], None] | None = None
    """Told of every round trip: seconds, and whether it failed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting = []
        self._sending = set()

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, together with those of other tasks."""
        if args[0] in _BLOCKING:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((args, options, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._flush)
        return await answer

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), MAX_BATCH):
            task = asyncio.create_task(self._send(waiting[start : start + MAX_BATCH]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, batch: list[_Waiting]) -> None:
        pipeline = self.pipeline(transaction=False)
        for args, options, _ in batch:
            pipeline.execute_command(*args, **options)
        answers: list[Any]
        began, failed = monotonic(), False
        try:
            answers = await pipeline.execute(raise_on_error=False)
        except asyncio.CancelledError:
            for _, _, waiter in batch:
                waiter.cancel()
            raise
        except Exception as error:
            answers, failed = [error] * len(batch), True
        if self.observe is not None:
            self.observe(monotonic() - began, failed)
        for (_, _, waiter), answer in zip(batch, answers, strict=True):
            if waiter.done():  # its task was cancelled
                continue
            if isinstance(answer, Exception):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)
