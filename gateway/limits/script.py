"""Encodes the arguments of `limits.lua` and decodes its replies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources

from msgspec import Struct

from gateway.limits.counters import Counters, packed_bounds
from gateway.records.quota import Amounts, LimitSubject

SCRIPT = resources.files("gateway.limits").joinpath("limits.lua").read_text("utf-8")

STATE_KEY = "rh1:limit:{{{tenant}}}"
HELD_KEY = "rh1:limit-held:{{{tenant}}}"
LEASES_KEY = "rh1:limit-lease:{{{tenant}}}"

Argument = str | int | bytes


class ScriptReply(Struct, frozen=True):
    """The script's decision, and the counters on which it was made or which it led to."""

    granted: bool
    now: int
    """Time that counts, in milliseconds since 1970."""
    counters: list[Counters]
    """Counters of each subject, in the order of the arguments."""


@lru_cache(maxsize=10_000)
def keys(tenant: str) -> tuple[str, ...]:
    """Return the keys of a tenant's limits; all are in one slot of a cluster."""
    return tuple(key.format(tenant=tenant) for key in (STATE_KEY, HELD_KEY, LEASES_KEY))


def arguments(
    operation: str, lease: int, id: str, amounts: Amounts, subjects: Sequence[LimitSubject]
) -> list[Argument]:
    """Return the arguments of all operations but renew and release."""
    wanted: list[Argument] = [
        operation,
        lease,
        id,
        amounts.requests,
        amounts.turns,
        amounts.sockets,
        amounts.input_tokens,
        amounts.output_tokens,
        amounts.spend,
    ]
    for subject in subjects:
        wanted += (subject.name, packed_bounds(subject.quota))
    return wanted


def renewal(lease: int, ids: Iterable[str]) -> list[Argument]:
    """Return the arguments of renew."""
    return ["renew", lease, *ids]


def release(lease: int, part: str) -> list[Argument]:
    """Return the arguments of release. Args: part: of the ids of all reservations whose leases are to end."""
    return ["release", lease, part]


def answer(reply: Sequence[int | bytes]) -> ScriptReply:
    """Decode the reply of all operations but renew and release."""
    granted, now, *counters = reply
    return ScriptReply(
        granted == 1, int(now), [Counters.decode(text) for text in counters if not isinstance(text, int)]
    )
