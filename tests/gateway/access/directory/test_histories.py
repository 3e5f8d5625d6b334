"""Any history of writes, deletions, repeats, races and crashes leaves records, indexes and audit log in agreement."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, TypeVar

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from redis.asyncio import Redis

from gateway.access.directory.change import Caps, Change, Delete, Idempotency, Put
from gateway.access.directory.schema import AUDIT_KEY, indexes, records_key, unique
from gateway.access.directory.store import Directory
from gateway.access.directory.view import View
from gateway.errors import ApiError, Conflict, InvalidRequest, NotFound, PreconditionFailed
from gateway.records.directory import KINDS, Key, Price, Record, Tenant, User, decode
from tests.gateway.access.directory.conftest import SECRET

T = TypeVar("T")

CAPS = Caps(tenants=2, users_per_tenant=2, keys_per_tenant=2, prices=2, audit=12)

names = st.sampled_from(["a", "a", "a", "b", "c"])
ids = st.sampled_from(["1", "2"])
notes = st.sampled_from(["", "x", "y"])
tenants = st.builds(Tenant, name=names, description=notes)
users = st.builds(User, id=ids, tenant=names, subject=st.sampled_from(["anna", "bob"]), description=notes)
keys = st.builds(
    Key,
    id=ids,
    tenant=names,
    user=st.none() | ids,
    digest=st.sampled_from(["a" * 64, "b" * 64]),
    description=notes,
)
prices = st.builds(Price, name=names, input=st.integers(0, 2), output=st.just(1))
records = tenants | users | keys | keys | prices
targets = st.tuples(st.sampled_from(["tenant", "user", "key", "price"]), names | ids)
expectations = st.sampled_from(["any", "any", "none", "current", "wrong"])


class Died(Exception):
    """The process that made a change is gone."""


class Histories(RuleBasedStateMachine):
    """A directory beside a dictionary that holds what must be in it."""

    url: str

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.redis = Redis.from_url(self.url)
        self.directory = Directory(self.redis, secret=SECRET, caps=CAPS)
        self.other = Directory(self.redis, secret=SECRET, caps=CAPS)
        self.view = View(self.directory)
        self.model: dict[tuple[str, str], Record] = {}
        self.sequence = 0
        self.once: dict[str, tuple[Change, list[Record | None]]] = {}
        self.run(self.redis.flushall())
        self.change([Put(Tenant(name="a"))])
        self.change([Put(User(id="1", tenant="a", subject="anna"))])

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.redis.aclose())
            self.runner.close()

    @rule(record=records, expects=expectations)
    def write(self, record: Record, expects: str) -> None:
        """One record."""
        self.change([Put(record, self.revision(record.KIND, record.identity, expects))])

    @rule(what=targets, expects=expectations)
    def delete(self, what: tuple[Any, str], expects: str) -> None:
        """One record."""
        self.change([Delete(*what, self.revision(*what, expects))])

    @rule(first=records, second=records)
    def two_at_once(self, first: Record, second: Record) -> None:
        """All or none."""
        if (first.KIND, first.identity) != (second.KIND, second.identity):
            self.change([Put(first), Put(second)])

    @rule(record=records, rival=records)
    def race(self, record: Record, rival: Record) -> None:
        """Another gateway changes something between the look and the commit."""
        commit = self.directory._commit

        async def after_rival(**arguments: Any) -> Any:
            self.directory._commit = commit  # type: ignore[method-assign]
            await self.settle(self.other, [Put(rival)])
            return await commit(**arguments)

        self.directory._commit = after_rival  # type: ignore[method-assign]
        self.change([Put(record)])
        self.directory._commit = commit  # type: ignore[method-assign]

    @rule(record=records, executed=st.booleans(), name=st.none() | st.sampled_from(["k", "l"]))
    def crash(self, record: Record, executed: bool, name: str | None) -> None:
        """The gateway dies just before or just after its commit; a client that has an idempotency key asks again."""
        if name in self.once:
            return
        once = Idempotency(name, "digest") if name else None
        mortal = Directory(self.redis, secret=SECRET, caps=CAPS)
        commit = mortal._commit

        async def dies(**arguments: Any) -> Any:
            if executed:
                await commit(**arguments)
            raise Died

        mortal._commit = dies  # type: ignore[method-assign]
        change = Put(record)
        expected = self.expect(change)
        try:
            self.run(mortal.apply([change], actor="test", once=once))
        except Died:
            assert expected is None
            if executed:
                self.take_over([change])
        except ApiError as error:
            assert type(error) is expected
        if once is not None and expected is None:
            applied = self.run(self.directory.apply([change], actor="test", once=once))
            assert applied.replayed is executed
            if not executed:
                self.take_over([change])
            self.once[once.key] = change, applied.records

    @rule(record=records, name=st.sampled_from(["k", "l"]), digest=st.sampled_from(["digest", "other"]))
    def repeat(self, record: Record, name: str, digest: str) -> None:
        """What has a used idempotency key does nothing."""
        if name not in self.once:
            return
        change, before = self.once[name]
        if digest == "digest":
            applied = self.run(self.directory.apply([change], actor="test", once=Idempotency(name, digest)))
            assert (applied.replayed, applied.records) == (True, before)
        else:
            with pytest.raises(Conflict, match="used for another request"):
                self.run(self.directory.apply([Put(record)], actor="test", once=Idempotency(name, digest)))

    @invariant()
    def the_audit_log_verifies(self) -> None:
        if not hasattr(self, "runner"):
            return
        verifier, problem = self.run(self.directory.audit.verify())
        assert problem is None
        assert verifier.last.sequence == self.sequence
        assert self.run(self.redis.xlen(AUDIT_KEY)) <= CAPS.audit + 1

    @invariant()
    def records_and_indexes_are_what_they_should_be(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.compare())

    @invariant()
    def the_view_agrees(self) -> None:
        """Whatever it has seen before."""
        if not hasattr(self, "runner"):
            return
        self.run(self.view.refresh())
        assert self.view.tenants() == {name: record for (kind, name), record in self.model.items() if kind == "tenant"}
        by_digest = {record.digest: record for record in self.model.values() if isinstance(record, Key)}
        for letter in "abc":
            assert self.run(self.view.key(letter * 64)) == by_digest.get(letter * 64)
        users = [record for record in self.model.values() if isinstance(record, User)]
        by_subject = {(user.tenant, user.subject): user for user in users}
        for name in (("a", "anna"), ("b", "bob")):
            assert self.run(self.view.user(*name)) == by_subject.get(name)

    async def compare(self) -> None:
        stored: dict[tuple[str, str], Record] = {}
        for kind, type_ in KINDS.items():
            for identity, document in (await self.redis.hgetall(records_key(kind))).items():
                stored[kind, identity.decode()] = decode(type_, document)
        assert {name: plain(record) for name, record in stored.items()} == {
            name: plain(record) for name, record in self.model.items()
        }
        self.model = stored  # with their times, which only Redis knows
        expected: defaultdict[str, set[str]] = defaultdict(set)
        fields: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for record in stored.values():
            for index in indexes(record):
                expected[index].add(record.identity)
            if found_by := unique(record):
                assert found_by[1] not in fields[found_by[0]]
                fields[found_by[0]][found_by[1]] = record.identity
        found: dict[str, set[str]] = {}
        async for name in self.redis.scan_iter("rh1:{directory}:*-ids*"):
            found[name.decode()] = {member.decode() for member in await self.redis.zrange(name, 0, -1)}
        assert found == expected
        for name in ("rh1:{directory}:key-digests", "rh1:{directory}:user-subjects"):
            held = {field.decode(): value.decode() for field, value in (await self.redis.hgetall(name)).items()}
            assert held == fields[name]

    def change(self, changes: list[Change]) -> None:
        self.run(self.settle(self.directory, changes))

    async def settle(self, directory: Directory, changes: list[Change]) -> None:
        """Ask for a change, and expect what the model says at the moment when it is decided."""
        try:
            applied = await directory.apply(changes, actor="test")
        except ApiError as error:
            assert type(error) is self.expect(*changes), error
        else:
            assert self.expect(*changes) is None
            assert not applied.replayed
            self.take_over(changes)

    def take_over(self, changes: list[Change]) -> None:
        for change in changes:
            self.sequence += 1
            if isinstance(change, Put):
                record = change.record
                self.model[record.KIND, record.identity] = with_revision(record, self.sequence)
            elif isinstance(change, Delete):
                del self.model[change.kind, change.identity]

    def revision(self, kind: str, identity: str, expects: str) -> int | None:
        held = self.model.get((kind, identity))
        current = held.revision if held else 0
        return {"any": None, "none": 0, "current": current, "wrong": current + 1}[expects]

    def expect(self, *changes: Change) -> type[ApiError] | None:
        """The error of the first change that cannot be made; what the changes before it do is not seen by it."""
        created: defaultdict[tuple[str, str | None], int] = defaultdict(int)
        claimed: list[tuple[str, str] | None] = []
        for change in changes:
            if (error := self.refusal(change, created, claimed)) is not None:
                return error
        return None

    def refusal(
        self,
        change: Change,
        created: defaultdict[tuple[str, str | None], int],
        claimed: list[tuple[str, str] | None],
    ) -> type[ApiError] | None:
        assert isinstance(change, Put | Delete)
        kind, identity = (
            (change.record.KIND, change.record.identity) if isinstance(change, Put) else (change.kind, change.identity)
        )
        held = self.model.get((kind, identity))
        if held is None and (change.expected or isinstance(change, Delete)):
            return NotFound
        if held is not None and change.expected not in (None, held.revision):
            return PreconditionFailed if change.expected else Conflict
        if isinstance(change, Delete):
            owned = [getattr(record, kind, None) == identity for record in self.model.values()]
            return Conflict if any(owned) else None
        record = change.record
        if isinstance(record, User | Key):
            if ("tenant", record.tenant) not in self.model or (held and held.belongs_to != record.tenant):
                return InvalidRequest
            if isinstance(record, Key) and record.user is not None:
                user = self.model.get(("user", record.user))
                if user is None or user.belongs_to != record.tenant:
                    return InvalidRequest
            same = [other for other in self.model.values() if unique(other) == unique(record)]
            if any((other.KIND, other.identity) != (kind, identity) for other in same):
                return Conflict
            if unique(record) in claimed:
                return Conflict
            claimed.append(unique(record))
        if held is None:
            group = kind, record.belongs_to if isinstance(record, User | Key) else None
            most = CAPS.of(kind) if group[1] is None else CAPS.of_tenant(kind)
            peers = [
                other
                for other in self.model.values()
                if kind == other.KIND and (group[1] is None or other.belongs_to == group[1])
            ]
            created[group] += 1
            if most is not None and len(peers) + created[group] > most:
                return Conflict
        return None


def with_revision(record: Record, revision: int) -> Record:
    return msgspec.structs.replace(record, revision=revision)


def plain(record: Record) -> Record:
    return msgspec.structs.replace(record, created_at=0, updated_at=0)


def test_histories(redis_url: str) -> None:
    """Several hundred steps."""
    Histories.url = redis_url
    steps = settings(max_examples=30, stateful_step_count=20, deadline=None, phases=[Phase.generate])
    Histories.TestCase.settings = steps
    Histories.TestCase().runTest()
