"""Replaces asyncio's `Event` and `Queue` by smaller ones, on which only one task waits.

Thousands of connections do nothing most of the time. asyncio's classes hold deques, each of which takes 0.7 KB even
when empty: an event one, a queue four. Those here take what their content takes.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Event:
    """`asyncio.Event` for one waiting task at a time."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Wait until it is set.

        Raises:
            RuntimeError: another task waits already.
        """
        if self._set:
            return
        if self._waiter is not None:
            raise RuntimeError("another task waits for this event")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Queue(Generic[T]):
    """`asyncio.Queue` without a bound, for one reading task at a time."""

    __slots__ = ("_items", "_some")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._some = Event()

    def empty(self) -> bool:
        return not self._items

    def put_nowait(self, item: T) -> None:
        self._items.append(item)
        self._some.set()

    async def get(self) -> T:
        """Remove and return the oldest item; wait until there is one."""
        while not self._items:
            self._some.clear()
            await self._some.wait()
        return self._items.pop(0)
