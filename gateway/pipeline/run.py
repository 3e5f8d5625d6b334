"""The road of one turn, in order: limits, exact cache, route, engine, settlement, cache admission, metrics.

`Pipeline.run` is the whole of it; each step is one of the methods or rooms that it names. Limits are reserved before
anything is spent and settled to what was used, whatever happens in between. Another engine takes over only before the
first token: afterwards it would repeat or contradict what the client has already read.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from time import monotonic

import msgspec

from cache.response import ResponseCache
from cache.statistics import CacheCounter
from gateway.access.directory.view import View
from gateway.billing.cost import most
from gateway.billing.ledger import Ledger
from gateway.config.settings import Settings
from gateway.engines.adapters import AdapterNames, ResolvedAdapter
from gateway.engines.pools import Engines, Pool
from gateway.errors import ApiError, InvalidRequest, ModelNotFound, RateLimited
from gateway.limits.counters import Amounts, LimitSubject
from gateway.limits.limiter import Limiter, Reservation
from gateway.limits.subjects import mode_of, subjects_of
from gateway.pipeline.accounting import OUTCOMES, Accounts
from gateway.pipeline.job import End, Job
from gateway.pipeline.prompts import size_of, tokenise
from gateway.pipeline.routing.canaries import Canaries
from gateway.pipeline.routing.choice import Routing
from gateway.pipeline.routing.escalations import Escalations
from gateway.pipeline.routing.refusals import NAMED_ADAPTERS
from gateway.pipeline.routing.tiers import Tiers
from gateway.pipeline.service_tier import Share, share_of
from gateway.pipeline.sources.engine import EngineAnswers, output_limit
from gateway.pipeline.sources.response_cache import StoredAnswers
from gateway.pipeline.sources.semantic_cache import SimilarAnswers
from gateway.pipeline.sources.single_flight import Flights
from gateway.pipeline.tracing import Tracing
from gateway.protocol.stream import Finished, LimitState, TokenUsage
from gateway.safety.guard import Guard
from gateway.telemetry.logs import bind_task
from gateway.telemetry.metrics.process import Metrics
from gateway.telemetry.trace import Stage
from gateway.turns import Turn

SHORT_TEXT = 2_000
"""Characters up to which filtering and tokenising take no longer than a question to Redis."""


class Wanted(msgspec.Struct, frozen=True):
    """What a request's names lead to."""

    pools: list[Pool]
    """Those that may answer."""
    share: Share
    adapter: ResolvedAdapter | None


