"""Redis keys of the directory's records and indexes. They share one hash tag, so that a script may touch all of them.
Pure."""

from __future__ import annotations

import hashlib

from gateway.records.directory import Key, Kind, Record, Route, User

HEAD_KEY = "rh1:{directory}:head"
CHECKPOINT_KEY = "rh1:{directory}:checkpoint"
AUDIT_KEY = "rh1:{directory}:audit"
DIGESTS_KEY = "rh1:{directory}:key-digests"
SUBJECTS_KEY = "rh1:{directory}:user-subjects"
_RECORDS = "rh1:{{directory}}:{kind}"
_ALL = "rh1:{{directory}}:{kind}-ids"
_OF_TENANT = "rh1:{{directory}}:{kind}-ids:tenant:{tenant}"
_OF_USER = "rh1:{{directory}}:{kind}-ids:user:{user}"
_ONCE = "rh1:{{directory}}:once:{digest}"

OWNED: tuple[Kind, ...] = ("user", "key", "route")
"""Kinds whose records belong to a tenant, or may do so."""


def owner(record: Record) -> str | None:
    """Return the tenant that a record of these kinds belongs to; None: nobody, or it is of another kind."""
    return record.tenant if isinstance(record, User | Key | Route) else None


def records_key(kind: Kind) -> str:
    """Return the key of the HASH of a kind's documents by identity."""
    return _RECORDS.format(kind=kind)


def index_key(kind: Kind, *, tenant: str | None = None, user: str | None = None) -> str:
    """Return the key of the ZSET of a kind's identities: all of them, a tenant's, or a user's."""
    if user is not None:
        return _OF_USER.format(kind=kind, user=user)
    return _ALL.format(kind=kind) if tenant is None else _OF_TENANT.format(kind=kind, tenant=tenant)


def once_key(actor: str, key: str) -> str:
    """Return the key of the result for an idempotency key of an actor."""
    return _ONCE.format(digest=hashlib.sha256(f"{actor}\n{key}".encode()).hexdigest())


def indexes(record: Record) -> list[str]:
    """Return the sorted sets that hold a record's identity."""
    keys = [index_key(record.KIND)]
    if (tenant := owner(record)) is not None:
        keys.append(index_key(record.KIND, tenant=tenant))
    if isinstance(record, Key) and record.user is not None:
        keys.append(index_key("key", user=record.user))
    return keys


def unique(record: Record) -> tuple[str, str] | None:
    """Hash and field by which a record is found beside its identity; no two records have the same."""
    if isinstance(record, Key):
        return DIGESTS_KEY, record.digest
    if isinstance(record, User):
        return SUBJECTS_KEY, subject_field(record.tenant, record.subject)
    return None


def subject_field(tenant: str, subject: str) -> str:
    return f"{tenant}/{subject}"
