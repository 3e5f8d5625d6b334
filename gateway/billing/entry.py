"""One turn in the usage ledger, the counters that it adds to, and the Redis keys of both. Pure.

The ledger has no time to live: a Redis that runs short of memory evicts what has one first, and bills must not vanish.
`gateway.billing.store` deletes what is old enough.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

Outcome = Literal["completed", "incomplete", "blocked", "cancelled", "failed", "refused", "lost"]
"""`lost`: the gateway died; the figures are those of its last checkpoint."""


class LedgerEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one turn used, and what it costs."""

    turn: str
    """Id of the response."""
    at: int
    """Time when the turn ended, in milliseconds since 1970 by the gateway's clock."""
    tenant: str
    key: str
    user: str | None = None
    model: str
    """Public name of the base model."""
    adapter: str | None = None
    tier: str = ""
    outcome: Outcome
    cache: Literal["hit", "miss", "bypass"] = "miss"
    """`hit`: a stored answer, which is free; its token counts say what was shown."""
    input: int = 0
    """Prompt tokens, those found in the prefix cache included."""
    cached: int = 0
    output: int = 0
    picodollars: int | None = None
    """Exact cost in 10^-12 dollars; None if the model had no price."""
    cache_reason: str = ""
    """Reason of the cache's outcome in one word; see docs/caching.md."""
    milliseconds: int | None = None
    """Time from the request's arrival to the answer's end; None for embeddings and entries of older versions."""
    first_token_ms: int | None = None
    """Time from the request's arrival to the first token; None without one."""
    queue_ms: int | None = None
    """Part of `first_token_ms` in the engine's queue; None without a first token, and for stored answers."""


class Totals(Struct, frozen=True):
    """Sums over turns; the fields are the counters that Redis keeps."""

    turns: int = 0
    hits: int = 0
    """Turns that the response cache answered. Their tokens are not counted below: nothing was computed for them."""
    input: int = 0
    cached: int = 0
    output: int = 0
    picodollars: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(mine + its for mine, its in zip(self.values, other.values, strict=True)))

    @property
    def values(self) -> tuple[int, ...]:
        return msgspec.structs.astuple(self)


COUNTERS = Totals.__struct_fields__


def totals(entry: LedgerEntry) -> Totals:
    """Return what an entry adds to the counters."""
    if entry.cache == "hit":
        return Totals(turns=1, hits=1)
    return Totals(1, 0, entry.input, entry.cached, entry.output, entry.picodollars or 0)


class Group(Struct, frozen=True, order=True):
    """Names by which counters are kept apart, within a tenant and an hour or day."""

    model: str
    adapter: str
    """Name of the adapter; empty for the base model itself."""
    key: str

    @property
    def field(self) -> str:
        """Prefix of the group's fields in a Redis hash."""
        return "|".join(name.replace("%", "%25").replace("|", "%7C") for name in (self.model, self.adapter, self.key))


def group(entry: LedgerEntry) -> Group:
    """Return the group of counters that an entry adds to."""
    return Group(entry.model, entry.adapter or "", entry.key)


def parse_counters(fields: dict[bytes, bytes]) -> dict[Group, Totals]:
    """Parse a hash of counters as Redis gives it. Marks of writers, which begin with `#`, are skipped."""
    found: dict[Group, dict[str, int]] = {}
    for field, amount in fields.items():
        if field.startswith(b"#"):
            continue
        *names, counter = field.decode().split("|")
        own = Group(*(name.replace("%7C", "|").replace("%25", "%") for name in names))
        found.setdefault(own, {})[counter] = int(amount)
    return {own: Totals(**counters) for own, counters in found.items()}


DAY_DIGITS = 8
"""Digits of a day's name, `20261122`; an hour's name has two more."""
TENANTS_KEY = "rh1:usage-tenants"


def hour_of(at: int) -> str:
    """Return the hour (UTC) of a time in milliseconds: `2026112214`. Its first eight digits are the day."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y%m%d%H")


def begin_of(period: str) -> datetime:
    """Return the time at which a day (`20261122`) or an hour (`2026112214`) begins."""
    return datetime.strptime(period.ljust(10, "0"), "%Y%m%d%H").replace(tzinfo=UTC)


def entries_key(tenant: str, day: str) -> str:
    return f"rh1:usage:{{{tenant}}}:{day}"


def counters_key(tenant: str, period: str) -> str:
    """Return the Redis key of the counters of an hour or a day."""
    return f"rh1:usage-{'day' if len(period) == DAY_DIGITS else 'hour'}:{{{tenant}}}:{period}"


def periods_key(tenant: str) -> str:
    return f"rh1:usage-periods:{{{tenant}}}"
