"""What a turn carries on its road, and how it ended: the words that the steps of the pipeline share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.policy import Scope
from cache.response import CachedAnswer, Lookup, LookupOutcome
from gateway.billing.cost import PICODOLLARS_PER_MICRODOLLAR, TokenPrices, cost, picodollars
from gateway.engines.adapters import ResolvedAdapter
from gateway.engines.pools import Engine, Pool
from gateway.errors import ApiError
from gateway.limits.counters import Amounts
from gateway.limits.limiter import Reservation
from gateway.pipeline.relay import Streamed
from gateway.pipeline.service_tier import Share
from gateway.pipeline.sources.semantic_attempt import Attempt
from gateway.protocol.stream import CacheOutcome, Earlier, TokenUsage
from gateway.turns import Turn
from router.cascade import Escalation
from router.complexity import Complexity
from router.features import Features
from router.tier import TierChoice

NOT_LOOKED_UP: Final = Lookup(LookupOutcome.MISS, "")


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
    adapter: ResolvedAdapter | None = None
    """What the request's name led to when it arrived."""
    prices: Mapping[str, TokenPrices | None] = field(default_factory=dict)
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
    admitted: CachedAnswer | None = None
    """Its answer, once the response cache has it."""
    attempt: Attempt | None = None
    """What the semantic cache has found out."""
    remarks: tuple[str, ...] = ()
    """Of a route's name and of the semantic cache, for the reasons."""
    outcome: CacheOutcome = "bypass"
    """Of the response cache, as far as it is known."""
    seen: Features = NOTHING_SEEN
    """What the newest message shows."""
    complexity: Complexity | None = None
    """None until it was looked at."""
    choice: TierChoice | None = None
    """The tier chosen, if the request leaves it open."""
    embedding: NDArray[np.float32] | None = None
    """Of the newest user message, of length 1, if anybody has asked for it."""
    trial: bool = False
    """Targets of the route that it asked for are being compared."""
    canary: bool = False
    """It goes to one of those on trial."""

    escalation: Escalation | None = None
    """Whether another answer was worth its cost, if the first one looked bad."""
    held_back: TokenUsage | None = None
    """Of a first answer that nobody has seen, while the next tier has not begun to answer."""
    earlier: Earlier | None = None
    """The first answer, once the next tier has begun."""
    more: Reservation | None = None
    """What is set aside for the next tier."""

    def cut_off(self, failure: BaseException | None = None) -> End | None:
        """The turn's end if it stopped now, or did so because of a failure; None if nobody was shown anything yet."""
        routed = self.turn.log.routed
        if routed is None:
            return None
        error = failure if isinstance(failure, ApiError) else None
        usage = self.turn.delivered() if self.held_back is None else self.held_back
        streamed = Streamed(reason="error", usage=usage, error=error)
        return End(streamed, routed.tier, routed.model, self.outcome, canary=self.canary)

    def billed(self, end: End) -> End:
        """The end with its prices."""
        first = Billed(self.earlier, self.prices.get(self.earlier.model)) if self.earlier else None
        return msgspec.structs.replace(end, price=self.price(end), earlier=first)

    def price(self, end: End) -> TokenPrices | None:
        """What tokens cost where the turn ended."""
        return self.prices.get(self.base_model(end))

    def base_model(self, end: End) -> str:
        """Public name of the model that answered, without its adapter."""
        return self.adapter.model if self.adapter else end.model

    def model(self, engine: Engine) -> str:
        """Public name of what answers on this engine."""
        return self.adapter.name if self.adapter else engine.pool.name


class Billed(Struct, frozen=True):
    """An answer that was given up, and is owed."""

    answer: Earlier
    price: TokenPrices | None

    @property
    def charged(self) -> Amounts:
        """What counts against limits."""
        usage = self.answer.usage
        spend = 0 if self.price is None else cost(self.price, *_counts(usage))
        return Amounts(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, spend=spend)

    @property
    def picodollars(self) -> int | None:
        return None if self.price is None else picodollars(self.price, *_counts(self.answer.usage))


class End(Struct, frozen=True):
    """How a turn ended, and who answered."""

    streamed: Streamed
    tier: str
    model: str
    cache: CacheOutcome
    fallback: bool = False
    canary: bool = False
    """A model on trial has answered."""
    price: TokenPrices | None = None
    """None: nothing is charged, and no cost is told."""
    earlier: Billed | None = None
    """The answer that this one took the place of. Figures leave it out unless they say otherwise."""

    @property
    def charged(self) -> Amounts:
        """What counts against limits: what was computed, and its cost, without what was computed earlier."""
        if self.cache == "hit":
            return Amounts()
        usage = self.streamed.usage
        return Amounts(
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, spend=_up(self.picodollars) or 0
        )

    @property
    def picodollars(self) -> int | None:
        """The exact cost, see `gateway.billing.cost`; without what was computed earlier. A stored answer is free."""
        return None if self.price is None else picodollars(self.price, *self._billed)

    @property
    def cost(self) -> int | None:
        """Of everything, in micro-dollars, rounded up."""
        parts = [self.picodollars, self.earlier.picodollars if self.earlier else None]
        priced = [part for part in parts if part is not None]
        return _up(sum(priced)) if priced else None

    @property
    def usage(self) -> TokenUsage:
        """Of everything."""
        usage = self.streamed.usage
        return usage + self.earlier.answer.usage if self.earlier else usage

    @property
    def _billed(self) -> tuple[int, int, int]:
        return (0, 0, 0) if self.cache == "hit" else _counts(self.streamed.usage)


def _counts(usage: TokenUsage) -> tuple[int, int, int]:
    return usage.input_tokens, usage.cached_tokens, usage.output_tokens


def _up(picodollars: int | None) -> int | None:
    """Micro-dollars, rounded up."""
    return None if picodollars is None else -(-picodollars // PICODOLLARS_PER_MICRODOLLAR)
