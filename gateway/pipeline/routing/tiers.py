"""Chooses the tier of a turn: gathers what `router.tier` decides by, and remembers the outcome.

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
from collections.abc import Collection, Sequence
from functools import lru_cache
from time import monotonic

import msgspec
from msgspec import Struct

from cache.embedding.client import EmbedderClient, EmbedRefused
from gateway.config.settings import Settings
from gateway.engines.pool import Pool
from gateway.pipeline.routing.calibration import calibration, rates
from gateway.pipeline.routing.decisions import DecisionLog, LoggedDecision
from gateway.pipeline.values import Answered, Assessment, Dispatched, Embedding, Prepared
from gateway.protocol.requests import Message
from gateway.turns import Turn
from router import expense, mixture
from router.budget import Budget, charge
from router.canonical import canonical
from router.complexity import Complexity
from router.expense import AnswerLengths, ExpectedCosts, Three
from router.features import Features
from router.route import AUTO, RoutingPolicy
from router.success import Prediction
from router.tier import NEVER, TIERS, Outlook, Terms, TierChoice, ValueSource, at_price, choose, source

MAX_CONVERSATIONS = 50_000
_prices = lru_cache(maxsize=4)(expense.prices)
_SAMPLE = 1800
"""So many requests of the calibration set, or half as many, are used to compute the knob's prices."""


class Used(Struct, frozen=True):
    """The tier and response that answered a conversation, up to one of its messages."""

    tier: str
    response: str
    until: float
    """Monotonic time when this is forgotten."""
    lot: float
    """Lot of the conversation, see `router.mixture`."""
    tokens: int
    """Tokens of prompt and answer, which the tier's prefix cache may hold."""


