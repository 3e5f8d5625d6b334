"""Answers from engines: asks the chosen one, then others until one gives a token."""

from __future__ import annotations

from functools import partial

import msgspec

from gateway.config.settings import Settings
from gateway.engines.engine import Engine
from gateway.engines.placement import NO_BLOCKS
from gateway.engines.pools import Engines
from gateway.pipeline.asking import EngineRequest
from gateway.pipeline.relay import Streamed, TryNext, relay
from gateway.pipeline.routing.choice import Routing
from gateway.pipeline.routing.waking import WaitCancelled
from gateway.pipeline.sink import FilteredSink, TurnSink
from gateway.pipeline.sources.candidates import Candidates
from gateway.pipeline.sources.repetition import Repetition
from gateway.pipeline.sources.response_cache import diverged
from gateway.pipeline.values import Answered, Dispatched, Progress
from gateway.protocol.requests import TurnRequest
from gateway.protocol.stream import Routed, TokenUsage
from gateway.safety.guard import Guard
from gateway.telemetry.metrics.process import Metrics
from gateway.telemetry.trace import Stage
from router.options import options
from router.route import RouteDecision, RouteReason

LESS_PROMISED = (
    "its server takes messages: counts are estimates until the end, and an answer that is lost does not go on elsewhere"
)
"""Reason that clients are told of a model whose server keeps its tokens to itself."""


class EngineAnswers:
    """The engines as a source of answers."""

    def __init__(
        self,
        settings: Settings,
        engines: Engines,
        routing: Routing,
        metrics: Metrics,
        guard: Guard,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._routing = routing
        self._metrics = metrics
        self._guard = guard

    async def answer(self, progress: Progress) -> Answered:
        """Choose an engine, then stream from it."""
        try:
            dispatched = progress.admitted = await self._routing.dispatch(progress.admitted)
        except WaitCancelled:
            cancelled = progress.cut_off(reason="cancelled")
            assert cancelled is not None  # that it waits was shown
            return cancelled
        turn = dispatched.turn
        if not turn.log.items:
            return await self._ask(dispatched, TurnSink(turn))
        # It goes on with what was shown of another turn's answer before that one failed.
        repetition = Repetition(turn.log.text, turn.append)
        answered = await self._ask(dispatched, TurnSink(turn, repetition.append))
        if not repetition.whole and answered.streamed.reason in ("stop", "length", "content_filter"):
            return msgspec.structs.replace(answered, streamed=diverged(turn))
        return answered

    async def _ask(self, dispatched: Dispatched, sink: TurnSink) -> Answered:
        """Stream from the engine of a decision, or from the next one while none has given a token."""
        turn, prompts = dispatched.turn, dispatched.prompts
        placement = self._routing.place(dispatched)
        decision = dispatched.decision if placement is None else placement.apply(dispatched.decision)
        turn.trace.mark(Stage.ROUTE)
        engines = [self._engines[replica] for replica in (decision.replica, *decision.fallbacks)]
        candidates = Candidates(engines, turn, self._settings.turns.move_timeout)
        while True:
            engine = candidates.current
            # Another replica of the pool that the router chose is as good as the first one.
            fallback = decision.why is RouteReason.FALLBACK or engine.pool.name != decision.model
            sink.announce = partial(self._announce, dispatched, decision, engine, fallback=fallback)
            known, blocks = (0, NO_BLOCKS) if placement is None else placement.known(engine)
            limit = self._output_limit(dispatched, engine)
            computed = len(prompts[engine.pool.name]) - known
            asked = EngineRequest(
                turn=turn,
                engine=engine,
                prompt=prompts[engine.pool.name],
                sampling=turn.request.sampling.resolve(engine.pool.defaults, max_tokens=limit, seed=dispatched.seed),
                flight=engine.carrying(computed, engine.pool.answer_length.predict(limit), blocks),
                share=dispatched.share,
                adapter=dispatched.adapter.version if dispatched.adapter else None,
                queue_timeout=self._settings.turns.queue_timeout,
                move_timeout=self._settings.turns.move_timeout,
            )
            filter = self._guard.open(turn) if self._guard.active else None
            try:
                streamed = await relay(asked, FilteredSink(sink, filter, self._guard.hold_seconds) if filter else sink)
                break
            except TryNext as failure:
                if await candidates.next(failure, len(asked.prompt) + limit):
                    continue
                if turn.cancelled and turn.log.routed is not None:
                    streamed = Streamed(reason="cancelled", usage=TokenUsage())
                else:
                    streamed = Streamed(reason="error", usage=TokenUsage(), error=failure.error)
                break
        self._metrics.turns.moved(engine.pool.tier, streamed.moves)
        if streamed.error is not None and turn.log.routed is None:
            raise streamed.error
        if streamed.error is None:
            engine.pool.answer_length.observe(streamed.usage.output_tokens)
        if placement is not None:
            prompt, found = len(asked.prompt), streamed.usage.cached_tokens
            self._metrics.placements.answered(
                engine.pool.tier, placement.choice.how, prompt=prompt, expected=known, found=found
            )
        return Answered(dispatched, streamed, engine.pool.tier, dispatched.model(engine), fallback)

    def _announce(self, dispatched: Dispatched, decision: RouteDecision, engine: Engine, *, fallback: bool) -> None:
        turn, cache = dispatched.turn, dispatched.cache
        reason = str(RouteReason.FALLBACK if fallback else decision.why)
        self._metrics.turns.routed(engine.pool.tier, engine.pool.name, reason)
        first = decision.replica
        instead = (f"{first} did not answer, {engine.name} stands in",) if engine.name != first else ()
        less = (LESS_PROMISED,) if engine.pool.takes_messages else ()
        if turn.log.items:
            return  # it goes on with text that was shown before, see `gateway.pipeline.sources.single_flight`
        turn.append(
            Routed(
                tier=engine.pool.tier,
                model=dispatched.model(engine),
                replica=engine.name,
                reason=reason,
                complexity=decision.complexity,
                reasons=(*decision.reasons, *instead, *dispatched.remarks, *less),
                probabilities=_probabilities(decision),
                options=options(decision.choice, decision.unavailable),
                cache=cache.outcome,
                cache_reason=cache.found.reason,
                input_tokens=len(dispatched.prompts[engine.pool.name]),
                service_tier=dispatched.share.tier,
                scores=decision.scores,
                scores_left_out=decision.scores_left_out,
                base_model=dispatched.adapter.model if dispatched.adapter else None,
                defaults=engine.pool.defaults,
            )
        )

    def _output_limit(self, dispatched: Dispatched, engine: Engine) -> int:
        room = engine.context - len(dispatched.prompts[engine.pool.name])
        return output_limit(dispatched.turn.request, self._settings, room)


def output_limit(request: TurnRequest, settings: Settings, room: int) -> int:
    """Return an engine's output tokens with `room` beside the prompt; the router has checked an explicit limit."""
    if not request.generate:
        return 1  # an engine has to run the whole prompt before it can sample the one token that is thrown away
    return request.max_output_tokens or max(1, min(settings.turns.default_max_output_tokens, room))


def _probabilities(decision: RouteDecision) -> tuple[float, float, float] | None:
    """Return each tier's predicted probability of a good answer, if there was a prediction."""
    prediction = decision.choice.outlook.prediction if decision.choice else None
    return prediction.probabilities if prediction else None
