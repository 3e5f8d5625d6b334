"""Names of adapters that are read again while they change."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from engine.adapters.registry import AdapterRegistry, Pointer
from gateway.engines.adapters import AdapterNames
from gateway.engines.pool import Pool

pytestmark = pytest.mark.anyio


class BaseModel:
    """A pool, as far as names of adapters go."""

    name = "small"
    engines: tuple[Any, ...] = ()


class SlowStore:
    """A registry of one name, whose answer to the first question for it takes long to arrive."""

    def __init__(self) -> None:
        self.version = "first"
        self.asked, self.arrives = threading.Event(), threading.Event()

    def stamp(self) -> str:
        return self.version

    def names(self) -> dict[str, Pointer]:
        found = {"pirate": Pointer(self.version, "small")}
        if not self.asked.is_set():
            self.asked.set()
            self.arrives.wait(30)
        return found


async def test_what_a_slow_read_finds_does_not_take_the_place_of_something_newer() -> None:
    """As when an adapter is registered while the names are being looked at."""
    store = SlowStore()
    names = AdapterNames(cast(AdapterRegistry, store), [cast(Pool, BaseModel())], 60)
    async with asyncio.timeout(30):
        looking = asyncio.create_task(names.refresh())
        await asyncio.to_thread(store.asked.wait)
        store.version = "second"
        changed = asyncio.create_task(names.refresh())
        await asyncio.wait([changed], timeout=0.1)  # it would be done, if it did not wait for the other
        store.arrives.set()
        await asyncio.gather(looking, changed)
    found = names.resolve("pirate", "acme")
    assert found is not None and found.version == "second"
