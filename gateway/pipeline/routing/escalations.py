"""Escalation: a second answer from the next tier where the first one looks bad. `router.cascade` decides, this acts.

Nobody sees the first answer before that is decided. A client that asked for the whole answer waits for both; one that
streams waits for `router.escalate_hold` tokens at most, and what was shown stays. If limits or engines have no room for
a second answer, or give none, the first one is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from cache.wording import refuses
from gateway.access.directory.view import View
from gateway.billing.cost import most
from gateway.config.settings import Settings
from gateway.engines.pools import Engines
from gateway.errors import ApiError
from gateway.limits.limiter import Limiter, Reservation
from gateway.limits.subjects import subjects_of
from gateway.pipeline.metering import Metering
from gateway.pipeline.routing.held import HeldAnswer
from gateway.pipeline.sink import TurnSink
from gateway.pipeline.values import Answered, Dispatched, Progress
from gateway.protocol.stream import Earlier, TurnEvent
from gateway.records.quota import Amounts
from gateway.telemetry.metrics.process import Metrics
from router.cascade import CascadeSignal, Escalation, escalate, next_tier, sentence, signal
from router.route import RouteReason
from router.tier import TierChoice


class FirstAttempt(Struct, frozen=True):
    """A first answer that may be discarded, and the engine of the next tier."""

    held: HeldAnswer
    choice: TierChoice
    following: Dispatched
    """The turn with an engine of the next tier chosen for it."""


class Takeover(TurnSink):
    """Replaces the first answer at the second one's first token, so that a tier that gives none has changed nothing."""

    def __init__(self, first: Answered, signal: str, reservation: Reservation, metering: Metering) -> None:
        """Args: signal: what looked bad about the first answer."""
        super().__init__(first.admitted.turn)
        self.first = first
        self.earlier = Earlier(first.tier, first.model, signal, first.streamed.usage)
        """The first answer as clients are told of it."""
        self.reservation = reservation
        """The most that the second answer may use."""
        self.done = False
        """Whether the first answer is discarded."""
        self._metering = metering
        self._undone = False

    @property
    def waiting(self) -> bool:
        """Whether the next tier has neither begun to answer nor failed."""
        return not (self.done or self._undone)

    @property
    def replaced(self) -> Answered | None:
        """The first answer, once it is discarded."""
        return self.first if self.done else None

    def begin(self) -> None:
        """Do nothing: the turn is told where it runs once the next tier has given something."""

    def take(self, events: Iterable[TurnEvent]) -> None:
        for event in events:
            self.complete()
            self._append(event)

    def complete(self) -> None:
        """Discard the first answer, and charge it."""
        if not self.done:
            self.done = True
            self._metering.escalated(self.first)
            self.announce()

    def undo(self) -> None:
        """Return to the first answer, as the next tier gave none."""
        self._undone = True
        usage = self.first.streamed.usage
        self._turn.delivered = lambda: usage


class Escalations:
    """Decides on second answers, and reserves and records them, under one configuration."""

    def __init__(
        self,
        settings: Settings,
        engines: Engines,
        limiter: Limiter,
        view: View,
        metering: Metering,
        metrics: Metrics,
        typical: tuple[float, float, float],
    ) -> None:
        """Args: typical: each tier's share of good answers, averaged over all questions."""
        self._settings = settings
        self._engines = engines
        self._limiter = limiter
        self._view = view
        self._metering = metering
        self._metrics = metrics.escalations
        self._typical = typical

    @property
    def scores(self) -> bool:
        """Whether the log-probabilities of first answers are wanted."""
        return self._settings.router.escalate_logprob is not None

    def begin(self, dispatched: Dispatched) -> FirstAttempt | None:
        """Return the turn's first attempt; None if there may be no second one."""
        router, turn, decision = self._settings.router, dispatched.turn, dispatched.decision
        request, choice = turn.request, dispatched.assessment.choice
        if not router.escalate or choice is None or dispatched.trial or turn.log.items:
            return None
        if not request.generate or request.sampling.prompt_logprobs is not None or decision.tier != choice.tier:
            return None
        tier = next_tier(choice)
        if tier is None or not escalate(choice, tier, CascadeSignal.EMPTY, self._typical).pays:
            return None  # not even if it were of no use at all
        names = [name for name in decision.fallbacks if self._engines[name].pool.tier == tier]
        if not names:
            return None
        following = msgspec.structs.replace(
            decision,
            tier=tier,
            model=self._engines[names[0]].pool.name,
            replica=names[0],
            fallbacks=tuple(names[1:]),
            why=RouteReason.ESCALATED,
            scores={},
            scores_left_out=0,
        )
        # Turns that follow this one for its answer must not take it for one that stands still.
        seconds = self._settings.cache.follow_seconds / 2
        held = HeldAnswer(turn, tokens=router.escalate_hold, seconds=seconds)
        return FirstAttempt(held, choice, msgspec.structs.replace(dispatched, decision=following))

    def judge(self, progress: Progress, first: FirstAttempt, answered: Answered) -> Dispatched | None:
        """Return the turn with the engine for a second answer; None if the first one will do."""
        streamed, held, turn = answered.streamed, first.held, answered.admitted.turn
        if held.released or streamed.error is not None or streamed.reason not in ("stop", "length"):
            return None
        if answered.tier != first.choice.tier or turn.cancelled:
            return None
        seen = held.seen(streamed.reason, streamed.stop, turn.request.format, refuses(held.held))
        found = signal(seen, self._settings.router.escalate_logprob)
        if found is None:
            return None
        following = first.following.decision
        made = progress.escalation = escalate(first.choice, following.tier, found, self._typical)
        if not made.pays:
            self._metrics.looked(made, "not_worth_it")
            return None
        following = msgspec.structs.replace(following, reasons=(*following.reasons, sentence(made)))
        return msgspec.structs.replace(first.following, decision=following)

    async def take_over(
        self, progress: Progress, answered: Answered, following: Dispatched, output: int
    ) -> Takeover | None:
        """Reserve the most that the second answer may use; None if the limits have no room for it.

        Args:
            output: tokens that it may have.
        """
        made, turn = _made(progress), following.turn
        pool = self._engines[following.decision.replica].pool
        prompt = len(following.prompts[pool.name])
        price = following.prices[pool.name]
        spend = most(price, prompt, output) if price is not None else 0
        wanted = Amounts(input_tokens=prompt, output_tokens=output, spend=spend)
        principal = turn.principal
        subjects = subjects_of(self._settings.limits, self._view.tenant(principal.tenant), principal, pool.name, None)
        try:
            more = await self._limiter.reserve(principal.tenant, f"{turn.id}:more", wanted, subjects)
        except ApiError:
            self._metrics.looked(made, "limited")
            return None
        takeover = progress.takeover = Takeover(answered, made.signal, more, self._metering)
        return takeover

    def ended(self, progress: Progress, takeover: Takeover) -> None:
        """Record whether the next tier has answered or failed."""
        self._metrics.looked(_made(progress), "escalated" if takeover.done else "unavailable")


def _made(progress: Progress) -> Escalation:
    assert progress.escalation is not None
    return progress.escalation
