"""What a turn carries on its road, and how it ended: the words that the steps of the pipeline share."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from msgspec import Struct

from gateway.adapters import Adapter
from gateway.engines import Engine, Pool
from gateway.protocol.stream import CacheOutcome
from gateway.relay import Streamed
from gateway.service import Share
from gateway.turns import Turn


@dataclass(slots=True)
class Job:
    """What one turn needs on its road."""

    turn: Turn
    pools: list[Pool]
    """Those that may answer."""
    prompts: dict[str, list[int]]
    """Token ids by pool name."""
    began: float
    share: Share
    adapter: Adapter | None = None
    """What the request's name led to when it arrived."""
    seed: int = field(default_factory=lambda: random.getrandbits(63))
    digest: str | None = None
    """Key of the response cache; None if it may not be used."""

    @property
    def outcome(self) -> CacheOutcome:
        """Of the response cache, for a turn that an engine answers."""
        return "bypass" if self.digest is None else "miss"

    def model(self, engine: Engine) -> str:
        """Public name of what answers on this engine."""
        return self.adapter.name if self.adapter else engine.pool.name


class End(Struct, frozen=True):
    """How a turn ended, and who answered."""

    streamed: Streamed
    tier: str
    model: str
    cache: CacheOutcome
    fallback: bool = False

    @property
    def charged(self) -> int:
        """Tokens that count against the tenant's limit: those that were computed for it."""
        return 0 if self.cache == "hit" else self.streamed.usage.total_tokens
