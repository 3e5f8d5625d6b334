"""The log of tier decisions: a capped stream per tenant in Redis, written once a second beside the turns.

An entry holds what a decision was made from and how it turned out, so that it can be repeated offline and learnt from:
features (counts and shares), probabilities, prices, the propensity, the model's version, but no text of clients. What
Redis does not take is tried again; beyond `MAX_WAITING` entries the oldest are dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.off_policy import JudgedAnswer
from router.refit import Preference
from router.tier import TIERS, TierChoice, ValueSource, again

log = logging.getLogger("roundhouse.decisions")

KEY = "rh1:route-log:{{{tenant}}}"
FEEDBACK_KEY = "rh1:route-feedback:{{{tenant}}}"
FEEDBACK_ENTRIES = 10_000
"""Feedback entries that are kept of a tenant, about."""
RETENTION = 35 * 24 * 3600
"""Seconds for which a tenant's log is kept after its last entry."""
MAX_WAITING = 10_000
_READ_AT_ONCE = 500
_SKEW = 60_000
"""Milliseconds by which the clocks of Redis and a gateway may differ."""


class LoggedDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision, and the tier that answered in the end."""

    response: str
    """Id of the response."""
    at: int
    """Unix time in milliseconds when the response ended."""
    choice: TierChoice
    features: dict[str, float]
    """Features of the request (`router.features.Features`) that are not 0."""
    model: str
    """Version of the model of success; empty if it was off."""
    tier: str
    """Tier that answered: not the chosen one if that was down or too small."""
    input_tokens: int
    output_tokens: int
    outcome: str
    """How the turn ended."""

    @property
    def reproducible(self) -> bool:
        """Whether the logged values lead to the same decision again."""
        return again(self.choice) == self.choice


Signal = Literal["up", "down", "withdrawn", "preferred", "regenerate", "edit"]
"""Kinds of feedback: a thumb up, down or taken back, an answer preferred over others, the same question asked again, or
the last question reworded."""
FeedbackReason = Literal["wrong", "incomplete", "off_format", "too_slow", "unsafe"]
"""Reasons of a thumb down."""


class Compared(Struct, frozen=True):
    """A response beside which another one was preferred."""

    response: str
    tier: str
    """Tier that answered; empty if an adapter did, of which the router believes nothing."""


class Feedback(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's judgement of a response, given or inferred from what they did next."""

    response: str
    at: int
    """Unix time of the feedback in milliseconds."""
    signal: Signal
    reason: FeedbackReason | None = None
    """Reason of a thumb down, if one was given."""
    tier: str = ""
    """Of a preferred response, as `Compared.tier`."""
    over: tuple[Compared, ...] = ()
    """Answers to the same question over which the response is preferred."""


class DecisionLog:
    """Collects decisions, feedback and the opinions of a judge, and writes them to Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: deque[tuple[str, int, str, bytes]] = deque(maxlen=MAX_WAITING)
        self._flushing = asyncio.Lock()

    def add(self, tenant: str, entry: LoggedDecision, *, keep: int) -> None:
        """Write a decision with the next flush. Args: keep: entries of the tenant that are kept (about)."""
        self.note(KEY.format(tenant=tenant), keep, "decision", entry)

    def think(self, tenant: str, response: str, signal: Signal, reason: FeedbackReason | None = None) -> None:
        """Write a user's judgement of a response with the next flush."""
        self._feedback(tenant, Feedback(response=response, at=_now(), signal=signal, reason=reason))

    def prefer(self, tenant: str, preferred: Compared, over: Sequence[Compared]) -> None:
        """Write with the next flush that a user prefers an answer over others to the same question."""
        feedback = Feedback(
            response=preferred.response, at=_now(), signal="preferred", tier=preferred.tier, over=tuple(over)
        )
        self._feedback(tenant, feedback)

    def note(self, key: str, keep: int, field: str, entry: Struct) -> None:
        """Write to a stream of a tenant's with the next flush. Args: keep: entries that are kept (about)."""
        self._waiting.append((key, keep, field, msgspec.json.encode(entry)))

    def _feedback(self, tenant: str, feedback: Feedback) -> None:
        self.note(FEEDBACK_KEY.format(tenant=tenant), FEEDBACK_ENTRIES, "feedback", feedback)

    async def flush(self) -> None:
        """Write what was added since the last flush, and wait for one that is under way."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, deque(maxlen=MAX_WAITING)
        if not waiting:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key, keep, field, entry in waiting:
                    pipeline.xadd(key, {field: entry}, maxlen=keep, approximate=True)
                for key in {key for key, *_ in waiting}:
                    pipeline.expire(key, RETENTION)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            log.warning("decisions not written", extra={"error": type(error).__name__})
            waiting.extend(self._waiting)
            self._waiting = waiting


async def read(redis: Redis, tenant: str, count: int) -> list[LoggedDecision]:
    """Return a tenant's newest decisions, newest first.

    Raises:
        RedisError: Redis does not answer.
        ValueError: somebody has written something else there.
    """
    return [decision for _, decision in await read_back(redis, tenant, "", count)]


async def read_back(redis: Redis, tenant: str, before: str, count: int) -> list[tuple[str, LoggedDecision]]:
    """Return the newest decisions before a place in a tenant's log, with their places, newest first; empty: of all.

    Raises as `read`.
    """
    end = f"({before}" if before else "+"
    found = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]", await redis.xrevrange(KEY.format(tenant=tenant), end, count=count)
    )
    return [(id.decode(), msgspec.json.decode(fields[b"decision"], type=LoggedDecision)) for id, fields in found]


async def newest(redis: Redis, tenants: Sequence[str], count: int) -> list[LoggedDecision]:
    """Return the newest decisions of several tenants together, newest first.

    Raises as `read`.
    """
    at_once = max(10, count // max(1, len(tenants)))
    logs = [_back(redis, tenant, at_once) for tenant in tenants]
    heads = [(-first.at, number, first) for number, log in enumerate(logs) if (first := await anext(log, None))]
    heapq.heapify(heads)
    found: list[LoggedDecision] = []
    while heads and len(found) < count:
        _, number, decision = heads[0]
        found.append(decision)
        following = await anext(logs[number], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (-following.at, number, following))
    return found


async def _back(redis: Redis, tenant: str, at_once: int) -> AsyncGenerator[LoggedDecision]:
    """Yield a tenant's decisions, newest first. Args: at_once: how many are read at once."""
    before = ""
    while page := await read_back(redis, tenant, before, at_once):
        for _, decision in page:
            yield decision
        before = page[-1][0]


