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
from cache.statistics import CacheStatistics
from gateway.accounting import OUTCOMES, Accounts
from gateway.adapters import Adapters
from gateway.answers import StoredAnswers, diverged
from gateway.billing.cost import Price, cost
from gateway.billing.ledger import Ledger
from gateway.canaries import Canaries
from gateway.directory.records import Tenant
from gateway.directory.view import View
from gateway.engines import Engine, Engines
from gateway.errors import ApiError, InvalidRequest, ModelNotFound, RateLimited
from gateway.flights import Flights
from gateway.job import End, Job
from gateway.limits.counters import Amounts
from gateway.limits.limiter import Limiter, Reservation
from gateway.limits.subjects import mode_of, subjects_of
from gateway.placement import NO_BLOCKS, Placement, Question
from gateway.prompts import tokenise
from gateway.protocol.stream import Finished, Routed, Usage
from gateway.refusals import NAMED_ADAPTERS, refused
from gateway.relay import Streamed, TryNext, relay
from gateway.repetition import Repetition
from gateway.safety.guard import Guard
from gateway.semantic.answers import SimilarAnswers
from gateway.service import share_of
from gateway.settings import Settings
from gateway.telemetry.logs import bind_task
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.trace import Stage
from gateway.telemetry.tracing import Tracing
from gateway.tiers import Tiers
from gateway.turns import Turn, TurnState
from router import features
from router.complexity import score
from router.route import Decision, NoRoute, RouteRequest, Why, route


