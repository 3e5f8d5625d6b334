"""Plans a change of the directory: the commands to run in Redis, or the reason for a refusal. Pure.

A change is decided on a consistent look at Redis (`questions` says at what) and applied only if the audit log's head is
still the one that was seen. As every change moves the head, that makes all of them happen one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway.access.directory import audit
from gateway.access.directory.audit import START, AuditRecord, ChainPosition
from gateway.access.directory.change import Caps, Change, Configured, Delete, Idempotency, Note, Put
from gateway.access.directory.schema import (
    AUDIT_KEY,
    CHECKPOINT_KEY,
    HEAD_KEY,
    OWNED,
    index_key,
    indexes,
    once_key,
    owner,
    records_key,
    unique,
)
from gateway.errors import Conflict, InvalidRequest, NotFound, PreconditionFailed, invalid_value
from gateway.records.directory import KINDS, Key, Kind, Record, decode, encode

ONCE_SECONDS = 24 * 3600
"""Seconds for which an idempotency key is remembered."""

Command = tuple[str, ...]


class IdempotencyRecord(Struct, frozen=True):
    """The result that is remembered for an idempotency key."""

    digest: str
    documents: list[tuple[Kind, str] | None]
    """Kind and document that each change wrote, if any."""


class DirectorySnapshot(Struct, frozen=True):
    """A consistent snapshot of the keys in Redis that a change depends on."""

    now: int
    """Time of the snapshot, in milliseconds since 1970 by Redis' clock."""
    head: ChainPosition
    checkpoint: ChainPosition
    answers: Mapping[Command, Any]


class Author(Struct, frozen=True):
    """The actor that asks for changes."""

    actor: str
    once: Idempotency | None
    """Idempotency key of the changes, if they have one."""
    nonce: str
    """A random value, new for each attempt, that tells otherwise equal audit records apart."""


class ChangePlan(Struct, frozen=True):
    """What a change will do, or has done before."""

    commands: list[Command]
    records: list[Record | None]
    """Records after the change, one per change; None for what was deleted or only noted."""
    head: ChainPosition
    replayed: bool = False


_decode_once = msgspec.json.Decoder(IdempotencyRecord).decode


def questions(changes: Sequence[Change], actor: str, once: Idempotency | None) -> list[Command]:
    """Return the commands whose answers `plan` needs; none of them writes.

    Raises:
        ValueError: the changes cannot be made together.
    """
    written = [change for change in changes if not isinstance(change, Note)]
    names = {(c.record.KIND, c.record.identity) if isinstance(c, Put) else (c.kind, c.identity) for c in written}
    if len(names) != len(written) or (len(written) > 1 and any(isinstance(change, Delete) for change in written)):
        raise ValueError("changes made together must write different records, and delete none")
    asked: list[Command] = [("XLEN", AUDIT_KEY)]
    if once is not None:
        asked.append(("GET", once_key(actor, once.key)))
    for change in changes:
        if isinstance(change, Put):
            asked += _questions_of(change.record)
        elif isinstance(change, Delete):
            asked.append(("HGET", records_key(change.kind), change.identity))
            asked += _children(change.kind, change.identity)
    return list(dict.fromkeys(asked))


def question_when_full(seen: DirectorySnapshot, caps: Caps, adding: int) -> Command | None:
    """Return the command that reads the record up to which a full audit log is cut; None while there is room."""
    if int(seen.answers["XLEN", AUDIT_KEY]) < caps.audit:
        return None
    last = f"{_last_to_go(seen, caps, adding)}-0"
    return ("XRANGE", AUDIT_KEY, last, last)


def plan(
    changes: Sequence[Change],
    author: Author,
    seen: DirectorySnapshot,
    *,
    caps: Caps,
    configured: Configured,
    secret: bytes,
) -> ChangePlan:
    """Decide on changes, all or none. They concern different records.

    Raises:
        Conflict: it exists already, is configured in the file, is still in use, or a cap is reached; or the idempotency
            key was used for another request.
        PreconditionFailed: another revision was expected.
        NotFound: there is nothing to replace or delete.
        InvalidRequest: a field has a wrong value, or names a tenant or user that does not exist.
    """
    once = author.once
    if once is not None and (known := seen.answers["GET", once_key(author.actor, once.key)]) is not None:
        return _replay(_decode_once(known), once, seen.head)
    if seen.head == START and int(seen.answers["XLEN", AUDIT_KEY]):
        raise Conflict(
            "the head of the audit log was removed from Redis; nothing can be changed before it is back",
            code="audit_log_broken",
        )
    rules = _Rules(seen, caps, configured)
    decisions: list[_Decision] = []
    appends: list[Command] = []
    head = seen.head
    for change in changes:
        sequence = head.sequence + 1
        decision = _noted(change) if isinstance(change, Note) else rules.decide(change, sequence)
        decisions.append(decision)
        logged = audit.append(_entry(decision, author, sequence, seen.now, head), secret)
        fields = ("entry", bytes(logged.entry).decode(), "hash", logged.hash, "seal", logged.seal)
        appends.append(("XADD", AUDIT_KEY, f"{sequence}-0", *fields))
        head = audit.mark(secret, "head", sequence, logged.hash)
    records = [decision.after for decision in decisions]
    writes = [command for decision in decisions for command in _writes(decision.before, decision.after)]
    # Adding to the log fails if somebody has tampered with it: it comes first, before anything else is written.
    commands = [*appends, *writes, _set_mark(HEAD_KEY, head)]
    commands += _cut(seen, secret, caps, len(changes))
    if once is not None:
        remembered = IdempotencyRecord(
            once.digest, [(record.KIND, encode(record)) if record else None for record in records]
        )
        document = msgspec.json.encode(remembered).decode()
        commands.append(("SET", once_key(author.actor, once.key), document, "EX", str(ONCE_SECONDS)))
    return ChangePlan(commands, records, head)


