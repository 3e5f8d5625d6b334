"""The steps of one turn from request to answer. `Pipeline.run` is the whole of it, and `_drive` its steps in order.

Limits are reserved before anything is spent and settled to what was used, whatever happens in between. Another engine
takes over only before the first token: afterwards it would repeat or contradict what the client has already read.
"""

from __future__ import annotations

import asyncio
import random
import sys
from time import monotonic

import msgspec

from cache.response import CachedAnswer
from engine.client.conversation import Prompt
from gateway.config.settings import Settings
from gateway.errors import ApiError, InvalidRequest, ModelNotFound, RateLimited
from gateway.limits.reservation import Reservation
from gateway.pipeline.admission import Admission
from gateway.pipeline.metering import Metering, outcome_of
from gateway.pipeline.prompts import write
from gateway.pipeline.routing.choice import Routing
from gateway.pipeline.routing.refusals import NAMED_ADAPTERS
from gateway.pipeline.routing.tiers import Tiers
from gateway.pipeline.routing.waking import Waking
from gateway.pipeline.service_tier import share_of
from gateway.pipeline.services import Services
from gateway.pipeline.sources.engine import EngineAnswers
from gateway.pipeline.sources.response_cache import StoredAnswers
from gateway.pipeline.sources.semantic_cache import SemanticSource
from gateway.pipeline.values import Admitted, Answered, Assigned, Prepared, Progress, Resolved, Source
from gateway.protocol.stream import Finished, LimitState
from gateway.safety.guard import Guard
from gateway.telemetry.logs import bind_task
from gateway.telemetry.trace import Stage
from gateway.turns import Turn

Storing = asyncio.Task[CachedAnswer | None]
"""An answer that is being stored."""