class Pipeline:
    """Carries turns from request to answer."""

    def __init__(
        self,
        settings: Settings,
        secret: bytes,
        view: View,
        engines: Engines,
        adapters: Adapters,
        limiter: Limiter,
        cache: ResponseCache,
        flights: Flights,
        statistics: CacheStatistics,
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
        self._policy = tiers.policy
        self._accounts = Accounts(statistics, ledger, metrics, tracing)

    async def run(self, turn: Turn) -> None:
        """See `gateway.turns.Road`. Measures what `_drive` does."""
        began = turn.trace.began
        tier, outcome = "", "failed"
        self._metrics.turn_started()
        self._metrics.activity.started(turn.principal.tenant, monotonic())
        if self._tracing is not None:
            self._tracing.begin(turn)
        bind_task(response_id=turn.id, **turn.trace.ids)
        try:
            end = await self._drive(turn, began)
            tier, outcome = end.tier, OUTCOMES[end.streamed.reason]
        except ApiError as error:
            outcome = "refused"
            self._metrics.error(error.code)
            if isinstance(error, RateLimited):
                self._metrics.limited(error.limit)
            raise
        finally:
            self._metrics.activity.ended(turn.principal.tenant, outcome, monotonic())
            self._metrics.turn_finished(tier, outcome, monotonic() - began, turn.trace.exemplar)
            self._metrics.overhead(turn.trace)
            if self._tracing is not None:
                self._tracing.close(turn, sys.exception())

    async def _drive(self, turn: Turn, began: float) -> End:
        mark = turn.trace.mark
        assigned = self._canaries.assign(turn)
        if assigned is not None:
            turn.request = msgspec.structs.replace(turn.request, model=assigned.model)
        job = await self._prepare(turn, began)
        if assigned is not None:
            job.trial, job.canary = assigned.trial, assigned.canary
        mark(Stage.PREPARE)
        # Neither needs the other's answer: together they are one round trip to Redis.
        looking = asyncio.create_task(self._answers.look_up(job))
        try:
            reservation = await self._reserve(job)
        except BaseException:
            await asyncio.wait([looking])
            looking.exception()
            self._answers.land(job, None)
            raise
        mark(Stage.RESERVE)
        end: End | None = None
        self._accounts.open(job)
        try:
            await looking
            mark(Stage.CACHE)
            end = await self._answers.give(job)
            if end is None and self._similar is not None:
                end = await self._similar.give(job, self._answers, self._settings)
                mark(Stage.CACHE)
            end = end or await self._generate(job)
        except BaseException as failure:
            end = job.cut_off(failure)
            raise
        finally:
            mark(Stage.ENGINE)
            if assigned is not None:
                self._canaries.observe(assigned, end, sys.exception(), began)
            # Before anything else may go wrong, or the task be cancelled: what was delivered is owed.
            if end is not None:
                end = msgspec.structs.replace(end, price=job.price(end))
                turn.cost = end.cost
                self._tiers.answered(job, end)
                self._accounts.close(job, end)
            else:
                self._accounts.refuse(job)
            if job.expected and end is not None and end.cache != "hit" and end.streamed.error is None:
                tokens = end.streamed.usage.output_tokens
                self._limiter.expectations.observe(turn.principal.tenant, turn.request.model, tokens)
            landing = self._answers.land(job, end)  # its round trip is that of the settlement
            limits = await self._limiter.settle(reservation, end.charged if end else Amounts())
            mark(Stage.SETTLE)
        turn.append(limits)
        if landing is not None:
            await landing
        if job.attempt is not None and self._similar is not None:
            self._similar.learn(job)
        mark(Stage.STORE)
        turn.append(Finished(end.streamed.reason, end.streamed.usage, end.streamed.error, turn.cost))
        return end

    async def _prepare(self, turn: Turn, began: float) -> Job:
        """Resolve the name of an adapter, and tokenise the prompt for every pool that may answer."""
        request = turn.request
        if request.max_output_tokens is not None and request.sampling.min_tokens > request.max_output_tokens:
            raise InvalidRequest("min_tokens: above the output limit; lower it", param="min_tokens")
        name = turn.principal.tenant
        if self._guard.active:
            await self._guard.admit(turn)
            request = turn.request
        tenant = self._tenant(turn)
        share = share_of(tenant, request.service_tier)
        adapter = self._adapters.resolve(request.model, name)
        if adapter is None or not tenant.may_use(adapter.name):
            adapter = None
            pools = self._engines.pools_for(request.model, tenant.may_use)
            if not pools:
                raise ModelNotFound(
                    f"the model '{request.model[:256]}' does not exist; available: "
                    + ", ".join(self._visible(turn)[:NAMED_ADAPTERS]),
                    param="model",
                )
        else:
            turn.principal.require("adapters")
            pools = [self._engines.pool(adapter.model)]
            pools[0].announce(adapter.version)
        prices = {pool.name: self._view.price(pool.name, adapter.name if adapter else None) for pool in pools}
        prompts = await tokenise(turn, pools)
        return Job(turn, pools, prompts, began, share, adapter, prices, safety=self._guard.digest(name))

    async def _reserve(self, job: Job) -> Reservation:
        """Set aside what the turn may use at most, in one round trip.

        Where `auto` may mean several models, the dearest and longest counts. Only a tenant with quotas of single models
        has to be routed for that, once more than others: the engine is chosen after the round trip, when it is known
        who is least busy.
        """
        principal = job.turn.principal
        tenant = self._view.tenant(principal.tenant)
        model = job.pools[0].name if len(job.pools) == 1 else None
        if model is None and tenant is not None and tenant.model_quotas:
            await self._choose(job)
            model = self._engines[self._route(job).replica].pool.name
        adapter = job.adapter.name if job.adapter else None
        subjects = subjects_of(self._settings.limits, tenant, principal, model, adapter)
        wanted = self._wanted(job, expected=mode_of(subjects) == "expected")
        reservation = await self._limiter.reserve(principal.tenant, job.turn.id, wanted, subjects)
        job.turn.limits = partial(self._limiter.state, reservation)
        return reservation

    def _wanted(self, job: Job, *, expected: bool) -> Amounts:
        prompt = max(len(ids) for ids in job.prompts.values())
        room = max((engine.context for pool in job.pools for engine in pool.engines), default=0) - prompt
        output = self._output_limit(job, room)
        if expected:
            request, part = job.turn.request, self._settings.limits.expected_quantile
            learnt = self._limiter.expectations.expected(job.turn.principal.tenant, request.model, part)
            output = output if learnt is None else min(output, learnt)
            job.expected = request.generate
        prices = [price for price in job.prices.values() if price is not None]
        spend = max((_most(price, prompt, output) for price in prices), default=0)
        return Amounts(requests=1, turns=1, input_tokens=prompt, output_tokens=output, spend=spend)

    def _output_limit(self, job: Job, room: int) -> int:
        """Output tokens for an engine with `room` beside the prompt; the router has checked an explicit limit."""
        request = job.turn.request
        if not request.generate:
            return 1  # an engine has to run the whole prompt before it can sample the one token that is thrown away
        return request.max_output_tokens or max(1, min(self._settings.turns.default_max_output_tokens, room))

    async def _generate(self, job: Job) -> End:
        """Route, then stream from the chosen engine, or from the next one while none has given a token."""
        await self._choose(job)
        version = job.adapter.version if job.adapter else None
        decision = self._route(job)
        placement = self._place(job, decision, version)
        if placement is not None:
            decision = placement.apply(decision)
        job.turn.trace.mark(Stage.ROUTE)
        # What was shown of another turn's answer, before that one failed.
        repetition = Repetition(job.turn.log.text, job.turn.append) if job.turn.log.items else None
        for replica in (decision.replica, *decision.fallbacks):
            engine = self._engines[replica]
            # Another replica of the tier that the router chose is as good as the first one.
            fallback = decision.why is Why.FALLBACK or engine.pool.tier != decision.tier
            announce = partial(self._announce, job, decision, engine, fallback=fallback)
            prompt = job.prompts[engine.pool.name]
            limit = self._output_limit(job, engine.context - len(prompt))
            sampling = job.turn.request.sampling.resolve(engine.pool.text.defaults, max_tokens=limit, seed=job.seed)
            known, blocks = (0, NO_BLOCKS) if placement is None else placement.known(engine)
            try:
                streamed = await relay(
                    job.turn,
                    engine,
                    prompt,
                    sampling,
                    announce,
                    flight=engine.carrying(len(prompt) - known, engine.pool.answer_tokens(limit), blocks),
                    share=job.share,
                    adapter=version,
                    queue_timeout=self._settings.turns.queue_timeout,
                    filter=self._guard.open(job.turn) if self._guard.active else None,
                    hold_seconds=self._guard.hold_seconds,
                    append=repetition.append if repetition else None,
                )
                break
            except TryNext as failure:
                streamed = Streamed(reason="error", usage=Usage(), error=failure.error)
        if streamed.error is not None and job.turn.state is TurnState.ADMITTING:
            raise streamed.error
        if streamed.error is None:
            engine.pool.answered(streamed.usage.output_tokens)
        if placement is not None:
            self._metrics.placements.answered(
                engine.pool.tier,
                placement.choice.how,
                prompt=len(prompt),
                expected=known,
                found=streamed.usage.cached_tokens,
            )
        if repetition is not None and not repetition.whole and streamed.reason in ("stop", "length", "content_filter"):
            streamed = diverged(job)
        return End(streamed, engine.pool.tier, job.model(engine), job.outcome, fallback, job.canary)

    async def _choose(self, job: Job) -> None:
        """Look at what is asked, once."""
        if job.complexity is not None:
            return
        request = job.turn.request
        if isinstance(request.prompt, str):
            said = [features.Message("user", request.prompt)]
        else:
            said = [features.Message(message.role, message.content) for message in job.turn.conversation]
        job.seen = features.extract(said)
        job.complexity = score(job.seen)
        job.choice = await self._tiers.choose(job, job.complexity)

    def _route(self, job: Job) -> Decision:
        request = job.turn.request
        assert job.complexity is not None
        question = RouteRequest(
            model=job.adapter.model if job.adapter else request.model,
            adapter=job.adapter.name if job.adapter else None,
            complexity=job.complexity,
            choice=job.choice,
            output_tokens=request.max_output_tokens or 1,
        )
        candidates = self._engines.candidates(
            {name: len(ids) for name, ids in job.prompts.items()}, self._view.replicas()
        )
        tenant = self._tenant(job.turn)
        if job.adapter is None and tenant.models is not None:
            candidates = [each for each in candidates if tenant.may_use(each.model)]
        try:
            return route(question, candidates, self._policy)
        except NoRoute as refusal:
            full = partial(self._engines.retry_after, job.pools)
            raise refused(refusal, self._visible(job.turn), full) from None

    def _place(self, job: Job, decision: Decision, version: str | None) -> Placement | None:
        """Which replica of the chosen pool answers; None if it has only one."""
        turn = job.turn
        prompt = job.prompts[self._engines[decision.replica].pool.name]
        question = Question(prompt, version, turn.principal.tenant, turn.id, turn.request.previous_response_id)
        return self._engines.place(decision, question, self._view.replicas())

    def _tenant(self, turn: Turn) -> Tenant:
        name = turn.principal.tenant
        return self._view.tenant(name) or Tenant(name=name)

    def _visible(self, turn: Turn) -> list[str]:
        """Names of the adapters that the turn could have asked for."""
        tenant = self._tenant(turn)
        return [name for name in sorted(self._adapters.visible(tenant.name)) if tenant.may_use(name)]

    def _announce(self, job: Job, decision: Decision, engine: Engine, *, fallback: bool) -> None:
        reason = str(Why.FALLBACK if fallback else decision.why)
        self._metrics.routed(engine.pool.tier, reason)
        if job.turn.log.items:
            return  # it goes on with text that was shown before, see `gateway.flights`
        job.turn.append(
            Routed(
                tier=engine.pool.tier,
                model=job.model(engine),
                replica=engine.name,
                reason=reason,
                complexity=decision.complexity,
                reasons=(*decision.reasons, *job.remarks),
                probabilities=_probabilities(decision),
                cache=job.outcome,
                cache_reason=job.found.reason,
                input_tokens=len(job.prompts[engine.pool.name]),
                service_tier=job.share.tier,
                scores=decision.scores,
            )
        )


def _probabilities(decision: Decision) -> tuple[float, float, float] | None:
    """That each tier answers well, where that decided."""
    prediction = decision.choice.outlook.prediction if decision.choice else None
    return prediction.probabilities if prediction else None


def _most(price: Price, input: int, output: int) -> int:
    """Micro-dollars, whatever the prefix cache holds."""
    return max(cost(price, input, 0, output), cost(price, input, input, output))
