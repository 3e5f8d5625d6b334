"""Quotas of tenants, keys, users, models and adapters: the same fields wherever a limit can be set; and what counts
against them. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Mode = Literal["strict", "expected"]

# The bounds keep every product in the script below 2^53, so that Lua's numbers stay exact.
Rate = Annotated[int, Meta(ge=1, le=100_000_000)]
Seconds = Annotated[int, Meta(ge=1, le=86_400)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
MicroDollars = Annotated[int, Meta(ge=0, le=1_000_000_000_000_000)]


class Quota(Struct, frozen=True, omit_defaults=True):
    """Limits of one subject. A field that is left out limits nothing, or takes the value of what stands behind it."""

    # Unknown fields are ignored: journals and Redis hold quotas that a newer gateway may have written. What people
    # write, in the configuration and to the admin API, is read as a subclass that refuses them.

    requests_per_minute: Annotated[Rate | None, Meta(description="Requests per minute.")] = None
    input_tokens_per_minute: Annotated[Rate | None, Meta(description="Input tokens per minute.")] = None
    output_tokens_per_minute: Annotated[Rate | None, Meta(description="Output tokens per minute.")] = None
    burst_seconds: Annotated[
        Seconds | None,
        Meta(description="Seconds of the rates that may be used at once."),
    ] = None
    concurrent_turns: Annotated[Count | None, Meta(description="Turns that run at the same time.")] = None
    open_sockets: Annotated[Count | None, Meta(description="Open WebSockets of all gateways together.")] = None
    spend_per_day: Annotated[
        MicroDollars | None,
        Meta(description="Micro-dollars (a dollar is 1,000,000) per day, which begins at 0:00 UTC."),
    ] = None
    spend_per_month: Annotated[
        MicroDollars | None, Meta(description="Micro-dollars per month, which begins on its first day at 0:00 UTC.")
    ] = None
    mode: Annotated[
        Mode | None,
        Meta(
            description="What a turn reserves for its answer: strict reserves the output limit, so that no limit is "
            "exceeded; expected reserves what such answers mostly need, so that more turns run."
        ),
    ] = None

    def over(self, behind: Quota) -> Quota:
        """This quota, with the fields that it leaves out taken from the one behind it."""
        own = {name: value for name in Quota.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(behind, **own)

    def within(self, other: Quota) -> Quota:
        """The stricter of two quotas, limit by limit."""
        both = {name: (getattr(self, name), getattr(other, name)) for name in Quota.__struct_fields__}
        modes = [mode for mode in both.pop("mode") if mode is not None]
        limits = {name: min((each for each in given if each is not None), default=None) for name, given in both.items()}
        return Quota(**limits, mode="strict" if "strict" in modes else next(iter(modes), None))


class LimitSubject(Struct, frozen=True):
    """A tenant, key, user, model or adapter whose use is counted."""

    name: str
    """`tenant`, or a kind and a name, such as `key:ci` or `model:llama-7b`."""
    quota: Quota


class Amounts(Struct, frozen=True):
    """Amounts that a turn or socket takes from limits."""

    requests: int = 0
    turns: int = 0
    sockets: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spend: int = 0
    """Cost in micro-dollars."""


class Charge(Struct, frozen=True, omit_defaults=True):
    """What limits are charged in the place of one reservation whose gateway has died."""

    reservation: str
    used: Amounts
    subjects: tuple[LimitSubject, ...]
    if_held: bool = False
    """Whether to charge it only if Redis still holds the reservation: its turn had ended, and may have been settled."""
