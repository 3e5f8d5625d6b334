"""The log of tier decisions: a capped stream per tenant in Redis, written once a second beside the turns.

An entry holds what a decision was made from and how it turned out, so that it can be repeated offline and learnt from:
features (counts and shares), probabilities, prices, the propensity, the model's version, but no text of clients. What
Redis does not take is tried again; beyond `MAX_WAITING` entries the oldest are dropped.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Literal, cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.cascade import Escalation
from router.cascade import again as again_escalated
from router.refit import Opinion
from router.tier import TIERS, TierChoice, ValueSource, again

log = logging.getLogger("roundhouse.decisions")

KEY = "rh1:route-log:{{{tenant}}}"
FEEDBACK_KEY = "rh1:route-feedback:{{{tenant}}}"
FEEDBACK_ENTRIES = 10_000
"""Feedback entries that are kept of a tenant, about."""
RETENTION = 35 * 24 * 3600
"""Seconds for which a tenant's log is kept after its last entry."""
MAX_WAITING = 10_000


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
    escalation: Escalation | None = None
    """Whether another answer was worth its cost, where the first one looked bad; `tier` says whether there was one."""
    earlier_input_tokens: int = 0
    """Input tokens of a discarded first answer, which `input_tokens` leaves out."""
    earlier_output_tokens: int = 0

    @property
    def reproducible(self) -> bool:
        """Whether the logged values lead to the same decision again."""
        escalated = self.escalation is None or again_escalated(self.escalation) == self.escalation
        return escalated and again(self.choice) == self.choice


Signal = Literal["up", "down", "withdrawn", "regenerate", "edit"]
"""Kinds of feedback: a thumb up, down or taken back, the same question asked again, or the last question reworded."""


class Feedback(Struct, frozen=True, kw_only=True):
    """A user's judgement of a response, given or inferred from what they did next."""

    response: str
    at: int
    """Unix time of the feedback in milliseconds."""
    signal: Signal


class DecisionLog:
    """Collects decisions and feedback, and writes them to Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: deque[tuple[str, int, str, bytes]] = deque(maxlen=MAX_WAITING)

    def add(self, tenant: str, entry: LoggedDecision, *, keep: int) -> None:
        """Write a decision with the next flush. Args: keep: entries of the tenant that are kept (about)."""
        self._waiting.append((KEY.format(tenant=tenant), keep, "decision", msgspec.json.encode(entry)))

    def think(self, tenant: str, response: str, signal: Signal) -> None:
        """Write a user's judgement of a response with the next flush."""
        feedback = Feedback(response=response, at=int(time.time() * 1000), signal=signal)
        key = FEEDBACK_KEY.format(tenant=tenant)
        self._waiting.append((key, FEEDBACK_ENTRIES, "feedback", msgspec.json.encode(feedback)))

    async def flush(self) -> None:
        """Write what was added since the last flush."""
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
    found = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]", await redis.xrevrange(KEY.format(tenant=tenant), count=count)
    )
    return [msgspec.json.decode(fields[b"decision"], type=LoggedDecision) for _, fields in found]


async def read_feedback(redis: Redis, tenant: str, count: int) -> list[Feedback]:
    """Return a tenant's newest feedback, like `read`."""
    entries = await redis.xrevrange(FEEDBACK_KEY.format(tenant=tenant), count=count)
    found = cast("list[tuple[bytes, dict[bytes, bytes]]]", entries)
    return [msgspec.json.decode(fields[b"feedback"], type=Feedback) for _, fields in found]


def opinions(decisions: Sequence[LoggedDecision], feedback: Sequence[Feedback], model: str) -> list[Opinion]:
    """Return feedback beside the probabilities of one version of the model. The newest thumb on a response counts;
    without one, or if it was taken back, the newest inferred judgement."""
    thumbs: dict[str, Signal] = {}
    inferred: dict[str, Signal] = {}
    for thought in sorted(feedback, key=lambda thought: thought.at):
        given = thumbs if thought.signal in ("up", "down", "withdrawn") else inferred
        given[thought.response] = thought.signal
    said = inferred | {response: signal for response, signal in thumbs.items() if signal != "withdrawn"}
    found = []
    for each in decisions:
        prediction, signal = each.choice.outlook.prediction, said.get(each.response)
        known = (
            each.choice.outlook.source is ValueSource.LEARNT and each.model == model and each.tier == each.choice.tier
        )
        if signal is not None and known and prediction is not None and prediction.probabilities is not None:
            probability = prediction.probabilities[TIERS.index(each.tier)]
            found.append(Opinion(each.tier, probability, each.choice.propensity, signal == "up"))
    return found
