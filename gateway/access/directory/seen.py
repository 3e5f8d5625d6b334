"""A bounded cache of records, which also remembers names that do not exist."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Generic, TypeVar

from gateway.errors import RateLimited
from gateway.records.directory import Record

MOST_FOUND = 100_000
MOST_UNKNOWN = 10_000
UNKNOWN_PER_SECOND = 1000
"""Look-ups a second that may find nothing; beyond that, unknown names are refused for a moment."""
UNKNOWN_SECONDS = 60.0
"""Seconds for which a name that was not found is believed not to exist, if no change is seen before."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Record)


class RecordCache(Generic[K, V]):
    """Caches records by the names they are looked up by. `forget` and `clear` are called when the directory has
    changed."""

    def __init__(
        self,
        read: Callable[[K], Awaitable[V | None]],
        clock: Callable[[], float],
        *,
        most_found: int = MOST_FOUND,
        most_unknown: int = MOST_UNKNOWN,
        unknown_per_second: float = UNKNOWN_PER_SECOND,
    ) -> None:
        """Args: unknown_per_second: look-ups that may find nothing; `inf` where strangers cannot choose the names."""
        self._read = read
        self._clock = clock
        self._most_found = most_found
        self._most_unknown = most_unknown
        self._rate = unknown_per_second
        self._found: OrderedDict[K, V] = OrderedDict()
        self._names: dict[str, K] = {}
        """Names by which each record was found, by the record's identity."""
        self._unknown: OrderedDict[K, float] = OrderedDict()
        """Time until which each name is believed not to exist."""
        self._allowance, self._at = unknown_per_second, clock()
        self._generation = 0

    def known(self, name: K) -> V | None:
        """Return the record, if it has been found before."""
        return self._found.get(name)

    async def find(self, name: K) -> V | None:
        """Return the record, or None; read it if it has not been looked up before.

        Raises:
            RateLimited: too many look-ups find nothing at the moment.
        """
        if (record := self._found.get(name)) is not None:
            self._found.move_to_end(name)
            return record
        now = self._clock()
        if self._unknown.get(name, now) > now:
            return None
        self._refill(now)
        if self._allowance < 1:
            raise RateLimited("too many unknown names are tried at the moment; try again in a second", retry_after=1)
        generation = self._generation
        self._allowance -= 1  # before the answer is known, as many may ask at the same time
        try:
            record = await self._read(name)
        except BaseException:
            self._allowance += 1
            raise
        if record is not None:
            self._allowance += 1
        # What was read may be older than a change that has been seen meanwhile: it is good for this once.
        if generation == self._generation:
            self._keep(name, record)
        return record

    def forget(self, changed: Mapping[str, K | None]) -> None:
        """These records have changed: identity -> what each is looked up by from now on, None if it is gone.

        All other names stay known, and known not to exist: a change of one record makes nobody ask for others again.
        """
        if not changed:
            return
        self._generation += 1
        for identity, name in changed.items():
            if name is not None:
                self._unknown.pop(name, None)
            if (before := self._names.pop(identity, None)) is not None:
                self._found.pop(before, None)

    def clear(self) -> None:
        """Forget everything, because anything may have changed."""
        self._generation += 1
        self._unknown.clear()
        self._found.clear()
        self._names.clear()

    def _keep(self, name: K, record: V | None) -> None:
        if record is None:
            self._unknown[name] = self._clock() + UNKNOWN_SECONDS
            if len(self._unknown) > self._most_unknown:
                self._unknown.popitem(last=False)
            return
        self._found[name] = record
        self._names[record.identity] = name
        if len(self._found) > self._most_found:
            _, oldest = self._found.popitem(last=False)
            self._names.pop(oldest.identity, None)

    def _refill(self, now: float) -> None:
        if self._rate < math.inf:
            self._allowance = min(self._rate, self._allowance + max(0.0, now - self._at) * self._rate)
        self._at = now
