"""The limits of one tenant in this process: the same arithmetic that `limits.lua` does in Redis. Pure.

It stands in for the script while Redis is away, and the tests compare the two.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from gateway.limits.counters import Counters, bounds_of
from gateway.records.quota import Amounts, LimitSubject

STEP = 60_000
"""Milliseconds: a clock that goes back by more starts anew from there; one that goes back by less is waited for."""


class Flag(enum.Enum):
    """States of a reservation: HELD -> ENDED when the lease ends, ENDED -> HELD when it is renewed after all."""

    ENDED = 0
    HELD = 1
    SETTLED = 2
    """Charged although it was unknown: remembered for the length of a lease, so that it is not charged twice."""
    RELEASED = 3
    """Only its money is held, until the lease ends: its gateway counts as dead."""


class ReservationRecord(Struct):
    """State of one reservation."""

    flag: Flag
    amounts: Amounts
    names: tuple[str, ...]
    ends: int
    """Time at which the lease ends, in milliseconds."""


class Book:
    """Counters and reservations of one tenant. Times are milliseconds since 1970."""

    def __init__(self, lease: int) -> None:
        """Args: lease: milliseconds that a reservation lasts unless it is renewed."""
        self._lease = lease
        self._clock: int | None = None
        self.counters: dict[str, Counters] = {}
        self.records: dict[str, ReservationRecord] = {}

    def reserve(
        self,
        id: str,
        wanted: Amounts,
        subjects: Sequence[LimitSubject],
        now: int,
        *,
        granted: bool = False,
        instead: bool = False,
    ) -> tuple[bool, int, list[Counters]]:
        """Take everything that is wanted of all subjects, or nothing. Returns whether it did, the time that counts,
        and the subjects' counters. `granted`: without asking, because somebody else has. `instead`: in the place of
        what was reserved before, which comes back either way; the request was counted then."""
        now, counters = self._begin(subjects, now)
        record = self.records.get(id)
        counted: tuple[str, ...] = ()
        if instead and record is not None and record.flag is not Flag.SETTLED:
            self._give_back(record)
            counted, record = record.names, None
            del self.records[id]
        if record is None:
            again = msgspec.structs.replace(wanted, requests=0)
            parts = [
                (own, bounds_of(subject.quota), again if subject.name in counted else wanted)
                for own, subject in zip(counters, subjects, strict=True)
            ]
            if not granted and any(own.shortfall(bounds, part) for own, bounds, part in parts):
                return False, now, counters
            for own, bounds, part in parts:
                own.take(bounds, part)
            names = tuple(subject.name for subject in subjects)
            self.records[id] = ReservationRecord(Flag.HELD, wanted, names, now + self._lease)
        elif record.flag in (Flag.ENDED, Flag.RELEASED):
            self._hold_again(record, now)
        return True, now, counters

    def settle(
        self, id: str, used: Amounts, subjects: Sequence[LimitSubject], now: int, *, unknown: bool = False
    ) -> tuple[int, list[Counters]]:
        """Give back what was held and count what was used; once. `unknown`: also if no such reservation is known."""
        now, counters = self._begin(subjects, now)
        record = self.records.get(id)
        if record is not None:
            self._give_back(record)
            used = Amounts(0, 0, 0, used.input_tokens, used.output_tokens, used.spend)  # the request was counted
        if (record is None and unknown) or (record is not None and record.flag is not Flag.SETTLED):
            for own, subject in zip(counters, subjects, strict=True):
                own.charge(bounds_of(subject.quota), used)
        if unknown:
            self.records[id] = ReservationRecord(Flag.SETTLED, Amounts(), (), now + self._lease)
        elif record is not None and record.flag is not Flag.SETTLED:
            del self.records[id]
        return now, counters

    def renew(self, ids: Iterable[str], now: int) -> int:
        """Extend reservations by another lease; return how many are known."""
        now, _ = self._begin((), now)
        known = 0
        for id in ids:
            record = self.records.get(id)
            if record is not None and record.flag is not Flag.SETTLED:
                self._hold_again(record, now)
                known += 1
        return known

    def release(self, part: str, now: int) -> int:
        """Give back all reservations whose ids have this part, but their money only when their leases end; return how
        many were held."""
        now, _ = self._begin((), now)
        held = [record for id, record in self.records.items() if part in id and record.flag is Flag.HELD]
        for record in held:
            self._give_back(record)
            record.flag = Flag.RELEASED
            self._hold(record, 1)
        return len(held)

    def read(self, subjects: Sequence[LimitSubject], now: int) -> tuple[int, list[Counters]]:
        """Return the subjects' counters now."""
        return self._begin(subjects, now)

    def adopt(self, name: str, seen: Counters, parts: int) -> None:
        """Start with one of `parts` parts of what a subject has used; what others hold is not known."""
        self.counters[name] = Counters(
            at=seen.at,
            requests=-(-seen.requests // parts),
            input=-(-seen.input // parts),
            output=-(-seen.output // parts),
            day=seen.day,
            spent_day=-(-seen.spent_day // parts),
            month=seen.month,
            spent_month=-(-seen.spent_month // parts),
        )

    def adopt_reservation(self, id: str, amounts: Amounts, subjects: Sequence[LimitSubject], now: int) -> None:
        """Hold a reservation that was made elsewhere."""
        names = tuple(subject.name for subject in subjects)
        self.records[id] = ReservationRecord(Flag.HELD, amounts, names, now + self._lease)
        self._hold(self.records[id], 1)

    def _begin(self, subjects: Sequence[LimitSubject], now: int) -> tuple[int, list[Counters]]:
        """Settle on a time, end the leases that are over, and bring the subjects up to date."""
        seen = now if self._clock is None else self._clock
        if seen - now > STEP:
            for record in self.records.values():
                record.ends = min(record.ends, now + self._lease)
        else:
            now = max(now, seen)
        self._clock = now
        for id, record in list(self.records.items()):
            if record.ends > now:
                continue
            if record.flag in (Flag.HELD, Flag.RELEASED):
                self._give_back(record)
                record.flag, record.ends = Flag.ENDED, now + self._lease
            else:
                del self.records[id]
        counters = [self.counters.setdefault(subject.name, Counters()) for subject in subjects]
        for own, subject in zip(counters, subjects, strict=True):
            own.advance(bounds_of(subject.quota), now)
        return now, counters

    def _hold(self, record: ReservationRecord, sign: int) -> None:
        """Add what its state holds to all subjects (1), or take it away (-1)."""
        amounts = Amounts(spend=record.amounts.spend) if record.flag is Flag.RELEASED else record.amounts
        for name in record.names:
            self.counters.setdefault(name, Counters()).hold(amounts, sign)

    def _give_back(self, record: ReservationRecord) -> None:
        if record.flag in (Flag.HELD, Flag.RELEASED):
            self._hold(record, -1)

    def _hold_again(self, record: ReservationRecord, now: int) -> None:
        if record.flag is not Flag.HELD:
            self._give_back(record)
            record.flag = Flag.HELD
            self._hold(record, 1)
        record.ends = now + self._lease
