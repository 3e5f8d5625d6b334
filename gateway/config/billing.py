"""The `[usage]` and `[[prices]]` sections: how usage is kept, and what tokens cost."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.records.directory import MicroDollars
from gateway.records.section import Positive, Seconds, Section


class UsageSettings(Section, frozen=True):
    """The ledger of what was used, see [usage.md](usage.md)."""

    flush_interval: Annotated[
        Seconds,
        Meta(description="Seconds between two writes of ended turns to Redis, and two checkpoints of running ones."),
    ] = 0.5
    journal_bytes: Annotated[
        Positive, Meta(description="Most bytes of a gateway's journal, which wait for Redis while it is away.")
    ] = 268_435_456
    journals: Annotated[
        str | None,
        Meta(
            description="Folder of the journals; gateways that share it finish what a dead one has left, also from "
            "other machines. Empty: `usage` in `redis.data`."
        ),
    ] = None
    entries_per_day: Annotated[
        Positive,
        Meta(description="Single turns of one tenant and day that are kept (about); sums count the others too."),
    ] = 20_000
    entry_days: Annotated[Positive, Meta(description="Days that single turns are kept.")] = 30
    hour_days: Annotated[Positive, Meta(description="Days that sums of single hours are kept.")] = 60
    day_days: Annotated[Positive, Meta(description="Days that sums of days are kept.")] = 800


class PriceSettings(Section, frozen=True):
    """What tokens of a model or an adapter cost: micro-dollars (a dollar is 1,000,000) per million tokens."""

    name: Annotated[
        str,
        Meta(min_length=1, max_length=128, description="Model or adapter; adapters without a price have the base's."),
    ]
    input: Annotated[MicroDollars, Meta(description="Price of prompt tokens that were computed.")]
    output: Annotated[MicroDollars, Meta(description="Price of generated tokens.")]
    cached_input: Annotated[
        MicroDollars | None, Meta(description="Price of prompt tokens found in the prefix cache; empty: as `input`.")
    ] = None
