"""Holds a first answer back until it is found good enough, or until its reader has waited long enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic

from engine.wire import TokenIdLogprob
from gateway.pipeline.sink import TurnSink
from gateway.protocol.output_format import OutputFormat
from gateway.protocol.stream import CallBegun, CallEnded, EndReason, TextDelta, TurnEvent
from gateway.turns import Turn
from router.cascade import AnswerEvidence


class HeldAnswer(TurnSink):
    """Keeps an answer's events until they are released to its turn."""

    def __init__(self, turn: Turn, *, tokens: int, seconds: float) -> None:
        """
        Args:
            tokens: how many of them a streaming client waits for.
            seconds: how long after the first token turns wait that follow this one by single flight.
        """
        super().__init__(turn)
        self._limit = tokens
        self._seconds = seconds
        self._until: float | None = None
        self._events: list[TurnEvent] = []
        self._tokens = 0
        self._scored = 0
        self._logprobs = 0.0
        self.released = False
        """Whether the answer was shown, after which it cannot be discarded."""

    @property
    def text(self) -> str:
        return super().text + self.held

    @property
    def held(self) -> str:
        """The text that is held back."""
        return "".join(event.text for event in self._events if isinstance(event, TextDelta))

    def take(self, events: Iterable[TurnEvent]) -> None:
        if self.released:
            super().take(events)
        else:
            self._events.extend(events)

    def computed(self, tokens: int, logprobs: Sequence[TokenIdLogprob] | None) -> None:
        if self.released:
            return
        self._tokens += tokens
        self._scored += len(logprobs or ())
        self._logprobs += sum(entry.logprob for entry in logprobs or ())
        now = monotonic()
        if self._until is None:
            self._until = now + self._seconds
        followed = self._turn.viewers > 1 and now >= self._until
        if followed or (self._tokens > self._limit and self._turn.live and self._visible):
            self.release()

    def release(self) -> None:
        """Show the answer, and whatever follows."""
        self.released = True
        super().take(self._events)
        self._events.clear()

    def seen(self, reason: EndReason, stop: str | None, format: OutputFormat | None, refuses: bool) -> AnswerEvidence:
        """Return the evidence by which the ended answer is judged.

        Args:
            stop: the client's stop string that has ended it, if one did: wherever it stands is right then.
            refuses: its text begins as refusals do.
        """
        calls = any(isinstance(event, CallBegun) for event in self._events)
        whole = all(event.complete for event in self._events if isinstance(event, CallEnded))
        asked = format is None or calls or stop is not None or format.holds(self.held)
        return AnswerEvidence(
            empty=reason == "stop" and stop is None and not calls and not self.held.strip(),
            valid=asked and whole,
            refusal=refuses and format is None and not calls,
            logprob=self._logprobs / self._scored if self._scored else None,
        )

    @property
    def _visible(self) -> bool:
        return any(not isinstance(event, TextDelta) or event.text for event in self._events)