class Pipeline:
    """Carries turns from request to answer."""

    def __init__(
        self,
        settings: Settings,
        secret: bytes,
        view: View,
        engines: Engines,
        adapters: AdapterNames,
        limiter: Limiter,
        cache: ResponseCache,
        flights: Flights,
        statistics: CacheCounter,
        ledger: Ledger,
        metrics: Metrics,
        guard: Guard,
        tiers: Tiers,
        canaries: Canaries,
        tracing: Tracing | None = None,
        similar: SimilarAnswers | None = None,
    ) -> None:
        self._settings = settings
        self._similar = similar
        self._view = view
        self._engines = engines
        self._adapters = adapters
        self._limiter = limiter
        self._metrics = metrics
        self._guard = guard
        self._canaries = canaries
        self._tracing = tracing
        self._tiers = tiers
        self._answers = StoredAnswers(cache, statistics, flights, guard, settings, tiers.policy.digest, secret)
        self._routing = Routing(view, engines, adapters, tiers)
        self._accounts = Accounts(statistics, ledger, metrics, tracing)
        escalations = Escalations(settings, engines, limiter, view, self._accounts, metrics, tiers.typical)
        self._engine_answers = EngineAnswers(settings, engines, self._routing, escalations, metrics, guard)

    async def run(self, turn: Turn) -> None:
        """See `gateway.turns.Road`. Measures what `_drive` does."""
        began = turn.trace.began
        tier, outcome = "", "failed"
        self._metrics.turns.started()
        self._metrics.activity.started(turn.principal.tenant, monotonic())
        if self._tracing is not None:
            self._tracing.begin(turn)
        bind_task(response_id=turn.id, **turn.trace.ids)
        try:
            end = await self._drive(turn, began)
            tier, outcome = end.tier, OUTCOMES[end.streamed.reason]
        except ApiError as error:
            outcome = "refused"
            self._metrics.turns.error(error.code)
            if isinstance(error, RateLimited):
                self._metrics.limits.limited(error.limit)
            raise
        finally:
            self._metrics.activity.ended(turn.principal.tenant, outcome, monotonic())
            self._metrics.turns.finished(tier, outcome, monotonic() - began, turn.trace.exemplar)
            self._metrics.turns.overhead(turn.trace)
            if self._tracing is not None:
                self._tracing.close(turn, sys.exception())

    async def _drive(self, turn: Turn, began: float) -> End:
        mark = turn.trace.mark
        assigned = self._canaries.assign(turn)
        if assigned is not None:
            turn.request = msgspec.structs.replace(turn.request, model=assigned.model)
            if not (
                self._engines.named(assigned.model) or self._adapters.resolve(assigned.model, turn.principal.tenant)
            ):
                raise self._canaries.lost(assigned)
        wanted = self._resolve(turn)
        reservation = await self._admit(turn, wanted)
        mark(Stage.ADMIT)
        try:
            job = await self._prepare(turn, began, wanted)
            if assigned is not None:
                job.trial, job.canary = assigned.trial, assigned.canary
                job.remarks = (assigned.sentence,)
            mark(Stage.PREPARE)
            looking = await self._reserve(job, reservation)
        except BaseException:
            await self._limiter.settle(reservation, Amounts())
            raise
        mark(Stage.RESERVE)
        end: End | None = None
        self._accounts.open(job)
        try:
            await looking
            mark(Stage.CACHE)
            end = await self._answers.give(job)
            if end is None and job.adapter is not None:
                job.pools[0].announce(job.adapter.version)
            if end is None and self._similar is not None:
                end = await self._similar.give(job, self._answers, self._settings)
                mark(Stage.CACHE)
            end = end or await self._engine_answers.give(job)
        except BaseException as failure:
            end = job.cut_off(failure)
            raise
        finally:
            mark(Stage.ENGINE)
            if assigned is not None:
                self._canaries.observe(assigned, job, end, sys.exception())
            # Before anything else may go wrong, or the task be cancelled: what was delivered is owed.
            if end is not None:
                end = job.billed(end)
                turn.cost = end.cost
                self._tiers.answered(job, end)
                self._accounts.close(job, end)
            else:
                self._accounts.refuse(job)
            if job.expected and end is not None and end.cache != "hit" and end.streamed.error is None:
                tokens = end.streamed.usage.output_tokens
                self._limiter.expectations.observe(turn.principal.tenant, turn.request.model, tokens)
            landing = self._answers.land(job, end)  # its round trip is that of the settlement
            limits = await self._settle(job, reservation, end)
            mark(Stage.SETTLE)
        turn.append(limits)
        if landing is not None:
            await landing
        if job.attempt is not None and self._similar is not None:
            self._similar.learn(job)
        mark(Stage.STORE)
        earlier = end.earlier.answer.usage if end.earlier else TokenUsage()
        turn.append(Finished(end.streamed.reason, end.usage, end.streamed.error, turn.cost, earlier))
        return end

    def _resolve(self, turn: Turn) -> Wanted:
        """What the request names, which costs nothing to find out.

        Raises:
            InvalidRequest, ModelNotFound, Forbidden: it cannot be served, whatever is in it.
        """
        request = turn.request
        if request.max_output_tokens is not None and request.sampling.min_tokens > request.max_output_tokens:
            raise InvalidRequest("min_tokens: above the output limit; lower it", param="min_tokens")
        tenant = self._routing.tenant(turn)
        share = share_of(tenant, request.service_tier)
        adapter = self._adapters.resolve(request.model, tenant.name)
        if adapter is not None and tenant.may_use(adapter.name):
            turn.principal.require("adapters")
            return Wanted([self._engines.pool(adapter.model)], share, adapter)
        pools = self._engines.pools_for(request.model, tenant.may_use)
        if not pools:
            raise ModelNotFound(
                f"the model '{request.model[:256]}' does not exist; available: "
                + ", ".join(self._routing.visible(turn)[:NAMED_ADAPTERS]),
                param="model",
            )
        return Wanted(pools, share, None)

    async def _admit(self, turn: Turn, wanted: Wanted) -> Reservation:
        """Count the request and its turn before work is done that is more than asking for it.

        What is short, of somebody who seems to have room, is asked for when its size is known: a round trip less.
        """
        tenant, amounts = turn.principal.tenant, Amounts(requests=1, turns=1)
        model = wanted.pools[0].name if len(wanted.pools) == 1 else None
        subjects = self._subjects(turn, model, wanted.adapter)
        short = size_of(turn) < SHORT_TEXT and not self._guard.slow
        if short and not self._limiter.doubts(tenant, amounts, subjects):
            return self._limiter.nothing(tenant, turn.id)
        return await self._limiter.reserve(tenant, turn.id, amounts, subjects)

    async def _prepare(self, turn: Turn, began: float, wanted: Wanted) -> Job:
        """Filter the request, and tokenise the prompt for every pool that may answer."""
        if self._guard.active:
            await self._guard.admit(turn)
        pools, adapter = wanted.pools, wanted.adapter
        prices = {pool.name: self._view.price(pool.name, adapter.name if adapter else None) for pool in pools}
        prompts = await tokenise(turn, pools)
        safety = self._guard.digest(turn.principal.tenant)
        return Job(turn, pools, prompts, began, wanted.share, adapter, prices, safety=safety)

    async def _reserve(self, job: Job, reservation: Reservation) -> asyncio.Task[None]:
        """Set aside what the turn may use at most, and look into the exact cache: together one round trip.

        Where `auto` may mean several models, the dearest and longest counts. Only a tenant with quotas of single models
        has to be routed for that, once more than others: the engine is chosen after the round trip, when it is known
        who is least busy.
        """
        turn = job.turn
        looking = asyncio.create_task(self._answers.look_up(job))
        try:
            tenant = self._view.tenant(turn.principal.tenant)
            model = job.pools[0].name if len(job.pools) == 1 else None
            if model is None and tenant is not None and tenant.model_quotas:
                await self._routing.choose(job)
                model = self._engines[self._routing.route(job).replica].pool.name
            subjects = self._subjects(turn, model, job.adapter)
            most = self._most(job, expected=mode_of(subjects) == "expected")
            await self._limiter.extend(reservation, most, subjects)
        except BaseException:
            await asyncio.wait([looking])
            looking.exception()
            self._answers.land(job, None)
            raise
        turn.limits = partial(self._limiter.state, reservation)
        return looking

    def _subjects(self, turn: Turn, model: str | None, adapter: ResolvedAdapter | None) -> tuple[LimitSubject, ...]:
        tenant = self._view.tenant(turn.principal.tenant)
        name = adapter.name if adapter else None
        return subjects_of(self._settings.limits, tenant, turn.principal, model, name)

    async def _settle(self, job: Job, reservation: Reservation, end: End | None) -> LimitState:
        """Charge what was used; what another tier has used counts against its own model's limits."""
        used = end.charged if end else Amounts()
        if job.more is not None:
            earlier = end.earlier if end else None
            await self._limiter.settle(job.more, used if earlier else Amounts())
            used = earlier.charged if earlier else used
        return await self._limiter.settle(reservation, used)

    def _most(self, job: Job, *, expected: bool) -> Amounts:
        """What the turn may use at most."""
        prompt = max(len(ids) for ids in job.prompts.values())
        room = max((engine.context for pool in job.pools for engine in pool.engines), default=0) - prompt
        output = output_limit(job, self._settings, room)
        if expected:
            request, part = job.turn.request, self._settings.limits.expected_quantile
            learnt = self._limiter.expectations.expected(job.turn.principal.tenant, request.model, part)
            output = output if learnt is None else min(output, learnt)
            job.expected = request.generate
        prices = [price for price in job.prices.values() if price is not None]
        spend = max((most(price, prompt, output) for price in prices), default=0)
        return Amounts(requests=1, turns=1, input_tokens=prompt, output_tokens=output, spend=spend)
