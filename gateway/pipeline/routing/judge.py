"""A judge: a model that says which of two tiers has answered a request better, for the router to learn from.

It is asked about every two answers that a person compares, which shows whether it may be believed, and about a share of
what `auto` answers: then the tier that came next answers, too, after the turn has ended. No client sees or waits for
any of it, and no tenant pays: it has an account of its own in the ledger, `ACCOUNT`. It ends for the day when its
budget is spent. A gateway that dies loses the opinions that it was about to have.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Sequence

from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.client.generation import EngineGone, RequestFailed
from engine.text.processor import ChatTemplateError
from engine.wire import SamplingParams
from gateway.access.directory.view import View
from gateway.background import BackgroundTasks
from gateway.billing.cost import picodollars
from gateway.billing.entry import LedgerEntry
from gateway.billing.ledger import Ledger
from gateway.config.judge import JudgeSettings
from gateway.engines.pool import Pool
from gateway.engines.pools import Engines
from gateway.pipeline.routing import rubric
from gateway.pipeline.routing.decisions import DecisionLog
from gateway.pipeline.routing.judge_days import JudgeDays
from gateway.pipeline.routing.judgements import ENTRIES, KEY, JudgeOpinion, Pair
from gateway.pipeline.routing.spare import (
    SECONDS,
    GivenUp,
    SpareAnswer,
    SpareRequest,
    answer,
    engine_with_room,
    once_more,
    repeatable,
)
from gateway.pipeline.values import Answered, Dispatched
from gateway.protocol.requests import Message
from gateway.protocol.stream import TokenUsage
from gateway.telemetry.metrics.process import Metrics
from gateway.tools.prompt import template_messages
from gateway.turns import Turn
from router.judging import opponent
from router.tier import ValueSource

log = logging.getLogger("roundhouse.judge")

ACCOUNT = "system:judge"
"""Account in the ledger and in the engines' fair shares; no tenant may be named so."""
MOST = 8
"""Pairs of answers that one gateway has judged at the same time; others are left out."""
MOST_CHARACTERS = 24_000
"""Most characters of a conversation and two answers that are judged."""
_REMEMBERED = 10_000
_PICODOLLARS = 10**12


class _Side(Struct, frozen=True):
    """One of two answers."""

    response: str
    tier: str
    text: str


class _NotJudged(Exception):
    """There is no opinion; the message is the metric's outcome."""


