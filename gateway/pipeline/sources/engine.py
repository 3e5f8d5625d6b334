"""Answers from engines: asks the one that was chosen, the next ones while none has given a token, and the next tier if
the answer looks bad before anybody has seen it."""

from __future__ import annotations

from functools import partial

import msgspec

from gateway.config.settings import Settings
from gateway.engines.placement import NO_BLOCKS
from gateway.engines.pools import Engine, Engines
from gateway.errors import ApiError
from gateway.pipeline.job import End, Job
from gateway.pipeline.relay import EngineRequest, Streamed, TryNext, relay
from gateway.pipeline.routing.choice import Routing
from gateway.pipeline.routing.escalations import Escalations, Takeover
from gateway.pipeline.routing.held import HeldAnswer
from gateway.pipeline.sink import FilteredSink, TurnSink
from gateway.pipeline.sources.repetition import Repetition
from gateway.pipeline.sources.response_cache import diverged
from gateway.protocol.stream import Routed, TokenUsage
from gateway.safety.guard import Guard
from gateway.telemetry.metrics.process import Metrics
from gateway.telemetry.trace import Stage
from gateway.turns import TurnState
from router.route import RouteDecision, RouteReason


class EngineAnswers:
    """The engines on a turn's road."""

    def __init__(
        self,
        settings: Settings,
        engines: Engines,
        routing: Routing,
        escalations: Escalations,
        metrics: Metrics,
        guard: Guard,
    ) -> None:
        self._escalations = escalations
        self._settings = settings
        self._engines = engines
        self._routing = routing
        self._metrics = metrics
        self._guard = guard

    async def give(self, job: Job) -> End:
        """Route, then stream from the chosen engine."""
        await self._routing.choose(job)
        decision = self._routing.route(job)
        first = self._escalations.begin(job, decision)
        end = await self._ask(job, decision, held=first.held if first else None)
        if first is None:
            return end
        following = self._escalations.judge(job, first, end)
        larger = await self._escalate(job, end, following) if following else None
        if larger is None:
            first.held.release()
        return larger or end

    async def _escalate(self, job: Job, first: End, following: RouteDecision) -> End | None:
        """Another answer; None if there is none, and the first one is the answer after all."""
        engine = self._engines[following.replica]
        output = output_limit(job, self._settings, engine.context - len(job.prompts[engine.pool.name]))
        job.turn.trace.mark(Stage.ENGINE)
        takeover = await self._escalations.take_over(job, first, following, output)
        if takeover is None:
            return None
        try:
            end = await self._ask(job, following, takeover=takeover)
        except ApiError:
            if takeover.done:
                raise
            end = None
        if end is not None and end.streamed.error is None:
            takeover.complete()
        self._escalations.ended(job, takeover)
        if takeover.done:
            return end
        takeover.undo()
        return None

    async def _ask(
        self, job: Job, decision: RouteDecision, *, held: HeldAnswer | None = None, takeover: Takeover | None = None
    ) -> End:
        """Stream from the engine of a decision, or from the next one while none has given a token."""
        placement = self._routing.place(job, decision)
        if placement is not None:
            decision = placement.apply(decision)
        job.turn.trace.mark(Stage.ROUTE)
        # What was shown of another turn's answer, before that one failed.
        repetition = Repetition(job.turn.log.text, job.turn.append) if job.turn.log.items else None
        sink = takeover or held or TurnSink(job.turn, repetition.append if repetition else None)
        for replica in (decision.replica, *decision.fallbacks):
            engine = self._engines[replica]
            # Another replica of the tier that the router chose is as good as the first one.
            fallback = decision.why is RouteReason.FALLBACK or engine.pool.tier != decision.tier
            sink.announce = partial(self._announce, job, decision, engine, fallback=fallback)
            if held is not None and fallback:
                held.release()
            prompt = job.prompts[engine.pool.name]
            limit = output_limit(job, self._settings, engine.context - len(prompt))
            sampling = job.turn.request.sampling.resolve(engine.pool.text.defaults, max_tokens=limit, seed=job.seed)
            if held is not None and self._escalations.scores and sampling.logprobs is None:
                sampling = msgspec.structs.replace(sampling, logprobs=0)
            known, blocks = (0, NO_BLOCKS) if placement is None else placement.known(engine)
            filter = self._guard.open(job.turn) if self._guard.active else None
            asked = EngineRequest(
                turn=job.turn,
                engine=engine,
                prompt=prompt,
                sampling=sampling,
                flight=engine.carrying(len(prompt) - known, engine.pool.answer_tokens(limit), blocks),
                share=job.share,
                adapter=job.adapter.version if job.adapter else None,
                queue_timeout=self._settings.turns.queue_timeout,
            )
            try:
                streamed = await relay(asked, FilteredSink(sink, filter, self._guard.hold_seconds) if filter else sink)
                break
            except TryNext as failure:
                streamed = Streamed(reason="error", usage=TokenUsage(), error=failure.error)
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

    def _announce(self, job: Job, decision: RouteDecision, engine: Engine, *, fallback: bool) -> None:
        reason = str(RouteReason.FALLBACK if fallback else decision.why)
        self._metrics.turns.routed(engine.pool.tier, reason)
        first = decision.replica
        instead = (f"{first} did not answer, {engine.name} stands in",) if engine.name != first else ()
        if job.turn.log.items:
            return  # it goes on with text that was shown before, see `gateway.pipeline.sources.single_flight`
        job.turn.append(
            Routed(
                tier=engine.pool.tier,
                model=job.model(engine),
                replica=engine.name,
                reason=reason,
                complexity=decision.complexity,
                reasons=(*decision.reasons, *instead, *job.remarks),
                probabilities=_probabilities(decision),
                cache=job.outcome,
                cache_reason=job.found.reason,
                input_tokens=len(job.prompts[engine.pool.name]),
                service_tier=job.share.tier,
                scores=decision.scores,
                earlier=job.earlier,
            )
        )


def output_limit(job: Job, settings: Settings, room: int) -> int:
    """Output tokens for an engine with `room` beside the prompt; the router has checked an explicit limit."""
    request = job.turn.request
    if not request.generate:
        return 1  # an engine has to run the whole prompt before it can sample the one token that is thrown away
    return request.max_output_tokens or max(1, min(settings.turns.default_max_output_tokens, room))


def _probabilities(decision: RouteDecision) -> tuple[float, float, float] | None:
    """That each tier answers well, where that decided."""
    prediction = decision.choice.outlook.prediction if decision.choice else None
    return prediction.probabilities if prediction else None
