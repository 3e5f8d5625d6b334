"""What came of one turn."""

from __future__ import annotations

import enum

import msgspec

from load.plan import PlannedTurn


class TurnEnd(enum.Enum):
    """How a turn ended, as the client saw it."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The client has cancelled it."""
    REFUSED = "refused"
    """The server did not begin it: a status other than 2xx, or an `error` event."""
    FAILED = "failed"
    """The server began it and said that it failed."""
    LOST = "lost"
    """The connection could not be opened, or ended before the answer did."""
    TIMED_OUT = "timed out"
    """The client gave up."""


class MeasuredTurn(msgspec.Struct, frozen=True):
    """One turn that has ended. Times in seconds since the run's beginning; latencies count from the intended start."""

    plan: PlannedTurn
    """Without its prompt."""
    end: TurnEnd
    ended: float
    sent: float | None = None
    """When the request was written; None: no connection was had in time."""
    first: float | None = None
    """When the first text came."""
    last: float | None = None
    """When the last text came."""
    gaps: tuple[float, ...] = ()
    """Seconds between pieces of text that follow each other on one connection."""
    input_tokens: int | None = None
    """As the server counts; None: it has not said."""
    output_tokens: int | None = None
    pieces: int = 0
    """Events with text."""
    characters: int = 0
    digest: str = ""
    """BLAKE2b of the text."""
    error: str | None = None
    """What the server or the connection said that went wrong."""
    fault: str | None = None
    """What is wrong with the text or the events' numbers."""
    resumed: float | None = None
    """Seconds from the cut of the connection to the next text, where the turn was resumed."""
    stopped: float | None = None
    """Seconds from the client's cancelling to the end."""

    @property
    def ended_well(self) -> bool:
        """Whether it ended as planned and its text has no fault."""
        return self.end in (TurnEnd.COMPLETED, TurnEnd.CANCELLED) and self.fault is None

    @property
    def late(self) -> float | None:
        """Seconds by which the request was written after the intended start: waiting for a socket included."""
        return None if self.sent is None else self.sent - self.plan.start

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.plan.start

    @property
    def e2e(self) -> float:
        return self.ended - self.plan.start

    @property
    def tokens(self) -> int:
        """Tokens of the answer; pieces of text where the server does not count."""
        return self.pieces if self.output_tokens is None else self.output_tokens

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first one; None for answers of one token."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)


def differing(turns: list[MeasuredTurn]) -> list[MeasuredTurn]:
    """Return the turns, with a fault in those whose text differs from that of the turn that they repeat."""
    texts = {each.plan.number: each.digest for each in turns if each.end is TurnEnd.COMPLETED}

    def compared(turn: MeasuredTurn) -> MeasuredTurn:
        first = texts.get(turn.plan.repeats) if turn.plan.repeats is not None else None
        if turn.end is not TurnEnd.COMPLETED or turn.fault or first is None or first == turn.digest:
            return turn
        fault = f"the text differs from that of turn {turn.plan.repeats}, which asked the same with the same seed"
        return msgspec.structs.replace(turn, fault=fault)

    return [compared(each) for each in turns]
