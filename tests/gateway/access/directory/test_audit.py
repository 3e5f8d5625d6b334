"""The chain of the audit log: whatever is done to it in Redis, the first broken entry is named."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from gateway.access.directory import audit
from gateway.access.directory.audit import verify_export
from gateway.access.directory.change import Caps
from gateway.access.directory.plan import _set_mark
from gateway.access.directory.schema import AUDIT_KEY, CHECKPOINT_KEY, HEAD_KEY
from gateway.access.directory.store import Directory
from gateway.errors import Conflict
from gateway.records.directory import Tenant
from tests.gateway.access.directory.conftest import SECRET, key

pytestmark = pytest.mark.anyio

ENTRIES = 8
NOT_OURS = "was not made with this installation's secret"


@pytest.fixture
async def directory(redis: Redis) -> Directory:
    """Eight entries."""
    directory = Directory(redis, secret=SECRET)
    for number in range(ENTRIES):
        await directory.write(Tenant(name="acme", description=str(number)), actor="cli:anna")
    return directory


async def problem_of(directory: Directory) -> tuple[int, str] | None:
    _, problem = await directory.audit.verify()
    return (problem.sequence, problem.why) if problem else None


async def test_an_entry_says_who_changed_what(redis: Redis, directory: Directory) -> None:
    """And when, by Redis' clock."""
    await directory.write(key(1), actor="key:ops")
    created = (await directory.audit.read(ENTRIES, 1))[0].read()
    await directory.write(key(1, description="ci", digest="f" * 64), actor="key:ops")
    changed = (await directory.audit.read_back(limit=1))[0].read()
    assert (created.actor, created.action, created.subject, created.tenant) == (
        "key:ops",
        "key.create",
        "key_1",
        "acme",
    )
    assert changed.action == "key.update"
    assert changed.changes == {"digest": "changed", "description": ["", "ci"]}
    assert (created.before, created.after) == (None, changed.before)
    assert abs((await redis.time())[0] - changed.at / 1000) < 60
    assert key(1).digest not in repr(created) and "f" * 64 not in repr(changed.changes)


async def test_an_untouched_log_is_whole(directory: Directory) -> None:
    """With the secret and without it."""
    verifier, problem = await directory.audit.verify()
    assert (verifier.entries, problem) == (ENTRIES, None)
    assert verifier.last.sequence == ENTRIES


@pytest.mark.parametrize("place", [1, 4, ENTRIES])
async def test_an_edited_entry_is_named(redis: Redis, directory: Directory, place: int) -> None:
    """Even if somebody computes its hash anew."""
    logged = (await directory.audit.read(place - 1, 1))[0]
    document = bytes(logged.entry).replace(b"cli:anna", b"cli:otto")
    await rewrite(redis, place, document, logged.hash, logged.seal)
    assert await problem_of(directory) == (place, "it was edited: it does not have its hash")
    forged = audit.append(msgspec.json.decode(document, type=audit.AuditRecord), b"")
    await rewrite(redis, place, document, forged.hash, logged.seal)
    assert await problem_of(directory) == (place, f"its seal {NOT_OURS}")


async def test_a_chain_that_was_computed_anew_has_no_seals(redis: Redis, directory: Directory) -> None:
    """Of somebody who may write to Redis, but does not know the secret."""
    chain = [logged.read() async for logged in directory.audit.entries()]
    previous = audit.NO_HASH
    await redis.delete(AUDIT_KEY)
    for entry in chain:
        forged = audit.append(msgspec.structs.replace(entry, actor="cli:otto", previous=previous), b"guessed")
        await rewrite(redis, entry.sequence, bytes(forged.entry), forged.hash, forged.seal)
        previous = forged.hash
    await mark(redis, HEAD_KEY, audit.mark(b"guessed", "head", ENTRIES, previous))
    assert await problem_of(directory) == (1, f"its seal {NOT_OURS}")
    assert await problem_of(Directory(redis)) is None  # without the secret nobody can tell


@pytest.mark.parametrize("place", [1, 2, 5, ENTRIES - 1])
async def test_a_deleted_entry_is_named(redis: Redis, directory: Directory, place: int) -> None:
    """From the start or the middle."""
    await redis.xdel(AUDIT_KEY, f"{place}-0")
    assert await problem_of(directory) == (place, f"it is missing; the next one there is {place + 1}")


@pytest.mark.parametrize("left", [0, 1, 5, ENTRIES - 1])
async def test_a_log_cut_off_at_its_end(redis: Redis, directory: Directory, left: int) -> None:
    """The head tells; it cannot be made for another place."""
    for place in range(left + 1, ENTRIES + 1):
        await redis.xdel(AUDIT_KEY, f"{place}-0")
    assert await problem_of(directory) == (left + 1, f"the log ends at {left}, its head is {ENTRIES}")
    if left:
        last = (await directory.audit.read(left - 1, 1))[0]
        await mark(redis, HEAD_KEY, audit.ChainPosition(left, last.hash, last.seal))
        assert await problem_of(directory) == (
            left,
            "the seal of the head was not made with this installation's secret",
        )


