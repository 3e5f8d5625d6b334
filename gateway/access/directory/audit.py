"""The audit log as a chain of hashes: the content of a record, the hash of the next one, and the verification of a log.
Pure.

An entry's document names the hash of the entry before it, and its own hash is the SHA-256 of that document: an entry
that was edited, removed or put in between breaks the chain, and anybody can check that without a secret. Two marks are
kept apart from the entries: the head (the last entry) shows a log that was cut off at its end, the checkpoint (the last
entry that the cap on the log's length has dropped) one that was cut off at its start. Seals are HMACs under the
installation's secret: who can write to Redis but does not know the secret cannot make a chain of his own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from gateway.records.directory import Record

NO_HASH = "0" * 64
"""Hash that stands for the record before the first one."""
_LONGEST_VALUE = 300
"""Most bytes of JSON of one value in a record; a longer value is replaced by its digest."""
_BOOKKEEPING = frozenset({"revision", "created_at", "updated_at"})


class ChainPosition(Struct, frozen=True):
    """A position in the chain: a record's number, hash and seal."""

    sequence: int = 0
    hash: str = NO_HASH
    seal: str = ""


START = ChainPosition()


def is_lost(seen: ChainPosition, checkpoint: ChainPosition, found: str | None) -> bool:
    """Whether an entry that was seen has gone from the log.

    Args:
        checkpoint: the last entry that the cap on the log's length has dropped.
        found: hash of the entry that has its number now.
    """
    if seen == START or found == seen.hash:
        return False
    return found is not None or checkpoint.sequence < seen.sequence


class AuditRecord(Struct, frozen=True, kw_only=True):
    """One change: who changed what, and when."""

    sequence: int
    at: int
    """Time of the change, in milliseconds since 1970 by Redis' clock."""
    actor: str
    action: str
    """Name of the action, such as `tenant.create`."""
    subject: str
    """Identity of what was changed."""
    tenant: str | None
    """Tenant to which the changed record belongs."""
    before: str | None
    """SHA-256 of the record's document before the change; the next field is the one after it."""
    after: str | None
    changes: dict[str, Any]
    """Field to [value before, value after]; a secret field only says that it was changed."""
    nonce: str
    """A random value, so that no two attempts make the same record."""
    previous: str
    """Hash of the record before."""


class SealedAuditRecord(Struct, frozen=True):
    """An audit record as it is stored and exported, with its hash and seal."""

    entry: Raw
    """The record as a JSON document, byte for byte as it was hashed."""
    hash: str
    seal: str

    def read(self) -> AuditRecord:
        """Decode the record.

        Raises:
            ValueError: it is no entry.
        """
        return _decode(self.entry)

    def line(self) -> bytes:
        """Return one line of an export."""
        return msgspec.json.encode(self) + b"\n"


_decode = msgspec.json.Decoder(AuditRecord).decode
_decode_line = msgspec.json.Decoder(SealedAuditRecord).decode


class ChainBreak(Struct, frozen=True):
    """The first place where a log is broken."""

    sequence: int
    why: str


def append(entry: AuditRecord, secret: bytes) -> SealedAuditRecord:
    """Return the record with its hash and seal."""
    document = msgspec.json.encode(entry)
    digest = hashlib.sha256(document).hexdigest()
    return SealedAuditRecord(Raw(document), digest, seal(secret, "entry", entry.sequence, digest))


def mark(secret: bytes, label: Literal["head", "checkpoint"], sequence: int, digest: str) -> ChainPosition:
    """Return the position of a record."""
    return ChainPosition(sequence, digest, seal(secret, label, sequence, digest))


def seal(secret: bytes, label: Literal["entry", "head", "checkpoint"], sequence: int, digest: str) -> str:
    """Return the seal as hex HMAC-SHA-256; empty without a secret."""
    if not secret:
        return ""
    return hmac.digest(secret, f"roundhouse-audit:{label}:{sequence}:{digest}".encode(), hashlib.sha256).hex()


def difference(before: Record | None, after: Record | None) -> dict[str, Any]:
    """Return field to [value before, value after] of the fields that differ."""
    old, new = _values(before), _values(after)
    secret = (after or before or Record()).SECRET
    changes: dict[str, Any] = {}
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            changes[name] = "changed" if name in secret else [_told(before, name), _told(after, name)]
    return changes


def short(value: Any) -> Any:
    """Return a value as a record shows it: a long one is replaced by the digest of its JSON."""
    document = msgspec.json.encode(value)
    return value if len(document) <= _LONGEST_VALUE else f"sha256:{hashlib.sha256(document).hexdigest()}"


