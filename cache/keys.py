"""The names under which the caches live in Redis, and the digest that identifies a request.

A response key covers everything that may change the answer. It is a keyed digest: whoever can read Redis cannot test
guesses of a prompt against it without the tenant's secret. `docs/redis-keys.md` lists the names; a test compares.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

PREFIX = "rh1"
"""Version of the key schema: a new one starts cold instead of misreading the old."""


def response_key(tenant: str, digest: str) -> str:
    """HASH: one stored answer."""
    return f"{PREFIX}:resp:{{{tenant}}}:{digest}"


def index_key(tenant: str) -> str:
    """ZSET: `<digest>:<bytes>` of the tenant's stored answers by the time of their end, in milliseconds."""
    return f"{PREFIX}:resp-index:{{{tenant}}}"


def bytes_key(tenant: str) -> str:
    """STRING: bytes of all members of the index together."""
    return f"{PREFIX}:resp-bytes:{{{tenant}}}"


def epochs_key(tenant: str) -> str:
    """HASH: `*` and invalidated tags -> a number; answers that were begun under another number are misses."""
    return f"{PREFIX}:epochs:{{{tenant}}}"


def flight_key(tenant: str, digest: str) -> str:
    """STRING: id of the turn that is answering this request now, and the epochs under which it began."""
    return f"{PREFIX}:flight:{{{tenant}}}:{digest}"


def statistics_batch_key(tenant: str, writer: str) -> str:
    """STRING: number of the last batch of counts that a gateway process has added, so that none is added twice."""
    return f"{PREFIX}:stat-batch:{{{tenant}}}:{writer}"


def statistics_key(tenant: str, hour: str) -> str:
    """HASH: counters of one tenant in one hour (UTC, `yyyymmddhh`)."""
    return f"{PREFIX}:stat:{{{tenant}}}:{hour}"


TENANTS_KEY = f"{PREFIX}:stat-tenants"
"""ZSET: tenants that have statistics, by time of the last flush, in seconds."""

_canonical = msgspec.msgpack.Encoder(order="sorted").encode


def response_digest(parts: dict[str, Any], secret: bytes) -> str:
    """Return the identity of a request: 32 hexadecimal characters.

    Args:
        parts: everything that may change the answer, by name; the order of dictionary keys does not matter, that of
            lists does. A part that is missing and one that is None are different.
        secret: the tenant's, at most 64 bytes.
    """
    return hashlib.blake2b(_canonical(parts), digest_size=16, key=secret).hexdigest()
