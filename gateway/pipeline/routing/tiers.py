"""The choice of a tier on a turn's road: gathers what `router.tier` decides by, and remembers what follows from it.

`Tiers` has the settings of one configuration. `TierMemory` outlives them: the budget's price, and which tier each
conversation has used. Both memories are this gateway's own. Budgets need no more (`router.budget`); a conversation that
goes on at another gateway is judged anew there.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from time import monotonic

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.embedding.client import EmbedderClient, EmbedRefused
from gateway.config.settings import Settings, SettingsError
from gateway.engines.pools import Pool
from gateway.pipeline.job import End, Job
from gateway.pipeline.routing.decisions import DecisionLog, LoggedDecision
from gateway.protocol.requests import Message
from router.budget import Budget, charge
from router.complexity import Complexity
from router.features import HEAD, TAIL, Features
from router.route import AUTO, RoutingPolicy
from router.success import Prediction, SuccessModel, shipped
from router.tier import TIERS, Outlook, Terms, TierChoice, ValueSource, choose, price_table, relative

MAX_CONVERSATIONS = 50_000
_SAMPLE = 4
"""Of so many requests of the calibration set one is looked at for the knob's table."""


class Used(Struct, frozen=True):
    """What a conversation was answered by, up to one of its messages."""

    tier: str
    response: str
    until: float
    """Monotonic time when it is forgotten."""


class TierMemory:
    """What one gateway remembers of its choices."""

    def __init__(self, decisions: DecisionLog | None = None) -> None:
        self.decisions = decisions
        self.budgets: dict[float, Budget] = {}
        """By share: of every one that a configuration has had."""
        self.share: float | None = None
        """That of the budget in force."""
        self.asked: OrderedDict[bytes, str] = OrderedDict()
        """By what was said before it: the response to the last message that followed."""
        self._used: OrderedDict[bytes, Used] = OrderedDict()

    def spent(self) -> float:
        """Share of the dearest tier's cost that was spent under the budget in force; not a number if none was."""
        budget = self.budgets.get(self.share) if self.share is not None else None
        return math.nan if budget is None or budget.realised is None else budget.realised

    def used(self, conversation: bytes | None) -> Used | None:
        found = self._used.get(conversation) if conversation else None
        return found if found and found.until > monotonic() else None

    def remember(self, conversation: bytes, used: Used) -> None:
        self._used[conversation] = used
        self._used.move_to_end(conversation)
        while len(self._used) > MAX_CONVERSATIONS:
            self._used.popitem(last=False)

    def follows(self, conversation: bytes | None, response: str) -> None:
        if conversation is not None:
            self.asked[conversation] = response
            self.asked.move_to_end(conversation)
            while len(self.asked) > MAX_CONVERSATIONS:
                self.asked.popitem(last=False)


