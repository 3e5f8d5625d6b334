"""The log of tier decisions: a capped stream per tenant in Redis, written once a second beside the turns.

An entry holds what a decision was made from and what came of it, so that it can be made again offline and learnt from:
features (counts and shares), probabilities, prices, the propensity, the model's version. Nothing a client has written.
What Redis does not take is tried again; beyond `MAX_WAITING` entries the oldest are dropped.
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
"""Of a tenant that are kept, about."""
RETENTION = 35 * 24 * 3600
"""Seconds after the last entry."""
MAX_WAITING = 10_000


class LoggedDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision, and who answered in the end."""

    response: str
    """Id of the response."""
    at: int
    """Unix time of its end in ms."""
    choice: TierChoice
    features: dict[str, float]
    """Of `router.features.Features`, those that are not 0."""
    model: str
    """Version of the model of success; empty: it was off."""
    tier: str
    """That answered: another one than was chosen if that was down or too small."""
    input_tokens: int
    output_tokens: int
    outcome: str
    """How the turn ended."""
    escalation: Escalation | None = None
    """Whether a first answer that looked bad was worth another one; `tier` says whether there was one."""
    earlier_input_tokens: int = 0
    """Of a first answer that was given up; not in the figures above."""
    earlier_output_tokens: int = 0

    @property
    def reproducible(self) -> bool:
        """Whether the same is decided again."""
        escalated = self.escalation is None or again_escalated(self.escalation) == self.escalation
        return escalated and again(self.choice) == self.choice


Signal = Literal["up", "down", "regenerate", "edit"]
"""A thumb; or the client had the same asked again, or the question put otherwise at the same place."""


class Feedback(Struct, frozen=True, kw_only=True):
    """What somebody thought of a response, or showed by what they did next."""

    response: str
    at: int
    """Unix time in ms."""
    signal: Signal


class DecisionLog:
    """Collects entries and writes them."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._waiting: deque[tuple[str, int, str, bytes]] = deque(maxlen=MAX_WAITING)

    def add(self, tenant: str, entry: LoggedDecision, *, keep: int) -> None:
        """Write it with the next flush. Args: keep: entries of the tenant that are kept (about)."""
        self._waiting.append((KEY.format(tenant=tenant), keep, "decision", msgspec.json.encode(entry)))

    def think(self, tenant: str, response: str, signal: Signal) -> None:
        """Write what was thought of a response with the next flush."""
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
    """The newest entries of a tenant, newest first.

    Raises:
        RedisError: Redis does not answer.
        ValueError: somebody has written something else there.
    """
    found = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]", await redis.xrevrange(KEY.format(tenant=tenant), count=count)
    )
    return [msgspec.json.decode(fields[b"decision"], type=LoggedDecision) for _, fields in found]


async def read_feedback(redis: Redis, tenant: str, count: int) -> list[Feedback]:
    """The same of feedback."""
    entries = await redis.xrevrange(FEEDBACK_KEY.format(tenant=tenant), count=count)
    found = cast("list[tuple[bytes, dict[bytes, bytes]]]", entries)
    return [msgspec.json.decode(fields[b"feedback"], type=Feedback) for _, fields in found]


def opinions(decisions: Sequence[LoggedDecision], feedback: Sequence[Feedback], model: str) -> list[Opinion]:
    """What feedback says of the probabilities of one version of the model; of a response the newest thumb counts, and
    without one what was done next.
    """
    said: dict[str, Signal] = {}
    for thought in sorted(feedback, key=lambda thought: (thought.signal in ("up", "down"), thought.at)):
        said[thought.response] = thought.signal
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