def _questions_of(record: Record) -> list[Command]:
    kind = record.KIND
    tenant = owner(record)
    asked: list[Command] = [("HGET", records_key(kind), record.identity), ("ZCARD", index_key(kind))]
    if tenant is not None:
        asked += [("ZCARD", index_key(kind, tenant=tenant)), ("HEXISTS", records_key("tenant"), tenant)]
    if isinstance(record, Key) and record.user is not None:
        asked.append(("HGET", records_key("user"), record.user))
    if found_by := unique(record):
        asked.append(("HGET", *found_by))
    return asked


def _children(kind: Kind, identity: str) -> list[Command]:
    """Return the commands that count what belongs to a tenant or user."""
    if kind == "tenant":
        return [("ZCARD", index_key(owned, tenant=identity)) for owned in OWNED]
    return [("ZCARD", index_key("key", user=identity))] if kind == "user" else []


class _Decision(Struct, frozen=True):
    """The result of one change."""

    action: str
    subject: str
    tenant: str | None
    changes: dict[str, Any]
    before: Record | None = None
    after: Record | None = None


def _entry(decision: _Decision, author: Author, sequence: int, now: int, previous: ChainPosition) -> AuditRecord:
    """Return the audit record of a decision."""
    return AuditRecord(
        sequence=sequence,
        at=now,
        actor=author.actor,
        action=decision.action,
        subject=decision.subject,
        tenant=decision.tenant,
        before=audit.document_digest(encode(decision.before)) if decision.before else None,
        after=audit.document_digest(encode(decision.after)) if decision.after else None,
        changes=decision.changes,
        nonce=author.nonce,
        previous=previous.hash,
    )


def _noted(note: Note) -> _Decision:
    changes = {name: audit.short(value) for name, value in note.changes.items()}
    return _Decision(note.action, note.subject, note.tenant, changes)


class _Rules:
    """The rules of changes, given a snapshot. They take earlier changes of the same plan into account."""

    def __init__(self, seen: DirectorySnapshot, caps: Caps, configured: Configured) -> None:
        self._seen = seen
        self._caps = caps
        self._configured = configured
        self._created: Counter[str] = Counter()
        self._taken: set[tuple[str, str]] = set()

    def decide(self, change: Put | Delete, sequence: int) -> _Decision:
        """Raises as `plan`."""
        kind = change.record.KIND if isinstance(change, Put) else change.kind
        subject = change.record.identity if isinstance(change, Put) else change.identity
        before = self._stored(kind, subject)
        if subject in self._configured.of(kind):
            raise Conflict(
                f"the {kind} {subject!r} is set in the configuration file; change it there", code="read_only"
            )
        if before is None and (change.expected or isinstance(change, Delete)):
            raise NotFound(f"no {kind} {subject!r}")
        if before is not None:
            _check_revision(change.expected, before)
        if isinstance(change, Delete):
            self._check_unused(kind, subject)
            after = None
            action = "delete"
        else:
            after = _checked(change.record, before, sequence, self._seen.now)
            self._check_references(after, before)
            self._check_unique(after)
            if before is None:
                self._check_room(after)
            action = "create" if before is None else "update"
        tenant = (after or before or Record()).belongs_to
        return _Decision(f"{kind}.{action}", subject, tenant, audit.difference(before, after), before, after)

    def _stored(self, kind: Kind, identity: str) -> Record | None:
        document = self._seen.answers["HGET", records_key(kind), identity]
        try:
            return None if document is None else decode(KINDS[kind], document)
        except ValueError as error:
            raise Conflict(
                f"the {kind} {identity!r} cannot be read ({error}); remove it by hand: "
                f"redis-cli HDEL '{records_key(kind)}' {identity}",
                code="record_unreadable",
            ) from None

    def _check_references(self, record: Record, before: Record | None) -> None:
        if record.KIND not in OWNED:
            return
        tenant = owner(record)
        if tenant is not None and not self._is_tenant(tenant):
            raise invalid_value("tenant", f"no tenant {tenant!r}")
        if before is not None and before.belongs_to != tenant:
            raise invalid_value("tenant", f"a {record.KIND} stays with its tenant; make a new one")
        if isinstance(record, Key) and record.user is not None:
            user = self._stored("user", record.user)
            if user is None or user.belongs_to != tenant:
                raise invalid_value("user", f"the tenant has no user {record.user!r}")

    def _is_tenant(self, name: str) -> bool:
        return name in self._configured.tenants or bool(self._seen.answers["HEXISTS", records_key("tenant"), name])

    def _check_unique(self, record: Record) -> None:
        if (found_by := unique(record)) is None:
            return
        found = self._seen.answers["HGET", *found_by]
        if found_by in self._taken or (found is not None and _text(found) != record.identity):
            what = "digest" if isinstance(record, Key) else "subject"
            raise Conflict(f"{what}: another {record.KIND} has the same {what}", param=what, code="already_exists")
        self._taken.add(found_by)

    def _check_room(self, record: Record) -> None:
        kind, tenant = record.KIND, owner(record)
        self._check_most(kind, index_key(kind), self._caps.of(kind), "")
        if tenant is not None:
            of = f" of the tenant {tenant!r}"
            self._check_most(kind, index_key(kind, tenant=tenant), self._caps.of_tenant(kind), of)

    def _check_most(self, kind: Kind, index: str, most: int | None, of: str) -> None:
        self._created[index] += 1
        if most is not None and int(self._seen.answers["ZCARD", index]) + self._created[index] > most:
            raise Conflict(f"there are {most} {kind}s{of} already; delete some first", code="directory_full")

    def _check_unused(self, kind: Kind, subject: str) -> None:
        for question in _children(kind, subject):
            if count := int(self._seen.answers[question]):
                owned = next(f"{owned}s" for owned in OWNED if f"{owned}-ids" in question[1])
                raise Conflict(
                    f"the {kind} {subject!r} still has {owned} ({count}); delete them first", code="not_empty"
                )