class Tiers:
    """Chooses tiers for requests that name none."""

    def __init__(self, settings: Settings, memory: TierMemory, embedder: EmbedderClient | None) -> None:
        router = settings.router
        self._router, self._memory, self._embedder = router, memory, embedder
        self._embedder_timeout = settings.embedder.timeout
        self._model = read_model(router.model) if router.learnt else None
        priced = {pool.tier: pool.cost for pool in settings.pools}
        self._costs = relative([priced[tier] for tier in TIERS if tier in priced])
        # Also where no model is asked, prices and averages are those of one.
        known = self._model or shipped()
        self._prices = _table(known, self._costs)
        small, medium, large = known.calibration.mean(axis=0).tolist()
        self.typical: tuple[float, float, float] = (small, medium, large)
        """Each tier's share of good answers to questions at large."""
        share, cheapest = router.budget, self._costs[0]
        if share is not None and share not in memory.budgets:
            knob = round(100 * max(0.0, share - cheapest) / (1 - cheapest))
            memory.budgets[share] = Budget(share, self._prices[max(1, knob)])
        self.policy = RoutingPolicy(
            medium_from=router.medium_from,
            large_from=router.large_from,
            quality=router.quality,
            budget=share,
            costs=self._costs,
            delay_price=router.queue_price,
            model=self._model.version if self._model else "",
            escalate=router.escalate,
            escalate_hold=router.escalate_hold,
            escalate_logprob=router.escalate_logprob,
        )

    async def choose(self, job: Job, complexity: Complexity) -> TierChoice | None:
        """The tier for a request that leaves it open, None for any other. Asks the embedder where that may help."""
        request = job.turn.request
        if request.model != AUTO or job.adapter is not None:
            return None
        prediction = self.predict(job.seen)
        if prediction is not None and prediction.probabilities is not None:
            prediction = await self._predict_with_embedding(job) or prediction
        before = self._memory.used(_conversation(job, -1)) if self._router.sticky_seconds else None
        self._notice(job)
        return self.choice(
            job.seen,
            complexity,
            prediction,
            quality=request.quality,
            delays=_delays(job.pools) if self._router.queue_price else (0.0, 0.0, 0.0),
            offered=tuple(pool.tier for pool in job.pools),
            floor=before.tier if before else None,
        )

    def predict(self, seen: Features) -> Prediction | None:
        """What is expected without an embedding."""
        return self._model.predict(seen) if self._model else None

    def choice(
        self,
        seen: Features,
        complexity: Complexity,
        prediction: Prediction | None,
        *,
        quality: int | None = None,
        delays: tuple[float, float, float] = (0.0, 0.0, 0.0),
        offered: tuple[str, ...] = TIERS,
        floor: str | None = None,
    ) -> TierChoice:
        """See `router.tier.TierChoice`. Args: quality: where the knob is for this request."""
        router = self._router
        outlook = Outlook(
            _source(prediction, seen), complexity.score, prediction, router.medium_from, router.large_from
        )
        terms = Terms(self._price(quality), self._prices[50], self._costs, router.queue_price, router.explore)
        draw = random.random() if router.explore else 1.0
        return choose(outlook, terms, delays=delays, offered=offered, floor=floor, draw=draw)

    def answered(self, job: Job, end: End) -> None:
        """Take account of who answered a request that left it open."""
        self._memory.share = self._router.budget
        if job.choice is None or end.cache == "hit" or end.streamed.error is not None:
            return
        if (share := self._router.budget) is not None:
            tokens = end.streamed.usage.total_tokens
            cost = self._costs[TIERS.index(end.tier)]
            if end.earlier is not None and tokens:
                # The dearest tier would have answered once.
                first = end.earlier.answer
                cost += self._costs[TIERS.index(first.tier)] * first.usage.total_tokens / tokens
            self._memory.budgets[share] = charge(self._memory.budgets[share], cost, tokens)
        if self._router.sticky_seconds and (conversation := _conversation(job, 0)):
            until = monotonic() + self._router.sticky_seconds
            self._memory.follows(_conversation(job, -1), job.turn.id)
            self._memory.remember(conversation, Used(end.tier, job.turn.id, until))
        if self._router.log_entries and self._memory.decisions is not None:
            logged = _logged(job, job.choice, end, self.policy.model)
            self._memory.decisions.add(job.turn.principal.tenant, logged, keep=self._router.log_entries)

    def _notice(self, job: Job) -> None:
        """Whether this asks again what was answered before: as it was, or in other words at the same place."""
        if not self._router.sticky_seconds or not self._router.log_entries or self._memory.decisions is None:
            return
        tenant, before = job.turn.principal.tenant, _conversation(job, -1)
        if same := self._memory.used(_conversation(job, 0)):
            self._memory.decisions.think(tenant, same.response, "regenerate")
        elif before is not None and self._memory.used(before) and (other := self._memory.asked.get(before)):
            self._memory.decisions.think(tenant, other, "edit")

    def _price(self, quality: int | None) -> float:
        if quality is not None and self._router.quality_by_request:
            return self._prices[quality]
        if self._router.budget is not None:
            return self._memory.budgets[self._router.budget].price
        return self._prices[self._router.quality]

    async def _predict_with_embedding(self, job: Job) -> Prediction | None:
        if job.embedding is None:
            job.embedding = await self._embed(job)
        return None if job.embedding is None or self._model is None else self._model.predict(job.seen, job.embedding)

    async def _embed(self, job: Job) -> NDArray[np.float32] | None:
        client, text = self._embedder, _newest(job)
        if client is None or not client.available or text is None or self._model is None:
            return None
        hello = client.hello
        if hello is None or hello.model != self._model.metadata.embedding:
            return None
        try:
            embedded = await client.embed([text], seconds=self._embedder_timeout)
        except EmbedRefused:
            return None
        vector: NDArray[np.float32] = embedded.vectors[0]
        return vector


