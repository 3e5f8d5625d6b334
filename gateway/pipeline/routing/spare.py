"""Answers that no client waits for: only from engines with room, in the lowest class of service, and given up as soon
as others would have to wait for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from msgspec import Struct

from engine.client.answer_stream import AnswerStream
from engine.client.conversation import ChatPrompt, Prompt
from engine.client.generation import EngineGone, EngineOverloaded
from engine.client.upstream import GenerateOptions
from engine.wire import Grammar, SamplingParams
from gateway.engines.engine import Engine
from gateway.engines.placement import salt_of
from gateway.engines.pool import Pool
from gateway.pipeline.values import Admitted
from gateway.protocol.stream import TokenUsage
from gateway.turns import Turn

MOST_TOKENS = 1024
"""Most tokens of another answer to a turn."""
SECONDS = 60.0
"""Seconds after which such work is given up."""
QUEUE_SECONDS = 5.0
"""Seconds for which it may wait in its engine."""
BUSY_SECONDS = 0.5
"""Seconds of predicted waiting in an engine beyond which it is given up."""


class GivenUp(Exception):
    """Others need the engine."""


class SpareRequest(Struct, frozen=True, kw_only=True):
    """A request to an engine for which no client waits."""

    engine: Engine
    prompt: Prompt
    sampling: SamplingParams
    account: str
    """Account in the engine's fair shares; those of tenants are digests."""
    turn: Turn
    """The turn that it is about."""
    stop: Sequence[str] = ()
    adapter: str | None = None
    grammar: Grammar | None = None


class SpareAnswer(Struct, frozen=True):
    """What an engine has answered."""

    text: str
    whole: bool
    """Whether the answer ended by itself."""
    first_seconds: float | None
    """Seconds to the first token without those in the engine's queue."""


def engine_with_room(pool: Pool) -> Engine:
    """Return the least loaded engine that may be used.

    Raises:
        GivenUp: it is busy.
        EngineGone: there is none.
    """
    now = monotonic()
    up = [each for each in pool.engines if each.client.connected and not each.control.drained]
    up = [each for each in up if each.breaker.allows(now)] or up
    if not up:
        raise EngineGone(f"no engine of {pool.name!r} is up", started=False)
    engine = min(up, key=lambda each: (each.load, each.name))
    if _busy(engine):
        raise GivenUp
    return engine


def once_more(
    asked: Admitted, engine: Engine, prompt: Prompt, account: str, adapter: str | None = None
) -> SpareRequest:
    """Return the request for another answer to a turn. Args: prompt: the turn's, as this engine's pool takes it."""
    turn, request, pool = asked.turn, asked.turn.request, engine.pool
    most = max(1, min(request.max_output_tokens or MOST_TOKENS, MOST_TOKENS, engine.context - len(prompt)))
    return SpareRequest(
        engine=engine,
        prompt=prompt,
        sampling=request.sampling.resolve(pool.defaults, max_tokens=most, seed=asked.seed),
        account=account,
        turn=turn,
        stop=request.stop,
        adapter=adapter,
        grammar=request.format.grammar if request.format else None,
    )


async def answer(asked: SpareRequest, used: Callable[[TokenUsage], None] = lambda usage: None) -> SpareAnswer:
    """Return an engine's answer. Args: used: is told the tokens in the end, also if there is no answer.

    Raises:
        GivenUp: others need the engine.
        EngineGone, RequestFailed: there is no answer.
    """
    engine, text, sent, first = asked.engine, list[str](), monotonic(), None
    try:
        async with _begun(asked) as generation:
            try:
                async for delta in generation:
                    first = first or monotonic()
                    text.append(delta.text)
                    if _busy(engine):
                        raise GivenUp
            finally:
                usage = generation.delivered
                used(TokenUsage(usage.prompt_tokens, usage.cached_tokens, usage.output_tokens))
    except EngineOverloaded:
        raise GivenUp from None
    waited = generation.usage.queue_seconds
    return SpareAnswer(
        text="".join(text),
        whole=generation.result.finish_reason == "stop",
        first_seconds=None if first is None else first - sent - waited,
    )


def _begun(asked: SpareRequest) -> AnswerStream:
    client, prompt = asked.engine.client, asked.prompt
    options: GenerateOptions = {
        "adapter": asked.adapter,
        "salt": salt_of(asked.turn.principal.tenant),
        "grammar": asked.grammar,
        "tenant": asked.account,
        "service": "batch",
        "queue_timeout": QUEUE_SECONDS,
        "request_id": asked.turn.id,
    }
    if isinstance(prompt, ChatPrompt):
        return client.converse(prompt, asked.sampling, stop=asked.stop, **options)
    return client.generate(prompt, asked.sampling, text=asked.engine.pool.text, stop=asked.stop, **options)


def repeatable(turn: Turn) -> bool:
    """Whether a turn may be answered once more: no tools, whose calls must not be repeated."""
    tools = turn.request.tools is not None or any(message.role == "tool" for message in turn.conversation)
    return turn.request.generate and not tools


def _busy(engine: Engine) -> bool:
    pool, report = engine.pool, engine.client.load
    full = pool.max_turns > 0 and pool.turns >= pool.max_turns
    return full or (report is not None and report.predicted_queue_seconds > BUSY_SECONDS)
