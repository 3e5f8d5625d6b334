"""What is known of a turn at each step of the pipeline, as frozen values that each add to the one before.

`Resolved` -> `Prepared` -> `Admitted` -> `Dispatched`, and `Answered` at the end. `Progress` holds the newest of them
while an answer is sought, so that a turn that is cut off can be charged for what it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.policy import Scope
from cache.response import Lookup, LookupOutcome
from engine.client.conversation import Prompt
from gateway.billing.cost import TokenPrices, picodollars, rounded_up
from gateway.engines.adapters import ResolvedAdapter
from gateway.engines.engine import Engine
from gateway.engines.pool import Pool
from gateway.errors import ApiError
from gateway.limits.reservation import Reservation
from gateway.pipeline.relay import Streamed
from gateway.pipeline.service_tier import Share
from gateway.pipeline.sources.semantic_attempt import Attempt
from gateway.protocol.stream import CacheOutcome, EndReason
from gateway.records.directory import Route
from gateway.records.quota import Amounts
from gateway.turns import Turn
from router.complexity import Complexity
from router.features import Features
from router.route import RouteDecision
from router.tier import TierChoice


class Assigned(Struct, frozen=True):
    """The target of a turn that asked for a route."""

    route: Route
    model: str
    conversation: bytes
    """Digest of the conversation's beginning."""
    copied: bool = False
    """Whether the route's shadow gets a copy."""

    @property
    def trial(self) -> bool:
        """Whether the route's targets are being compared."""
        stable, *others = self.route.targets
        return stable.weight > 0 and any(target.weight > 0 for target in others)

    @property
    def canary(self) -> bool:
        """Whether the turn goes to a target on trial."""
        return self.trial and self.model != self.route.targets[0].model

    @property
    def sentence(self) -> str:
        """The target as one of the reasons that clients are told."""
        return f"the name {self.route.name} leads this conversation to {self.model}"


class Resolved(Struct, frozen=True, kw_only=True):
    """A turn whose model and service tier exist and are open to its tenant."""

    turn: Turn
    pools: list[Pool]
    """The pools that may answer."""
    share: Share
    adapter: ResolvedAdapter | None
    """The adapter that the request's name led to when it arrived."""
    assigned: Assigned | None
    """The route's target, if the request named a route."""

    @property
    def trial(self) -> bool:
        """Whether targets of the route are being compared."""
        return self.assigned is not None and self.assigned.trial

    def model(self, engine: Engine) -> str:
        """Return the public name of what answers on this engine."""
        return self.adapter.name if self.adapter else engine.pool.name


class Prepared(Resolved, frozen=True, kw_only=True):
    """A turn whose request has passed the safety rules, and whose prompt is written."""

    prompts: dict[str, Prompt]
    """Prompt by name of the pools that can be asked it."""
    unsuited: Mapping[str, str]
    """Field of the request that the servers of a pool lack, by name of those that cannot be asked it."""
    prices: Mapping[str, TokenPrices | None]
    """Prices by pool name, in force when the request arrived."""
    safety: str | None
    """Digest of the rules that the answer is filtered by."""
    seed: int
    """Used for sampling if the request names none."""


Embedding = NDArray[np.float32]
"""Vector of length 1 that stands for a text."""


class Assessment(Struct, frozen=True):
    """The newest message's features and complexity, and the tier chosen by them."""

    seen: Features
    complexity: Complexity
    choice: TierChoice | None
    """The tier chosen; None if the request names its model or tier."""
    embedding: Embedding | None
    """Embedding of the newest user message, if the choice needed it."""


class CacheFindings(Struct, frozen=True, kw_only=True):
    """What the response cache and the semantic cache know about a turn."""

    outcome: CacheOutcome = "bypass"
    found: Lookup = Lookup(LookupOutcome.MISS, "")
    """The response cache's last answer, or the reason why it was not asked."""
    digest: str | None = None
    """Key in the response cache; None if it may not be used."""
    scope: Scope = Scope.USER
    """Who may be given the answer."""
    embedding: Embedding | None = None
    """Embedding of the newest user message, if it was computed."""
    attempt: Attempt | None = None
    """The look-up in the semantic cache, once it was made."""


class Admitted(Prepared, frozen=True, kw_only=True):
    """A turn within its limits, with what the response cache found."""

    reservation: Reservation
    """The most that the turn may use."""
    expected: bool
    """Whether the answer's length is learnt from, see `gateway.limits.expectation`."""
    foreseen: Assessment | None
    """An assessment made before admission, where the tenant has quotas of single models."""
    cache: CacheFindings

    @property
    def remarks(self) -> tuple[str, ...]:
        """Reasons that a route's name and the semantic cache add to those of the router."""
        attempt = self.cache.attempt
        found = (self.assigned and self.assigned.sentence, attempt and attempt.remark)
        return tuple(remark for remark in found if remark)


class Dispatched(Admitted, frozen=True, kw_only=True):
    """A turn that no cache could answer, with the engine chosen for it and those that come next."""

    assessment: Assessment
    decision: RouteDecision


class Answered(Struct, frozen=True):
    """A turn that has ended, and the model that answered."""

    admitted: Admitted
    streamed: Streamed
    tier: str
    model: str
    fallback: bool = False

    @property
    def cache(self) -> CacheOutcome:
        return self.admitted.cache.outcome

    @property
    def base_model(self) -> str:
        """Public name of the model that answered, without its adapter."""
        adapter = self.admitted.adapter
        return adapter.model if adapter else self.model

    @property
    def price(self) -> TokenPrices | None:
        """Prices of the model; None if nothing is charged and no cost is told."""
        return self.admitted.prices.get(self.base_model)

    @property
    def charged(self) -> Amounts:
        """Usage that counts against limits: what was computed, and its cost."""
        if self.cache == "hit":
            return Amounts()
        usage = self.streamed.usage
        return Amounts(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, spend=self.cost or 0)

    @property
    def picodollars(self) -> int | None:
        """The exact cost, see `gateway.billing.cost`. A stored answer is free."""
        price, usage = self.price, self.streamed.usage
        if price is None or self.cache == "hit":
            return None if price is None else 0
        return picodollars(price, usage.input_tokens, usage.cached_tokens, usage.output_tokens)

    @property
    def cost(self) -> int | None:
        """Micro-dollars, rounded up."""
        return None if self.picodollars is None else rounded_up(self.picodollars)


class Progress:
    """A turn while its answer is sought: the newest value, and what is owed if the turn ends now."""

    def __init__(self, admitted: Admitted) -> None:
        self.admitted = admitted
        """The newest value: `Dispatched` once an engine is chosen."""

    def found(self, **changes: Any) -> None:
        """Replace fields of `CacheFindings` by what a cache has found."""
        cache = msgspec.structs.replace(self.admitted.cache, **changes)
        self.admitted = msgspec.structs.replace(self.admitted, cache=cache)

    def cut_off(self, failure: BaseException | None = None, reason: EndReason = "error") -> Answered | None:
        """Return the turn's end if it stopped now, or failed; None if nobody was shown anything yet."""
        turn = self.admitted.turn
        routed = turn.log.routed
        if routed is None:
            return None
        error = failure if isinstance(failure, ApiError) else None
        streamed = Streamed(reason=reason, usage=turn.delivered(), error=error)
        return Answered(self.admitted, streamed, routed.tier, routed.model)


class Source(Protocol):
    """A source of answers: the response cache, the semantic cache, or the engines."""

    async def answer(self, progress: Progress) -> Answered | None:
        """Answer the turn with events for its log; None: this source has no answer, and `progress` says why.

        Raises:
            ApiError: no source can answer.
        """
        ...