class Pipeline:
    """Carries turns from request to answer, under one configuration."""

    def __init__(self, settings: Settings, guard: Guard, tiers: Tiers, *, services: Services) -> None:
        view, engines, limiter, metrics = services.view, services.engines, services.limiter, services.metrics
        self._view = view
        self._engines = engines
        self._adapters = services.adapters
        self._metrics = metrics
        self._canaries = services.canaries
        self._judge = services.judge
        self._tracing = services.tracing
        self._similar = services.similar
        self._guard = guard
        self._tiers = tiers
        waking = Waking(engines, services.wanted, settings.turns.queue_timeout)
        self._routing = Routing(view, engines, services.adapters, tiers, waking)
        self._admission = Admission(settings, limiter, view, engines, self._routing, slow=guard.slow)
        self._metering = Metering(services.statistics, services.ledger, metrics, services.tracing)
        self._stored = StoredAnswers(
            services.response_cache,
            services.statistics,
            services.flights,
            guard,
            settings,
            tiers.policy.digest,
            services.secret,
        )
        self._sources: list[Source] = [
            *([SemanticSource(services.similar, self._stored, settings)] if services.similar is not None else []),
            EngineAnswers(settings, engines, self._routing, metrics, guard),
        ]
        """Sources in the order in which they are asked after the exact cache."""

    async def run(self, turn: Turn) -> None:
        """Carry a turn through `_drive`, with metrics and a trace; see `gateway.turns.TurnPipeline`."""
        tier, outcome = "", "failed"
        self._metrics.turns.started()
        self._metrics.activity.started(turn.principal.tenant, monotonic())
        if self._tracing is not None:
            self._tracing.begin(turn)
        bind_task(response_id=turn.id, **turn.trace.ids)
        try:
            answered = await self._drive(turn)
            tier, outcome = answered.tier, outcome_of(answered.streamed)
        except ApiError as error:
            outcome = "unavailable" if error.type == "server_error" else "refused"
            self._metrics.turns.error(error.code)
            if isinstance(error, RateLimited):
                self._metrics.limits.limited(error.limit)
            raise
        finally:
            self._metrics.activity.ended(turn.principal.tenant, outcome, monotonic())
            self._metrics.turns.finished(tier, outcome, monotonic() - turn.trace.began, turn.trace.exemplar)
            self._metrics.turns.overhead(turn.trace)
            if self._tracing is not None:
                self._tracing.close(turn, sys.exception())

    async def count(self, turn: Turn) -> dict[str, Prompt]:
        """Return the prompt by pool name without answering; counts as one request.

        Raises:
            ApiError: the turn itself would be refused for the same reason.
        """
        resolved = self._resolve(turn)
        if resolved.adapter is None:
            pools = self._engines.named(turn.request.model)
            resolved = msgspec.structs.replace(resolved, pools=[pool for pool in resolved.pools if pool in pools])
            if not resolved.pools:
                raise self._unknown(turn)
        async with self._admission.request(resolved):
            return (await self._prepare(resolved)).prompts

    async def check(self, turn: Turn) -> None:
        """Apply the safety rules to the turn's messages; see `gateway.turns.TurnPipeline`."""
        if self._guard.active:
            await self._guard.admit(turn)

    async def _drive(self, turn: Turn) -> Answered:
        resolved = self._resolve(turn)
        with self._metrics.activity.using(resolved.adapter.name if resolved.adapter else None):
            return await self._carry(resolved)

    async def _carry(self, resolved: Resolved) -> Answered:
        turn = resolved.turn
        async with self._admission.counted(resolved) as reservation:
            turn.trace.mark(Stage.ADMIT)
            prepared = await self._prepare(resolved)
            turn.trace.mark(Stage.PREPARE)
            admitted = await self._admit(prepared, reservation)
        progress = Progress(admitted)
        self._metering.open(progress)
        answered: Answered | None = None
        try:
            answered = await self._answer(progress)
        except BaseException as failure:
            answered = progress.cut_off(failure)
            raise
        finally:
            limits, storing = await self._settle(progress, answered)
        return await self._finish(answered, limits, storing)

    def _resolve(self, turn: Turn) -> Resolved:
        """Return what the request's names lead to, which takes no other work.

        Raises:
            InvalidRequest, ModelNotFound, Forbidden: it cannot be served, whatever is in it.
            Unavailable: the route leads nowhere.
        """
        assigned = self._assign(turn)
        request = turn.request
        if request.max_output_tokens is not None and request.sampling.min_tokens > request.max_output_tokens:
            raise InvalidRequest("min_tokens: above the output limit; lower it", param="min_tokens")
        tenant = self._routing.tenant(turn)
        share = share_of(tenant, request.service_tier)
        adapter = self._adapters.resolve(request.model, tenant.name)
        if adapter is not None and tenant.may_use(adapter.name):
            turn.principal.require("adapters")
            pools = [self._engines.pool(adapter.model)]
            return Resolved(turn=turn, pools=pools, share=share, adapter=adapter, assigned=assigned)
        pools = self._engines.pools_for(request.model, tenant.may_use)
        if not pools:
            raise self._unknown(turn)
        return Resolved(turn=turn, pools=pools, share=share, adapter=None, assigned=assigned)

    def _unknown(self, turn: Turn) -> ModelNotFound:
        names = ", ".join(self._routing.visible(turn)[:NAMED_ADAPTERS])
        return ModelNotFound(
            f"the model '{turn.request.model[:256]}' does not exist; available: {names}", param="model"
        )

    def _assign(self, turn: Turn) -> Assigned | None:
        """Follow a route's name to one of its targets, which the request asks for from then on."""
        assigned = self._canaries.assign(turn)
        if assigned is not None:
            turn.request = msgspec.structs.replace(turn.request, model=assigned.model)
            if not (
                self._engines.named(assigned.model) or self._adapters.resolve(assigned.model, turn.principal.tenant)
            ):
                raise self._canaries.lost(assigned)
        return assigned

    async def _prepare(self, resolved: Resolved) -> Prepared:
        """Filter the request, and write the prompt for every pool that may answer."""
        turn, adapter = resolved.turn, resolved.adapter
        if self._guard.active:
            await self._guard.admit(turn)
        name = adapter.name if adapter else None
        written = await write(turn, resolved.pools)
        return Prepared(
            **msgspec.structs.asdict(resolved),
            prices={pool.name: self._view.price(pool.name, name) for pool in resolved.pools},
            prompts=written.prompts,
            unsuited=written.unsuited,
            safety=self._guard.digest(turn.principal.tenant),
            seed=random.getrandbits(63),
        )

    async def _admit(self, prepared: Prepared, reservation: Reservation) -> Admitted:
        """Reserve the most that the turn may use, and look into the exact cache, in one round trip together.

        Raises:
            InvalidRequest: the prompt is empty.
            ApiError: see `Admission.extend`.
        """
        if not all(prepared.prompts.values()):
            raise InvalidRequest("prompt: empty; send at least one token", param="prompt")
        looking = asyncio.create_task(self._stored.look_up(prepared))
        try:
            expected, foreseen = await self._admission.extend(prepared, reservation)
            prepared.turn.trace.mark(Stage.RESERVE)
            cache = await looking
        except BaseException:
            await asyncio.wait([looking])
            looking.exception()
            self._stored.land(prepared.turn, None)
            raise
        prepared.turn.trace.mark(Stage.CACHE)
        known = msgspec.structs.asdict(prepared)
        return Admitted(**known, reservation=reservation, expected=expected, foreseen=foreseen, cache=cache)

    async def _answer(self, progress: Progress) -> Answered:
        """Return the answer of the first source that has one."""
        adapter = progress.admitted.adapter
        answered = await self._stored.answer(progress)
        if answered is None and adapter is not None:
            progress.admitted.pools[0].announce(adapter.version)
        for source in self._sources:
            answered = answered or await source.answer(progress)
        assert answered is not None  # engines answer or raise
        return answered

    async def _settle(self, progress: Progress, answered: Answered | None) -> tuple[LimitState, Storing | None]:
        """Charge a turn that has ended, or was refused without an answer, and begin to store its answer."""
        turn = progress.admitted.turn
        turn.trace.mark(Stage.ENGINE)
        self._canaries.observe(progress.admitted, answered, sys.exception())
        # Before anything else may go wrong, or the task be cancelled: what was delivered is owed.
        if answered is None:
            self._metering.refuse(turn)
        else:
            turn.cost = answered.cost
            self._tiers.answered(answered)
            self._judge.routed(answered)
            self._metering.close(answered)
            self._admission.learn(answered)
        storing = self._stored.land(turn, answered)  # its round trip overlaps that of the settlement
        limits = await self._admission.settle(progress, answered)
        turn.trace.mark(Stage.SETTLE)
        return limits, storing

    async def _finish(self, answered: Answered, limits: LimitState, storing: Storing | None) -> Answered:
        """End the turn once its answer is stored, so that the next turn finds it."""
        turn, streamed = answered.admitted.turn, answered.streamed
        turn.append(limits)
        stored = await storing if storing is not None else None
        if stored is not None and self._similar is not None:
            self._similar.learn(answered.admitted.cache, stored)
        reason, error = streamed.reason, streamed.error
        if turn.on_answered is not None and reason not in ("cancelled", "error"):
            error = await turn.on_answered()
            reason = "error" if error else reason
        turn.trace.mark(Stage.STORE)
        turn.append(Finished(reason, streamed.usage, error, turn.cost, streamed.stop))
        return answered
