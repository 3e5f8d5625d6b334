"""What a turn carries on its road, and how it ended: the words that the steps of the pipeline share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.policy import Scope
from cache.response import Entry, Lookup, Outcome
from gateway.adapters import Adapter
from gateway.billing.cost import Price, cost, picodollars
from gateway.engines import Engine, Pool
from gateway.errors import ApiError
from gateway.limits.counters import Amounts
from gateway.protocol.stream import CacheOutcome
from gateway.relay import Streamed
from gateway.semantic.attempt import Attempt
from gateway.service import Share
from gateway.turns import Turn
from router.complexity import Complexity
from router.features import Features
from router.tier import Choice

NOT_LOOKED_UP: Final = Lookup(Outcome.MISS, "")


NOTHING_SEEN = Features()


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
    prices: Mapping[str, Price | None] = field(default_factory=dict)
    """By pool name, in force when the request arrived."""
    seed: int = field(default_factory=lambda: random.getrandbits(63))
    safety: str | None = None
    """Digest of the rules that its answer is filtered by."""
    expected: bool = False
    """Whether its length is to be learnt, see `gateway.limits.expectation`."""
    digest: str | None = None
    """Key of the response cache; None if it may not be used."""
    scope: Scope = Scope.USER
    """Who may be given its answer."""
    found: Lookup = NOT_LOOKED_UP
    """What the response cache said last; the reason is also that of a bypass."""
    admitted: Entry | None = None
    """Its answer, once the response cache has it."""
    attempt: Attempt | None = None
    """What the semantic cache has found out."""
    remarks: tuple[str, ...] = ()
    """Of the semantic cache, for the route's reasons."""
    outcome: CacheOutcome = "bypass"
    """Of the response cache, as far as it is known."""
    seen: Features = NOTHING_SEEN
    """What the newest message shows."""
    complexity: Complexity | None = None
    """None until it was looked at."""
    choice: Choice | None = None
    """The tier chosen, if the request leaves it open."""
    embedding: NDArray[np.float32] | None = None
    """Of the newest user message, of length 1, if anybody has asked for it."""
    trial: bool = False
    """Targets of the route that it asked for are being compared."""
    canary: bool = False
    """It goes to one of those on trial."""

    def cut_off(self, failure: BaseException | None = None) -> End | None:
        """The turn's end if it stopped now, or did so because of a failure; None if nobody was shown anything yet."""
        routed = self.turn.log.routed
        if routed is None:
            return None
        error = failure if isinstance(failure, ApiError) else None
        streamed = Streamed(reason="error", usage=self.turn.delivered(), error=error)
        return End(streamed, routed.tier, routed.model, self.outcome, canary=self.canary)

    def price(self, end: End) -> Price | None:
        """What tokens cost where the turn ended."""
        return self.prices.get(self.base_model(end))

    def base_model(self, end: End) -> str:
        """Public name of the model that answered, without its adapter."""
        return self.adapter.model if self.adapter else end.model

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
    canary: bool = False
    """A model on trial has answered."""
    price: Price | None = None
    """None: nothing is charged, and no cost is told."""

    @property
    def charged(self) -> Amounts:
        """What counts against limits: what was computed, and its cost."""
        if self.cache == "hit":
            return Amounts()
        usage = self.streamed.usage
        return Amounts(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, spend=self.cost or 0)

    @property
    def picodollars(self) -> int | None:
        """The exact cost; see `gateway.billing.cost`. An answer from the response cache is free."""
        return None if self.price is None else picodollars(self.price, *self._billed)

    @property
    def cost(self) -> int | None:
        """Micro-dollars, rounded up."""
        return None if self.price is None else cost(self.price, *self._billed)

    @property
    def _billed(self) -> tuple[int, int, int]:
        usage = self.streamed.usage
        return (0, 0, 0) if self.cache == "hit" else (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