def read_model(path: str | None) -> SuccessModel:
    """The model of success in a file, or that of this release.

    Raises:
        SettingsError: there is none in the file.
    """
    if path is None:
        return shipped()
    try:
        return SuccessModel.read(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"router.model: {path}: {error}") from error


def _source(prediction: Prediction | None, seen: Features) -> ValueSource:
    if prediction is not None and prediction.probabilities is not None:
        return ValueSource.LEARNT
    # The complexity score was made for messages as people write them in a chat, and read as a whole.
    return ValueSource.COMPLEXITY if seen.characters <= HEAD + TAIL else ValueSource.UNCERTAIN


def _logged(job: Job, choice: TierChoice, end: End, model: str) -> LoggedDecision:
    usage = end.streamed.usage
    return LoggedDecision(
        response=job.turn.id,
        at=int(time.time() * 1000),
        choice=choice,
        features={name: float(value) for name, value in msgspec.structs.asdict(job.seen).items() if value},
        model=model,
        tier=end.tier,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        outcome=end.streamed.reason,
        escalation=job.escalation,
        earlier_input_tokens=job.earlier.usage.input_tokens if job.earlier else 0,
        earlier_output_tokens=job.earlier.usage.output_tokens if job.earlier else 0,
    )


@lru_cache(maxsize=4)
def _table(model: SuccessModel, costs: tuple[float, float, float]) -> tuple[float, ...]:
    """The quality knob's prices."""
    return price_table(model.calibration[::_SAMPLE], costs)


def _delays(pools: Sequence[Pool]) -> tuple[float, float, float]:
    """Thousands of tokens that wait at the least busy engine of each tier."""
    waiting: dict[str, float] = {
        pool.tier: min((engine.load for engine in pool.routable if engine.client.connected), default=0) / 1000
        for pool in pools
    }
    small, medium, large = (waiting.get(tier, 0.0) for tier in TIERS)
    return small, medium, large


def _newest(job: Job) -> str | None:
    """The newest user message."""
    if isinstance(job.turn.request.prompt, str):
        return job.turn.request.prompt
    said = (message.content for message in reversed(job.turn.conversation) if message.role == "user")
    return next(said, None)


def _conversation(job: Job, back: int) -> bytes | None:
    """A digest of the conversation up to its newest user message (0), or to the one before it (-1).

    Of what follows an earlier message only the user's own words are certain: answers are what clients make of them.
    """
    messages = job.turn.conversation
    said = [number for number, message in enumerate(messages) if message.role == "user"]
    if len(said) + back <= 0:
        return None
    principal = job.turn.principal
    whose = f"{principal.tenant}\0{principal.key}\0{principal.user}"
    return _digest(whose, messages[: said[back - 1] + 1])


def _digest(whose: str, messages: Sequence[Message]) -> bytes:
    digest = hashlib.blake2b(whose.encode(), digest_size=16)
    for message in messages:
        digest.update(f"\0{message.role}\0{len(message.content)}\0".encode())
        digest.update(message.content.encode())
    return digest.digest()