class TierMemory:
    """One gateway's budgets, lengths of answers, and the tiers that its conversations have used."""

    def __init__(self, decisions: DecisionLog | None = None) -> None:
        self.decisions = decisions
        self.budgets: dict[float, Budget] = {}
        """Every budget that a configuration has had, by its share."""
        self.share: float | None = None
        """Share of the budget in force."""
        self.lengths = AnswerLengths()
        self.asked: OrderedDict[bytes, str] = OrderedDict()
        """Newest response to a conversation's next message, by the digest of the conversation before that message."""
        self._used: OrderedDict[bytes, Used] = OrderedDict()

    def spent(self) -> float:
        """Share of the dearest tier's cost that was spent under the budget in force; NaN if none was."""
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
        self.calibration = calibration(settings)
        self._model = self.calibration.model
        self._rates, self._costs = rates(settings)
        self._mixed = self._prices = mixture.prices(self._costs, NEVER)
        self._expected: ExpectedCosts | None = None
        if self._model is not None:
            self._expected = ExpectedCosts.learnt(self._rates, self._model)
            self._prices = _prices(self._model, self._costs, self._expected, _SAMPLE)
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
            by_complexity=router.by_complexity,
        )

    async def assess(
        self,
        prepared: Prepared,
        seen: Features,
        complexity: Complexity,
        embedding: Embedding | None,
        coming: Collection[str] = (),
    ) -> Assessment:
        """Choose the tier for a request that leaves it open. Asks the embedder where that may help.

        Args:
            embedding: of the newest user message, if it is known.
            coming: tiers that may be chosen although their models are not here yet: another one stands in.
        """
        turn, request = prepared.turn, prepared.turn.request
        if request.model != AUTO or prepared.adapter is not None:
            return Assessment(seen, complexity, None, embedding)
        prediction = self.predict(seen)
        text = _newest(turn)
        if self._model is not None and prediction is not None and prediction.probabilities and text is not None:
            judged = canonical(text)
            vector = embedding if embedding is not None and judged == text else await self._embed(judged)
            if vector is not None:
                prediction = self._model.predict(seen, vector)
            if judged == text:
                embedding = vector
        before = self._memory.used(_conversation(turn, -1)) if self._router.sticky_seconds else None
        self._notice(turn)
        lot = before.lot if before else _lot(turn)
        choice = self.choice(
            self.outlook(seen, complexity, prediction, lot=lot, costs=self._expect(prepared, before)),
            quality=request.quality,
            delays=_delays(_askable(prepared)) if self._router.queue_price else (0.0, 0.0, 0.0),
            offered=tuple(tier for tier in TIERS if tier in coming or tier in {pool.tier for pool in prepared.pools}),
            floor=before.tier if before else None,
        )
        return Assessment(seen, complexity, choice, embedding)

    def predict(self, seen: Features) -> Prediction | None:
        """Predict each tier's success without an embedding."""
        return self._model.predict(seen) if self._model else None

    def expect(
        self, inputs: Sequence[float], *, cached: Three = (0.0, 0.0, 0.0), limit: int | None = None
    ) -> Three | None:
        """Return what a request is expected to cost; None if answers of these models were not measured.

        For the arguments see `ExpectedCosts.of`.
        """
        return self._expected.of(inputs, cached=cached, limit=limit) if self._expected else None

    def outlook(
        self,
        seen: Features,
        complexity: Complexity,
        prediction: Prediction | None,
        *,
        lot: float,
        costs: Three | None,
    ) -> Outlook:
        """Return what is believed of a request.

        Args:
            lot: see `Outlook`.
            costs: that it is expected to have, if that is known.
        """
        router = self._router
        known = source(prediction, seen.characters, by_complexity=router.by_complexity)
        return Outlook(
            source=known,
            complexity=complexity.score,
            prediction=prediction,
            medium_from=router.medium_from,
            large_from=router.large_from,
            lot=lot,
            costs=costs if known is ValueSource.LEARNT else None,
        )

    def choice(
        self,
        outlook: Outlook,
        *,
        quality: int | None = None,
        delays: tuple[float, float, float] = (0.0, 0.0, 0.0),
        offered: tuple[str, ...] = TIERS,
        floor: str | None = None,
        explore: bool = True,
    ) -> TierChoice:
        """Choose a tier, see `router.tier.TierChoice`.

        Args:
            quality: the request's own value of the quality knob.
            explore: whether a tier may be drawn, as configured.
        """
        price = self._alike(self._price(quality), outlook.source)
        terms = Terms(price, self._prices[50], self._costs, self._router.queue_price, self._router.explore)
        draw = random.random() if explore and terms.explore else 1.0
        return choose(outlook, terms, delays=delays, offered=offered, floor=floor, draw=draw)

    def price(self, quality: int) -> float:
        """Return the price of cost at a position of the quality knob, from 0 to 100, for what is learnt."""
        return self._prices[quality]

    def at_quality(self, quality: int, choice: TierChoice) -> str:
        """Return the tier that a position of the knob would have chosen."""
        return at_price(choice, self._alike(self.price(quality), choice.outlook.source))

    def answered(self, answered: Answered) -> None:
        """Account for the tier that answered a request that left it open: budget, memory and log."""
        self._memory.share = self._router.budget
        asked, turn = answered.admitted, answered.admitted.turn
        if answered.cache == "hit" or answered.streamed.error is not None or not isinstance(asked, Dispatched):
            return
        if asked.assessment.choice is None:
            return
        self._charge(answered)
        if self._router.sticky_seconds and (conversation := _conversation(turn, 0)):
            until = monotonic() + self._router.sticky_seconds
            self._memory.follows(_conversation(turn, -1), turn.id)
            lot, tokens = asked.assessment.choice.outlook.lot, answered.streamed.usage.total_tokens
            self._memory.remember(conversation, Used(answered.tier, turn.id, until, lot, tokens))
        if self._router.log_entries and self._memory.decisions is not None:
            logged = _logged(answered, asked.assessment, asked.assessment.choice, self.policy.model)
            self._memory.decisions.add(turn.principal.tenant, logged, keep=self._router.log_entries)

    def _charge(self, answered: Answered) -> None:
        """Account for what an answer cost, and for what the dearest tier's would have cost."""
        tier, usage = TIERS.index(answered.tier), answered.streamed.usage
        if (share := self._router.budget) is not None:
            spent = self._rates[tier].cost(usage.input_tokens, usage.cached_tokens, usage.output_tokens)
            output = usage.output_tokens * self._memory.lengths.ratio(tier)
            dearest = self._rates[-1].cost(usage.input_tokens, usage.cached_tokens, output)
            self._memory.budgets[share] = charge(self._memory.budgets[share], spent, dearest)
        self._memory.lengths = expense.answered(self._memory.lengths, tier, usage.output_tokens)

    def _expect(self, prepared: Prepared, before: Used | None) -> Three | None:
        """Return what a turn is expected to cost. Args: before: how its conversation was answered last."""
        lengths: dict[str, int] = {}
        for pool in _askable(prepared):
            lengths[pool.tier] = max(lengths.get(pool.tier, 0), len(prepared.prompts[pool.name]))
        longest = max(lengths.values(), default=0)
        held = {before.tier: float(before.tokens)} if before else {}
        small, medium, large = (held.get(tier, 0.0) for tier in TIERS)
        inputs = [lengths.get(tier, longest) for tier in TIERS]
        return self.expect(inputs, cached=(small, medium, large), limit=prepared.turn.request.max_output_tokens)

    def _notice(self, turn: Turn) -> None:
        """Record as feedback that this asks an answered question again, in the same words or reworded."""
        if not self._router.sticky_seconds or not self._router.log_entries or self._memory.decisions is None:
            return
        tenant, before = turn.principal.tenant, _conversation(turn, -1)
        if same := self._memory.used(_conversation(turn, 0)):
            self._memory.decisions.think(tenant, same.response, "regenerate")
        elif before is not None and self._memory.used(before) and (other := self._memory.asked.get(before)):
            self._memory.decisions.think(tenant, other, "edit")

    def _alike(self, price: float, known: ValueSource) -> float:
        """Return the price at which requests of this source spend as much as learnt ones do at `price`."""
        return mixture.alike(price, self._prices, self._mixed) if known is ValueSource.MIXTURE else price

    def _price(self, quality: int | None) -> float:
        if quality is not None and self._router.quality_by_request:
            return self.price(quality)
        if self._router.budget is not None:
            return self._memory.budgets[self._router.budget].price
        return self.price(self._router.quality)

    async def _embed(self, text: str) -> Embedding | None:
        client = self._embedder
        if client is None or not client.available or self._model is None:
            return None
        hello = client.hello
        if hello is None or hello.model != self._model.metadata.embedding:
            return None
        try:
            embedded = await client.embed([text], seconds=self._embedder_timeout)
        except EmbedRefused:
            return None
        vector: Embedding = embedded.vectors[0]
        return vector