class Judge:
    """Has answers of two tiers compared, as long as money and engines have room."""

    def __init__(
        self,
        settings: JudgeSettings,
        engines: Engines,
        view: View,
        decisions: DecisionLog,
        ledger: Ledger,
        redis: Redis,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._view = view
        self._decisions = decisions
        self._ledger = ledger
        self._days = JudgeDays(redis)
        self._uncounted = Counter[str]()
        """Pairs by outcome that are not counted in Redis yet."""
        self._metrics = metrics.judge
        self._running = BackgroundTasks("judge")
        self._seen: OrderedDict[Pair, None] = OrderedDict()
        """Pairs that people have compared and the judge was asked about."""

    @property
    def running(self) -> int:
        """Pairs that are being judged."""
        return len(self._running)

    def configure(self, settings: JudgeSettings) -> None:
        """Take new settings, for what is judged from now on."""
        self._settings = settings

    async def start(self) -> None:
        """Do nothing: no task runs before the first pair."""

    async def aclose(self) -> None:
        """Give up what is being judged."""
        await self._running.aclose()

    def routed(self, answered: Answered) -> None:
        """Have a turn that has ended answered by the next best tier as well, if it is one of the share to be judged."""
        asked, judge = answered.admitted, self._settings.pool
        if judge is None or not isinstance(asked, Dispatched):
            return
        choice, turn = asked.assessment.choice, asked.turn
        # Of other decisions nothing is believed that could be corrected.
        if choice is None or choice.outlook.source is not ValueSource.LEARNT or answered.tier != choice.tier:
            return
        if answered.cache == "hit" or answered.streamed.reason != "stop" or not self._fit(turn, judge):
            return
        pools = [pool for pool in asked.pools if pool.name in asked.prompts]
        tier = opponent(choice, {pool.tier for pool in pools})
        if tier is None or random.random() >= self._settings.share:
            return
        pool = next(pool for pool in pools if pool.tier == tier)
        self._begin(self._against(judge, asked, _Side(turn.id, answered.tier, turn.log.text), pool))

    def compared(self, preferred: Turn, others: Sequence[Turn]) -> None:
        """Have answers judged of which a person prefers one over the others."""
        judge = self._settings.pool
        if judge is None:
            return
        for other in others:
            one, two = (_Side(turn.id, tier_of(turn), turn.log.text) for turn in (preferred, other))
            fit = all(_ended(turn) and self._fit(turn, judge) for turn in (preferred, other))
            if fit and one.tier and two.tier and one.tier != two.tier and self._new(one, two):
                self._begin(self._opinion(judge, preferred, one, two))

    def _fit(self, turn: Turn, judge: str) -> bool:
        """Whether the judge may see a turn."""
        tenant = self._view.tenant(turn.principal.tenant)
        return (tenant is None or tenant.may_use(judge)) and repeatable(turn) and turn.request.prompt is None

    def _new(self, one: _Side, two: _Side) -> bool:
        """Whether these were not judged yet, as far as this gateway knows: people may say the same again and again."""
        pair = frozenset((one.response, two.response))
        if pair in self._seen:
            return False
        self._seen[pair] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def _begin(self, work: Coroutine[None, None, str]) -> None:
        if len(self._running) >= MOST:
            work.close()
            self._ended("given_up")
            return
        self._running.begin(self._judge(work))

    async def _judge(self, work: Coroutine[None, None, str]) -> None:
        outcome = "error"
        try:
            async with asyncio.timeout(SECONDS):
                outcome = await work
        except (GivenUp, TimeoutError):
            outcome = "given_up"
        except _NotJudged as reason:
            outcome = str(reason)
        except (EngineGone, RequestFailed, ChatTemplateError, RedisError, OSError) as error:
            log.info("not judged", extra={"error": type(error).__name__})
        finally:
            self._ended(outcome)
        await self._count()

    def _ended(self, outcome: str) -> None:
        """Count a pair: here at once, and in Redis when the next one has ended that was judged."""
        self._metrics.ended(outcome)
        self._uncounted[outcome] += 1

    async def _count(self) -> None:
        counted, self._uncounted = self._uncounted, Counter[str]()
        try:
            await self._days.count(counted)
        except (RedisError, OSError) as error:
            log.info("not counted", extra={"error": type(error).__name__})
            self._uncounted += counted

    async def _against(self, judge: str, asked: Dispatched, given: _Side, pool: Pool) -> str:
        """Ask another tier as well, and then for an opinion on both answers."""
        _measure(asked.turn, given.text)
        engine = engine_with_room(pool)
        made = await self._ask(once_more(asked, engine, asked.prompts[pool.name], ACCOUNT))
        if not made.whole:
            raise _NotJudged("unfinished")
        other = _Side(f"{given.response}+{pool.tier}", pool.tier, made.text)
        return await self._opinion(judge, asked.turn, given, other)

    async def _opinion(self, judge: str, turn: Turn, one: _Side, other: _Side) -> str:
        """Ask for an opinion in both orders and log it; returns the outcome for the metric."""
        said = (0, 0)
        if one.text.strip() != other.text.strip():
            _measure(turn, one.text, other.text)
            conversation = rubric.conversation_text(turn.conversation, turn.request.instructions)
            first = await self._say(judge, turn, rubric.question(conversation, one.text, other.text))
            second = await self._say(judge, turn, rubric.question(conversation, other.text, one.text))
            said = first, -second
        judgement = JudgeOpinion(
            at=int(time.time() * 1000),
            judge=judge,
            responses=(one.response, other.response),
            tiers=(one.tier, other.tier),
            said=said,
            characters=(len(one.text), len(other.text)),
        )
        self._decisions.note(KEY.format(tenant=turn.principal.tenant), ENTRIES, "judgement", judgement)
        return "contradicted" if said[0] * said[1] < 0 else "preferred" if judgement.opinion else "tie"

    async def _say(self, judge: str, turn: Turn, question: str) -> int:
        """Return what the judge says of a question; 1: the first answer is better."""
        pool = next((pool for pool in self._engines.pools if pool.name == judge), None)
        if pool is None or pool.encoder is None:
            raise EngineGone(f"the model {judge!r} is not here yet", started=False)
        engine = engine_with_room(pool)
        messages = template_messages([Message("user", question)], pool.tools, (), None)
        prompt = await pool.encoder.encode(messages, tools=None)
        if len(prompt) + rubric.MOST_TOKENS > engine.context:
            raise _NotJudged("too_long")
        asked = SpareRequest(
            engine=engine,
            prompt=prompt,
            sampling=SamplingParams(max_tokens=rubric.MOST_TOKENS, temperature=0.0),
            account=ACCOUNT,
            turn=turn,
            grammar=rubric.VERDICTS,
        )
        said = rubric.verdict((await self._ask(asked)).text)
        if said is None:
            raise _NotJudged("unreadable")
        return said

    async def _ask(self, asked: SpareRequest) -> SpareAnswer:
        """Ask an engine, within the budget and on the judge's own account."""
        pool, prompt = asked.engine.pool, len(asked.prompt)
        price, limit = self._view.price(pool.name), round(self._settings.dollars_per_day * _PICODOLLARS)
        if price is None:
            raise _NotJudged("unpriced")
        most = max(picodollars(price, prompt, cached, asked.sampling.max_tokens) for cached in (0, prompt))
        day = await self._days.reserve(most, limit)
        if day is None:
            raise _NotJudged("budget")
        used, done = TokenUsage(), False

        def count(usage: TokenUsage) -> None:
            nonlocal used
            used = usage

        try:
            made = await answer(asked, count)
            done = True
            return made
        finally:
            spent = picodollars(price, used.input_tokens, used.cached_tokens, used.output_tokens)
            self._enter(asked, used, spent, done=done)
            await self._days.settle(day, most, spent)

    def _enter(self, asked: SpareRequest, used: TokenUsage, spent: int, *, done: bool) -> None:
        """Enter what an engine has computed into the ledger."""
        if not used.total_tokens:
            return
        pool, turn = asked.engine.pool, f"{asked.turn.id}:{secrets.token_hex(4)}"
        made = LedgerEntry(
            turn=turn,
            at=int(time.time() * 1000),
            tenant=ACCOUNT,
            key=asked.turn.principal.tenant,
            model=pool.name,
            tier=pool.tier,
            outcome="completed" if done else "cancelled",
            cache="bypass",
            input=used.input_tokens,
            cached=used.cached_tokens,
            output=used.output_tokens,
            picodollars=spent,
        )
        self._ledger.close(turn, made)


def _ended(turn: Turn) -> bool:
    """Whether a turn's answer has ended by itself."""
    return turn.log.finished is not None and turn.log.finished.reason == "stop"


def tier_of(turn: Turn) -> str:
    """Return the tier that answered a turn; empty if an adapter did, of which the router believes nothing."""
    routed = turn.log.routed
    return routed.tier if routed is not None and routed.base_model is None else ""


def _measure(turn: Turn, *answers: str) -> None:
    """
    Raises:
        _NotJudged: a conversation and answers to it are too long to be judged.
    """
    size = sum(message.size for message in turn.conversation) + len(turn.request.instructions or "")
    if size + sum(map(len, answers)) > MOST_CHARACTERS:
        raise _NotJudged("too_long")
