"""The script in a real Redis, under a clock that the test turns: nothing overshoots, nothing leaks, whatever happens.

`gateway.limits.book.Book` runs beside it and has to agree in every number; the books of the test itself have to agree
with both.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import msgspec
import redis
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.limits.book import STEP, Book
from gateway.limits.counters import UNIT, Counters, bounds_of
from gateway.limits.script import SCRIPT, ScriptReply, answer, arguments, keys, release, renewal
from gateway.records.quota import Amounts, LimitSubject, Quota

LEASE = 20_000
NOON = 1_795_348_800_000
_TIME = "redis.call('TIME')"
assert SCRIPT.count(_TIME) == 1
TURNED = SCRIPT.replace(_TIME, "redis.call('HMGET', 'test:clock', 'seconds', 'microseconds')")
"""The script with hands on its clock; nothing else is changed."""

_names = itertools.count()

SUBJECTS = [
    LimitSubject("tenant", Quota(requests_per_minute=30, input_tokens_per_minute=600, output_tokens_per_minute=900)),
    LimitSubject("key:ci", Quota(concurrent_turns=3, spend_per_day=400, open_sockets=2)),
    LimitSubject("model:small", Quota(output_tokens_per_minute=300, burst_seconds=120)),
    LimitSubject("adapter:law", Quota(spend_per_month=900, input_tokens_per_minute=50, burst_seconds=600)),
]
turns = st.builds(
    Amounts,
    requests=st.just(1),
    turns=st.just(1),
    input_tokens=st.integers(0, 300),
    output_tokens=st.integers(0, 400),
    spend=st.integers(0, 150),
)
sockets = st.just(Amounts(sockets=1))
parts = st.lists(st.sampled_from(range(len(SUBJECTS))), min_size=1, unique=True).map(sorted)


class Turned:
    """The script of one tenant, in Redis, with a clock of its own."""

    def __init__(self, url: str) -> None:
        self.redis = redis.Redis.from_url(url)
        self.tenant = f"scripted-{next(_names)}"
        self.script = self.redis.register_script(TURNED)
        self.now = NOON

    def __call__(self, operation: str, id: str, amounts: Amounts, subjects: list[LimitSubject]) -> ScriptReply:
        return answer(self._run(arguments(operation, LEASE, id, amounts, subjects)))

    def renew(self, ids: list[str]) -> int:
        return int(self._run(renewal(LEASE, ids)))

    def release(self, part: str) -> int:
        return int(self._run(release(LEASE, part)))

    def _run(self, words: list[Any]) -> Any:
        self.redis.hset("test:clock", mapping={"seconds": self.now // 1000, "microseconds": self.now % 1000 * 1000})
        return self.script(keys=keys(self.tenant), args=words)

    def counters(self) -> dict[str, Counters]:
        """As they are stored."""
        stored: dict[bytes, bytes] = self.redis.hgetall(keys(self.tenant)[0])  # type: ignore[assignment]
        return {name.decode(): Counters.decode(text) for name, text in stored.items() if name != b"clock"}

    def close(self) -> None:
        self.redis.delete(*keys(self.tenant))
        self.redis.close()


class Limits(RuleBasedStateMachine):
    """Gateways that come and go, turns that end or do not, and a clock that steps."""

    url = ""
    live = Bundle("live")
    crashed = Bundle("crashed")

    def __init__(self) -> None:
        super().__init__()
        self.script = Turned(self.url)
        self.book = Book(LEASE)
        self.numbers = itertools.count()
        self.held: dict[str, tuple[Amounts, list[LimitSubject]]] = {}
        """Of turns whose gateway lives."""
        self.settled: list[tuple[int, str, Amounts]] = []
        """Time, subject and amounts, since the clock last started anew."""
        self.spent: dict[tuple[str, int, int], int] = {}
        """By subject, day and month of the counters."""
        self.seen = 0

    def agree(self, mine: ScriptReply, granted: bool, now: int, counters: list[Counters]) -> None:
        if mine.now < self.seen:  # it started anew, after one large step back or small ones that make one
            self.settled.clear()
            self.spent.clear()
        self.seen = mine.now
        assert (mine.granted, mine.now, mine.counters) == (granted, now, counters)

    @rule(target=live, wanted=st.one_of(turns, sockets), chosen=parts)
    def reserve(self, wanted: Amounts, chosen: list[int]) -> Any:
        subjects = [SUBJECTS[index] for index in chosen]
        id = f"turn-{next(self.numbers)}."
        mine = self.script("reserve", id, wanted, subjects)
        self.agree(mine, *self.book.reserve(id, wanted, subjects, self.script.now))
        if mine.granted:
            self.held[id] = wanted, subjects
        return id

    @rule(id=live)
    def reserve_again(self, id: str) -> None:
        if id in self.held:
            wanted, subjects = self.held[id]
            self.agree(
                self.script("reserve", id, wanted, subjects),
                *self.book.reserve(id, wanted, subjects, self.script.now),
            )

    @rule(id=live, wanted=turns, more=parts)
    def extend(self, id: str, wanted: Amounts, more: list[int]) -> None:
        if id not in self.held or self.held[id][0].sockets:
            return
        names = {subject.name for subject in self.held[id][1]}
        subjects = [each for index, each in enumerate(SUBJECTS) if index in more or each.name in names]
        mine = self.script("extend", id, wanted, subjects)
        self.agree(mine, *self.book.reserve(id, wanted, subjects, self.script.now, instead=True))
        if mine.granted:
            self.held[id] = wanted, subjects
        else:
            del self.held[id]

    @rule(id=consumes(live), part=st.floats(0, 1), twice=st.booleans())
    def settle(self, id: str, part: float, twice: bool) -> None:
        if id not in self.held:
            return
        wanted, subjects = self.held.pop(id)
        used = Amounts(
            input_tokens=int(wanted.input_tokens * part),
            output_tokens=int(wanted.output_tokens * part),
            spend=int(wanted.spend * part),
        )
        mine = self.script("settle", id, used, subjects)
        self.agree(mine, True, *self.book.settle(id, used, subjects, self.script.now))
        for subject, counters in zip(subjects, mine.counters, strict=True):
            self.settled.append((mine.now, subject.name, used))
            when = (subject.name, counters.day, counters.month)
            self.spent[when] = self.spent.get(when, 0) + used.spend
        if twice:
            again = self.script("settle", id, wanted, subjects)
            assert again.counters == mine.counters
            self.agree(again, True, *self.book.settle(id, wanted, subjects, self.script.now))

    @rule(target=crashed, id=consumes(live))
    def crash(self, id: str) -> str:
        self.held.pop(id, None)
        return id

    @rule(id=crashed, twice=st.booleans())
    def notice(self, id: str, twice: bool) -> None:
        """The crash is noticed, by one gateway or more: what was held comes back at once."""
        known = self.script.release(id)
        assert known == self.book.release(id, self.script.now)
        if twice:
            assert self.script.release(id) == 0

    @rule(seconds=st.integers(0, 200_000))
    def pass_time(self, seconds: int) -> None:
        """Its gateway renews what lives, often enough; a long time in one go when nothing does."""
        end = self.script.now + seconds
        while self.held and self.script.now < end:
            self.script.now = min(end, self.script.now + LEASE // 2)
            self.renew()
        self.script.now = end

    @precondition(lambda self: not self.held)
    @rule(days=st.integers(1, 40))
    def days_pass(self, days: int) -> None:
        self.script.now += days * 86_400_000 - 5_000

    @rule(milliseconds=st.integers(1, STEP))
    def clock_steps_back(self, milliseconds: int) -> None:
        self.script.now -= milliseconds
        self.renew()

    @rule(milliseconds=st.integers(STEP + 1, 3 * 86_400_000))
    def clock_is_set_back(self, milliseconds: int) -> None:
        self.renew()
        self.script.now -= milliseconds
        self.renew()

    def renew(self) -> None:
        known = self.script.renew(list(self.held))
        assert known == self.book.renew(list(self.held), self.script.now) == len(self.held)

    @invariant()
    def agrees_with_the_book(self) -> None:
        mine = self.script("read", "", Amounts(), SUBJECTS)
        self.agree(mine, True, *self.book.read(SUBJECTS, self.script.now))
        for subject, counters in zip(SUBJECTS, mine.counters, strict=True):
            self.no_limit_is_overshot(subject, counters, mine.now)

    def no_limit_is_overshot(self, subject: LimitSubject, counters: Counters, now: int) -> None:
        bounds = bounds_of(subject.quota)
        mine = [wanted for wanted, subjects in self.held.values() if subject in subjects]
        assert counters.turns >= sum(wanted.turns for wanted in mine)
        assert counters.held_input >= sum(wanted.input_tokens for wanted in mine)
        assert counters.held_spend >= sum(wanted.spend for wanted in mine)
        for gauge in counters.gauges(bounds):
            assert gauge.used <= gauge.limit
        events = [(when, used) for when, name, used in self.settled if name == subject.name]
        for rate, field in ((bounds.input_tokens, "input_tokens"), (bounds.output_tokens, "output_tokens")):
            total = 0
            for when, used in reversed(events):
                total += getattr(used, field) * UNIT
                assert rate < 0 or total <= bounds.burst(rate) + rate * (now - when)
        months: Counter[int] = Counter()
        for (name, _, month), spent in self.spent.items():
            if name == subject.name:
                assert bounds.day < 0 or spent <= bounds.day
                months[month] += spent
        assert bounds.month < 0 or all(spent <= bounds.month for spent in months.values())

    def teardown(self) -> None:
        try:
            for id in list(self.held):
                wanted, subjects = self.held.pop(id)
                self.script("settle", id, wanted, subjects)
            self.script.now += LEASE + STEP  # it may have stepped back, and is waited for
            for _ in range(3):
                self.script.now += LEASE
                self.script("read", "", Amounts(), [])
            for counters in self.script.counters().values():
                assert counters.turns == counters.sockets == 0
                assert counters.held_input == counters.held_output == counters.held_spend == 0
            for key in keys(self.script.tenant)[1:]:
                assert not self.script.redis.exists(key)
        finally:
            self.script.close()


class Late(Limits):
    """Gateways also come back after their leases ended, or were away from Redis: what they used still counts."""

    charged = Bundle("charged")

    @rule(id=consumes(Limits.crashed), used=turns, chosen=parts)
    def settle_late(self, id: str, used: Amounts, chosen: list[int]) -> None:
        subjects = [SUBJECTS[index] for index in chosen]
        mine = self.script("settle", id, used, subjects)
        self.agree(mine, True, *self.book.settle(id, used, subjects, self.script.now))

    @rule(id=Limits.crashed)
    def renew_late(self, id: str) -> None:
        assert self.script.renew([id]) == self.book.renew([id], self.script.now)

    @rule(id=Limits.crashed, wanted=turns, chosen=parts)
    def reserve_late(self, id: str, wanted: Amounts, chosen: list[int]) -> None:
        subjects = [SUBJECTS[index] for index in chosen]
        mine = self.script("reserve", id, wanted, subjects)
        self.agree(mine, *self.book.reserve(id, wanted, subjects, self.script.now))

    @rule(target=Limits.crashed, wanted=turns, chosen=parts, id=st.one_of(st.none(), Limits.crashed, charged))
    def hold(self, wanted: Amounts, chosen: list[int], id: str | None) -> str:
        """Granted elsewhere; never twice, and not what has been charged."""
        subjects = [SUBJECTS[index] for index in chosen]
        id = id or f"away-{next(self.numbers)}."
        mine = self.script("hold", id, wanted, subjects)
        assert mine.granted
        self.agree(mine, *self.book.reserve(id, wanted, subjects, self.script.now, granted=True))
        return id

    @rule(id=st.one_of(Limits.crashed, charged), wanted=turns, chosen=parts, asked=st.booleans())
    def more_late(self, id: str, wanted: Amounts, chosen: list[int], asked: bool) -> None:
        subjects = [SUBJECTS[index] for index in chosen]
        mine = self.script("extend" if asked else "widen", id, wanted, subjects)
        self.agree(mine, *self.book.reserve(id, wanted, subjects, self.script.now, granted=not asked, instead=True))

    @rule(target=charged, used=turns, chosen=parts, id=st.one_of(st.none(), Limits.crashed, charged))
    def charge(self, used: Amounts, chosen: list[int], id: str | None) -> str:
        """Twice is once, as long as it is remembered."""
        subjects = [SUBJECTS[index] for index in chosen]
        id = id or f"away-{next(self.numbers)}."
        mine = self.script("charge", id, used, subjects)
        self.agree(mine, True, *self.book.settle(id, used, subjects, self.script.now, unknown=True))
        assert self.script("charge", id, used, subjects).counters == mine.counters
        self.book.settle(id, used, subjects, self.script.now, unknown=True)
        return id

    def no_limit_is_overshot(self, subject: LimitSubject, counters: Counters, now: int) -> None:
        """What comes late may be more than was left."""


def test_redis_drops_neither_counters_nor_reservations(redis_url: str) -> None:
    """Or a budget would come back, or what a dead gateway held be held for ever."""
    script = Turned(redis_url)
    try:
        assert script("reserve", "turn", Amounts(requests=1, turns=1), SUBJECTS).granted
        assert [script.redis.pttl(key) for key in keys(script.tenant)] == [-1, -1, -1]
    finally:
        script.close()


def test_nobody_is_given_the_money_of_a_gateway_that_is_only_silent(redis_url: str) -> None:
    """Unlike its places, which are used again at once; it comes back when the lease ends."""
    script, subjects = Turned(redis_url), [LimitSubject("tenant", Quota(concurrent_turns=1, spend_per_day=100))]
    turn = Amounts(requests=1, turns=1, spend=60)
    try:
        assert script("reserve", "silent-1.", turn, subjects).granted
        assert script.release("silent") == 1
        assert not script("reserve", "other-1.", turn, subjects).granted
        free = script("reserve", "other-2.", msgspec.structs.replace(turn, spend=40), subjects)
        assert free.granted and free.counters[0].held_spend == 100
        spent = script("settle", "silent-1.", Amounts(spend=60), subjects).counters[0]
        assert (spent.spent_day, spent.held_spend, spent.turns) == (60, 40, 1)
        script("settle", "other-2.", Amounts(), subjects)

        assert script("reserve", "silent-2.", msgspec.structs.replace(turn, spend=40), subjects).granted
        assert script.release("silent") == 1
        script.now += LEASE
        assert script("reserve", "other-3.", msgspec.structs.replace(turn, spend=40), subjects).granted
        script("settle", "other-3.", Amounts(), subjects)
    finally:
        script.close()


def test_what_comes_late_counts_once(redis_url: str) -> None:
    machine = type("Machine", (Late,), {"url": redis_url})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))


def test_whatever_happens_no_limit_is_overshot_and_nothing_leaks(redis_url: str) -> None:
    machine = type("Machine", (Limits,), {"url": redis_url})
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))