def _checked(record: Record, before: Record | None, revision: int, now: int) -> Record:
    """Return the record as it will be stored."""
    stamped = msgspec.structs.replace(
        record,
        revision=revision,
        created_at=before.created_at if before else now // 1000,
        updated_at=now // 1000,
    )
    try:
        # Structs check their fields when they are decoded, not when they are made.
        return decode(type(record), encode(stamped))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{record.KIND}: {error}", code="invalid_value") from None


def _check_revision(expected: int | None, before: Record) -> None:
    if expected == 0:
        raise Conflict(f"the {before.KIND} {before.identity!r} exists already", code="already_exists")
    if expected not in (None, before.revision):
        raise PreconditionFailed(
            f"the {before.KIND} {before.identity!r} was changed meanwhile: it has revision {before.revision}, not "
            f"{expected}; read it again"
        )


def _writes(before: Record | None, after: Record | None) -> list[Command]:
    commands: list[Command] = []
    if before is not None:
        kept = set(indexes(after)) if after else set()
        commands += [("ZREM", index, before.identity) for index in indexes(before) if index not in kept]
        if (was := unique(before)) and was != (unique(after) if after else None):
            commands.append(("HDEL", *was))
        if after is None:
            commands.append(("HDEL", records_key(before.KIND), before.identity))
    if after is not None:
        commands.append(("HSET", records_key(after.KIND), after.identity, encode(after)))
        # All have the score 0: the set is sorted by identity, so that a list can go on after one.
        commands += [("ZADD", index, "0", after.identity) for index in indexes(after)]
        if found_by := unique(after):
            commands.append(("HSET", *found_by, after.identity))
    return commands


def _set_mark(key: str, mark: ChainPosition) -> Command:
    return ("HSET", key, "sequence", str(mark.sequence), "hash", mark.hash, "seal", mark.seal)


def _cut(seen: DirectorySnapshot, secret: bytes, caps: Caps, adding: int) -> list[Command]:
    """Return commands that drop the oldest tenth of a full audit log, and mark where it begins then."""
    question = question_when_full(seen, caps, adding)
    if question is None:
        return []
    if not (found := seen.answers[question]):
        return []  # somebody has removed it: what is left is evidence
    fields = [_text(value) for value in found[0][1]]
    sequence = _last_to_go(seen, caps, adding)
    cut = audit.mark(secret, "checkpoint", sequence, fields[fields.index("hash") + 1])
    return [("XTRIM", AUDIT_KEY, "MINID", f"{sequence + 1}-0"), _set_mark(CHECKPOINT_KEY, cut)]


def _last_to_go(seen: DirectorySnapshot, caps: Caps, adding: int) -> int:
    return seen.checkpoint.sequence + max(adding, caps.audit // 10)


def _replay(once: IdempotencyRecord, asked: Idempotency, head: ChainPosition) -> ChangePlan:
    if once.digest != asked.digest:
        raise Conflict("the idempotency key was used for another request", code="idempotency_key_reused")
    records = [decode(KINDS[written[0]], written[1]) if written else None for written in once.documents]
    return ChangePlan([], records, head, replayed=True)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