def _logged(answered: Answered, assessment: Assessment, choice: TierChoice, model: str) -> LoggedDecision:
    usage = answered.streamed.usage
    return LoggedDecision(
        response=answered.admitted.turn.id,
        at=int(time.time() * 1000),
        choice=choice,
        features={name: float(value) for name, value in msgspec.structs.asdict(assessment.seen).items() if value},
        model=model,
        tier=answered.tier,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        outcome=answered.streamed.reason,
    )


def _askable(prepared: Prepared) -> list[Pool]:
    """Return the pools that can be asked what a request asks for."""
    return [pool for pool in prepared.pools if pool.name in prepared.prompts]


def _delays(pools: Sequence[Pool]) -> Three:
    """Return the thousands of tokens that wait at the least busy engine of each tier."""
    waiting: dict[str, float] = {}
    for pool in pools:
        for engine in pool.routable:
            if engine.client.connected:
                waiting[pool.tier] = min(waiting.get(pool.tier, math.inf), engine.load / 1000)
    small, medium, large = (waiting.get(tier, 0.0) for tier in TIERS)
    return small, medium, large


def _newest(turn: Turn) -> str | None:
    """Return the newest user message."""
    if isinstance(turn.request.prompt, str):
        return turn.request.prompt
    said = (message.content for message in reversed(turn.conversation) if message.role == "user")
    return next(said, None)


def _lot(turn: Turn) -> float:
    """Return the lot of a turn that begins a conversation: the same for the same words of the same user."""
    conversation = _conversation(turn, 0)
    return mixture.lot(conversation or _whose(turn).encode() + msgspec.json.encode(turn.request.prompt))


def _whose(turn: Turn) -> str:
    principal = turn.principal
    return f"{principal.tenant}\0{principal.key}\0{principal.user}"


def _conversation(turn: Turn, back: int) -> bytes | None:
    """Return a digest of the conversation up to its newest user message (0), or to the one before it (-1).

    It ends at a user's message: the answer after it may come back changed by its client.
    """
    messages = turn.conversation
    said = [number for number, message in enumerate(messages) if message.role == "user"]
    if len(said) + back <= 0:
        return None
    return _digest(_whose(turn), messages[: said[back - 1] + 1])


def _digest(whose: str, messages: Sequence[Message]) -> bytes:
    digest = hashlib.blake2b(whose.encode(), digest_size=16)
    for message in messages:
        digest.update(f"\0{message.role}\0{len(message.content)}\0".encode())
        digest.update(message.content.encode())
    return digest.digest()