def document_digest(document: str | None) -> str | None:
    """SHA-256 of a record's document."""
    return hashlib.sha256(document.encode()).hexdigest() if document is not None else None


class Verifier:
    """Verifies a log record by record, oldest first."""

    def __init__(self, start: ChainPosition, secret: bytes, *, expect: ChainPosition | None = None) -> None:
        """`start`: the entry before the first one; without the secret only the chain is checked, not the seals;
        `expect`: an entry that must be there, unless it is before the first one."""
        self._secret = secret
        self._expect = expect
        self._last = start
        self._problem: ChainBreak | None = None
        self.entries = 0

    @property
    def problem(self) -> ChainBreak | None:
        """The first problem found."""
        return self._problem

    @property
    def last(self) -> ChainPosition:
        """Position of the last record that was fed, else the start."""
        return self._last

    def begin(self) -> ChainBreak | None:
        """Check, before the first record, that the start is a checkpoint that was made here."""
        self._problem = self._check_mark("checkpoint", self._last)
        return self._problem

    def feed(self, logged: SealedAuditRecord) -> ChainBreak | None:
        """Check the next record; return what is wrong with it or with one before."""
        self._problem = self._problem or self._check(logged)
        if self._problem is None:
            self.entries += 1
            self._last = ChainPosition(self._last.sequence + 1, logged.hash, logged.seal)
        return self._problem

    def finish(self, head: ChainPosition) -> ChainBreak | None:
        """Check, after the last record, that it is the one that the head names."""
        if self._problem is None:
            self._problem = self._check_mark("head", head)
        if self._problem is None and head.sequence != self._last.sequence:
            missing = min(head.sequence, self._last.sequence) + 1
            self._problem = ChainBreak(missing, f"the log ends at {self._last.sequence}, its head is {head.sequence}")
        if self._problem is None and head.hash != self._last.hash:
            self._problem = ChainBreak(head.sequence, "the head names another entry")
        if self._problem is None and self._expect is not None and self._expect.sequence > self._last.sequence:
            self._problem = ChainBreak(self._expect.sequence, f"it was there once, but the log ends at {head.sequence}")
        return self._problem

    def _check(self, logged: SealedAuditRecord) -> ChainBreak | None:
        expected = self._last.sequence + 1
        document = bytes(logged.entry)
        try:
            entry = _decode(document)
        except ValueError:
            return ChainBreak(expected, "it is no entry")
        if entry.sequence != expected:
            return ChainBreak(expected, f"it is missing; the next one there is {entry.sequence}")
        if hashlib.sha256(document).hexdigest() != logged.hash:
            return ChainBreak(expected, "it was edited: it does not have its hash")
        if entry.previous != self._last.hash:
            return ChainBreak(expected, "it does not follow the entry before it")
        if self._expect and self._expect.sequence == expected and self._expect.hash != logged.hash:
            return ChainBreak(expected, "it is not the one that was there once")
        if self._secret and not hmac.compare_digest(
            seal(self._secret, "entry", entry.sequence, logged.hash), logged.seal
        ):
            return ChainBreak(expected, "its seal was not made with this installation's secret")
        return None

    def _check_mark(self, label: Literal["head", "checkpoint"], mark: ChainPosition) -> ChainBreak | None:
        if mark == START or not self._secret:
            return None
        if hmac.compare_digest(seal(self._secret, label, mark.sequence, mark.hash), mark.seal):
            return None
        return ChainBreak(mark.sequence, f"the seal of the {label} was not made with this installation's secret")


def verify_export(
    lines: Iterable[bytes], secret: bytes = b"", *, expect: ChainPosition | None = None
) -> tuple[Verifier, ChainBreak | None]:
    """Check exported lines. They may begin and end anywhere: an end that is missing is seen only if it is expected."""
    verifier = Verifier(START, secret, expect=expect)
    for number, line in enumerate(lines, 1):
        try:
            logged = _decode_line(line)
            entry = logged.read()
        except ValueError:
            return verifier, ChainBreak(number, f"line {number} is no entry")
        if number == 1:
            verifier = Verifier(ChainPosition(entry.sequence - 1, entry.previous), secret, expect=expect)
        if problem := verifier.feed(logged):
            return verifier, problem
    return verifier, verifier.finish(mark(secret, "head", verifier.last.sequence, verifier.last.hash))


def _told(record: Record | None, name: str) -> Any:
    return None if record is None else short(msgspec.to_builtins(getattr(record, name)))


def _values(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {}
    return {name: value for name, value in msgspec.to_builtins(record).items() if name not in _BOOKKEEPING}
