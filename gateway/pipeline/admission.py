"""Reserves the most that a turn may use before anything is spent, and settles it to what the turn has used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from gateway.access.directory.view import View
from gateway.billing.cost import most
from gateway.config.settings import Settings
from gateway.engines.adapters import ResolvedAdapter
from gateway.engines.pools import Engines
from gateway.limits.limiter import Limiter
from gateway.limits.reservation import Reservation
from gateway.limits.subjects import mode_of, subjects_of
from gateway.pipeline.prompts import size_of
from gateway.pipeline.routing.choice import Routing
from gateway.pipeline.sources.engine import output_limit
from gateway.pipeline.values import Answered, Assessment, Prepared, Progress, Resolved
from gateway.protocol.stream import LimitState
from gateway.records.quota import Amounts, LimitSubject
from gateway.turns import Turn
from router.route import TierAsleep

SHORT_TEXT = 2_000
"""Characters up to which filtering and tokenising take no longer than a round trip to Redis."""


class Admission:
    """Reserves and settles what turns use, under one configuration."""

    def __init__(
        self, settings: Settings, limiter: Limiter, view: View, engines: Engines, routing: Routing, *, slow: bool
    ) -> None:
        """Args: slow: whether checking even a short text takes long."""
        self._settings = settings
        self._limiter = limiter
        self._view = view
        self._engines = engines
        self._routing = routing
        self._slow = slow

    @asynccontextmanager
    async def counted(self, resolved: Resolved) -> AsyncIterator[Reservation]:
        """Count the request and its turn before any costly work; if the body fails, both are given back.

        A short request of a tenant that seems to have room is counted later, by `extend`, which saves a round trip.

        Raises:
            RateLimited: a limit is reached.
        """
        turn, amounts = resolved.turn, Amounts(requests=1, turns=1)
        tenant, subjects = turn.principal.tenant, self._subjects(turn, _only_model(resolved), resolved.adapter)
        if size_of(turn) < SHORT_TEXT and not self._slow and not self._limiter.doubts(tenant, amounts, subjects):
            reservation = self._limiter.nothing(tenant, turn.id)
        else:
            reservation = await self._limiter.reserve(tenant, turn.id, amounts, subjects)
        try:
            yield reservation
        except BaseException:
            await self._limiter.settle(reservation, Amounts())
            raise

    @asynccontextmanager
    async def request(self, resolved: Resolved) -> AsyncIterator[None]:
        """Count a request that uses no tokens; it is a running turn until the body ends.

        Raises:
            RateLimited: a limit is reached.
        """
        turn = resolved.turn
        subjects = self._subjects(turn, _only_model(resolved), resolved.adapter)
        amounts = Amounts(requests=1, turns=1)
        reservation = await self._limiter.reserve(turn.principal.tenant, turn.id, amounts, subjects)
        try:
            yield
        finally:
            await self._limiter.settle(reservation, Amounts())

    async def extend(self, prepared: Prepared, reservation: Reservation) -> tuple[bool, Assessment | None]:
        """Reserve the most that the turn may use. Returns whether its length is an expected one, and the assessment if
        made.

        Where `auto` may mean several models, the dearest and longest counts. Only for a tenant with quotas of single
        models is the turn routed here, and once more after the round trip, when it is known which engine is least busy.

        Raises:
            RateLimited: a limit is reached.
            ApiError: no engine can answer.
        """
        turn, assessment = prepared.turn, None
        tenant, model = self._view.tenant(turn.principal.tenant), _only_model(prepared)
        if model is None and tenant is not None and tenant.model_quotas:
            assessment = await self._routing.assess(prepared)
            try:
                model = self._engines[self._routing.route(prepared, assessment).replica].pool.name
            except TierAsleep as asleep:
                model = asleep.model
        subjects = self._subjects(turn, model, prepared.adapter)
        expected = mode_of(subjects) == "expected"
        await self._limiter.extend(reservation, self._most(prepared, expected=expected), subjects)
        turn.limits = partial(self._limiter.state, reservation)
        return expected and turn.request.generate, assessment

    def learn(self, answered: Answered) -> None:
        """Remember how long the answer was, if reservations rest on expected lengths."""
        admitted = answered.admitted
        if admitted.expected and answered.cache != "hit" and answered.streamed.error is None:
            turn, tokens = admitted.turn, answered.streamed.usage.output_tokens
            self._limiter.expectations.observe(turn.principal.tenant, turn.request.model, tokens)

    async def settle(self, progress: Progress, answered: Answered | None) -> LimitState:
        """Charge what was used; return the limits after it."""
        return await self._limiter.settle(progress.admitted.reservation, answered.charged if answered else Amounts())

    def _subjects(self, turn: Turn, model: str | None, adapter: ResolvedAdapter | None) -> tuple[LimitSubject, ...]:
        tenant = self._view.tenant(turn.principal.tenant)
        name = adapter.name if adapter else None
        return subjects_of(self._settings.limits, tenant, turn.principal, model, name)

    def _most(self, prepared: Prepared, *, expected: bool) -> Amounts:
        """Return the most that the turn may use."""
        request = prepared.turn.request
        prompt = max(len(ids) for ids in prepared.prompts.values())
        room = max(pool.context for pool in prepared.pools) - prompt
        output = output_limit(request, self._settings, room)
        if expected:
            tenant, part = prepared.turn.principal.tenant, self._settings.limits.expected_quantile
            learnt = self._limiter.expectations.expected(tenant, request.model, part)
            output = output if learnt is None else min(output, learnt)
        prices = [price for price in prepared.prices.values() if price is not None]
        spend = max((most(price, prompt, output) for price in prices), default=0)
        return Amounts(requests=1, turns=1, input_tokens=prompt, output_tokens=output, spend=spend)


def _only_model(resolved: Resolved) -> str | None:
    """The model that answers, if it can be only one."""
    return resolved.pools[0].name if len(resolved.pools) == 1 else None