async def find(redis: Redis, tenant: str, response: str, began: int) -> tuple[LoggedDecision | None, list[Feedback]]:
    """Return the decision about a response, if the log has it, and all feedback on it, oldest first.

    Args:
        began: Unix time at which the response began: older entries are not searched.

    Raises as `read`.
    """
    begin = str(1000 * began - _SKEW)
    decision: LoggedDecision | None = None
    feedback: list[Feedback] = []
    async for fields in _from(redis, KEY.format(tenant=tenant), begin):
        each = msgspec.json.decode(fields[b"decision"], type=LoggedDecision)
        if each.response == response:
            decision = each
            break
    async for fields in _from(redis, FEEDBACK_KEY.format(tenant=tenant), begin):
        thought = msgspec.json.decode(fields[b"feedback"], type=Feedback)
        if thought.response == response:
            feedback.append(thought)
    return decision, feedback


async def _from(redis: Redis, key: str, begin: str) -> AsyncIterator[dict[bytes, bytes]]:
    """Yield the entries of a stream from an id on."""
    while page := cast("list[tuple[bytes, dict[bytes, bytes]]]", await redis.xrange(key, begin, count=_READ_AT_ONCE)):
        for _, fields in page:
            yield fields
        begin = "(" + page[-1][0].decode()


async def read_feedback(redis: Redis, tenant: str, count: int) -> list[Feedback]:
    """Return a tenant's newest feedback, like `read`."""
    entries = await redis.xrevrange(FEEDBACK_KEY.format(tenant=tenant), count=count)
    found = cast("list[tuple[bytes, dict[bytes, bytes]]]", entries)
    return [msgspec.json.decode(fields[b"feedback"], type=Feedback) for _, fields in found]


def judged_answers(decisions: Sequence[LoggedDecision], feedback: Sequence[Feedback], model: str) -> list[JudgedAnswer]:
    """Return the answers that were judged, beside the probabilities of one version of the model, oldest first.

    The newest thumb on a response counts; without one, or if it was taken back, the newest inferred judgement. A thumb
    down for slowness says nothing of what was answered.
    """
    thumbs: dict[str, Feedback] = {}
    inferred: dict[str, Feedback] = {}
    for thought in sorted(feedback, key=lambda thought: thought.at):
        if thought.signal != "preferred":
            given = thumbs if thought.signal in ("up", "down", "withdrawn") else inferred
            given[thought.response] = thought
    said = inferred | {response: thought for response, thought in thumbs.items() if thought.signal != "withdrawn"}
    found = []
    for each in sorted(decisions, key=lambda decision: decision.at):
        thought_of, probabilities = said.get(each.response), believed(each, model)
        if thought_of is None or thought_of.reason == "too_slow" or each.tier != each.choice.tier:
            continue
        if probabilities is not None:
            found.append(JudgedAnswer(each.choice, probabilities, thought_of.signal == "up"))
    return found


def preferences(decisions: Sequence[LoggedDecision], feedback: Sequence[Feedback], model: str) -> list[Preference]:
    """Return which tier's answer was preferred over which, beside the probabilities of one version of the model.

    Of the answers that were compared, one was routed: its decision says what was believed of every tier. The newest
    opinion on two answers counts.
    """
    routed = {each.response: each for each in decisions}
    found: dict[frozenset[str], Preference] = {}
    for thought in sorted(feedback, key=lambda thought: thought.at):
        sides = (thought.response, *(other.response for other in thought.over))
        decision = next((routed[response] for response in sides if response in routed), None)
        probabilities = None if decision is None else believed(decision, model)
        if decision is None or probabilities is None:
            continue
        for other in thought.over:
            if thought.tier in TIERS and other.tier in TIERS and thought.tier != other.tier:
                better, worse = TIERS.index(thought.tier), TIERS.index(other.tier)
                found[frozenset((thought.response, other.response))] = Preference(
                    better=thought.tier,
                    worse=other.tier,
                    probabilities=(probabilities[better], probabilities[worse]),
                    propensity=decision.choice.propensity,
                )
    return list(found.values())


def believed(decision: LoggedDecision, model: str) -> tuple[float, float, float] | None:
    """Return the probabilities by which a tier was chosen; None if they are not those of this version of the model."""
    outlook = decision.choice.outlook
    learnt = outlook.source is ValueSource.LEARNT and decision.model == model
    return outlook.prediction.probabilities if learnt and outlook.prediction is not None else None


def _now() -> int:
    return int(time.time() * 1000)