async def test_a_log_cut_off_at_its_start(redis: Redis, directory: Directory) -> None:
    """The checkpoint tells; it cannot be made for another place."""
    await redis.xtrim(AUDIT_KEY, minid="4-0", approximate=False)
    assert await problem_of(directory) == (1, "it is missing; the next one there is 4")
    await mark(
        redis, CHECKPOINT_KEY, audit.ChainPosition(3, (await directory.audit.read(3, 1))[0].read().previous, "0" * 64)
    )
    assert await problem_of(directory) == (3, f"the seal of the checkpoint {NOT_OURS}")


async def test_an_entry_behind_the_head(redis: Redis, directory: Directory) -> None:
    """Somebody has added one by hand; from then on nothing can be changed before it is gone."""
    last = (await directory.audit.read_back(limit=1))[0]
    await rewrite(redis, ENTRIES + 1, bytes(last.entry), last.hash, last.seal)
    assert await problem_of(directory) == (ENTRIES + 1, f"it is missing; the next one there is {ENTRIES}")


async def test_without_its_head_nothing_can_be_changed(redis: Redis, directory: Directory) -> None:
    """It would be a second beginning."""
    await redis.delete(HEAD_KEY)
    assert await problem_of(directory) == (1, f"the log ends at {ENTRIES}, its head is 0")
    with pytest.raises(Conflict, match="head of the audit log was removed") as caught:
        await directory.write(Tenant(name="b"), actor="cli:anna")
    assert caught.value.code == "audit_log_broken"
    assert await directory.get(Tenant, "b") is None


async def test_a_full_log_drops_its_oldest_tenth(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Says so before, and stays verifiable."""
    directory = Directory(redis, secret=SECRET, caps=Caps(audit=20))
    for number in range(50):
        assert ("nearly full" in caplog.text) is (number > 16)
        assert ("oldest entries of the audit log were dropped" in caplog.text) is (number > 20)
        await directory.write(Tenant(name="acme", description=str(number)), actor="cli:anna")
        assert await redis.xlen(AUDIT_KEY) <= 20
    assert await problem_of(directory) is None
    assert (await directory.audit.checkpoint()).sequence == 50 - await redis.xlen(AUDIT_KEY)
    assert (await directory.audit.head()).sequence == 50


async def test_an_export_can_be_verified_without_redis(directory: Directory) -> None:
    """Line by line; also a part of it."""
    lines = [logged.line() async for logged in directory.audit.entries()]
    assert all(msgspec.json.decode(line)["entry"]["actor"] == "cli:anna" for line in lines)
    verifier, problem = verify_export(io.BytesIO(b"".join(lines)), SECRET)
    assert (verifier.entries, problem) == (ENTRIES, None)
    assert verify_export(lines[3:6])[1] is None
    assert verify_export([])[1] is None


@pytest.mark.parametrize(
    ("damage", "sequence"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], 3),
        (lambda lines: [*lines[:2], b"{}\n", *lines[3:]], 3),
        (lambda lines: [*lines[:2], lines[2].replace(b"anna", b"otto"), *lines[3:]], 3),
        (lambda lines: [lines[1], lines[0]], 3),
    ],
    ids=["missing", "nonsense", "edited", "order"],
)
async def test_a_damaged_export(directory: Directory, damage: Any, sequence: int) -> None:
    """The first broken entry is named."""
    lines = [logged.line() async for logged in directory.audit.entries()]
    _, problem = verify_export(damage(lines), SECRET)
    assert problem is not None and problem.sequence == sequence


async def rewrite(redis: Redis, place: int, document: bytes, digest: str, seal: str) -> None:
    """Put an entry into the stream, as somebody may who can write to Redis."""
    later: list[Any] = await redis.xrange(AUDIT_KEY, f"{place + 1}-0", "+")  # type: ignore[assignment]
    kept: list[Any] = await redis.xrange(AUDIT_KEY, "-", f"({place}-0")  # type: ignore[assignment]
    await redis.delete(AUDIT_KEY)
    for name, fields in [*kept, (f"{place}-0", {"entry": document, "hash": digest, "seal": seal}), *later]:
        await redis.xadd(AUDIT_KEY, fields, id=name)


async def mark(redis: Redis, name: str, mark: audit.ChainPosition) -> None:
    """Set the head or checkpoint by hand."""
    await redis.execute_command(*_set_mark(name, mark))
