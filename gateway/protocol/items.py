"""One item of an answer as the log keeps it: a message with its text, or a function call with its arguments.

Deltas are not kept as objects: the text is stored once, with the offset at which each delta ends.
"""

from __future__ import annotations

import enum
from array import array
from itertools import chain

from gateway.protocol.stream import ArgumentsDelta, CallBegun, TextDelta, TokenLogprob


class ItemState(enum.Enum):
    """OPEN -> COMPLETED or OPEN -> INCOMPLETE; anything else raises."""

    OPEN = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"


class OutputItem:
    """Append-only until it is closed."""

    def __init__(self, index: int, call: CallBegun | None = None) -> None:
        self.index = index
        """Position among the items of its answer."""
        self.call = call
        """What the item calls; None for a message."""
        self.state = ItemState.OPEN
        self._pieces: list[str] = []
        self._text = ""
        self._ends = array("I")
        """Per delta: characters of text up to its end."""
        self._token_ids = array("I")
        self._token_ends = array("I")
        self._logprobs: list[tuple[TokenLogprob, ...]] = []
        """Per delta; empty unless log-probabilities were asked for."""

    @property
    def deltas(self) -> int:
        """How many there have been."""
        return len(self._ends)

    @property
    def text(self) -> str:
        """The message's text, or the call's arguments, so far."""
        return "".join(self._pieces) if self.state is ItemState.OPEN else self._text

    @property
    def characters(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of all tokens so far; empty unless asked for."""
        return tuple(chain.from_iterable(self._logprobs))

    def append(self, delta: TextDelta | ArgumentsDelta) -> None:
        """Add what the item gained."""
        if self.state is not ItemState.OPEN:
            raise RuntimeError("a delta after its item has ended")
        self._pieces.append(delta.text)
        self._ends.append(self.characters + len(delta.text))
        self._token_ids.extend(delta.token_ids)
        self._token_ends.append(len(self._token_ids))
        logprobs = delta.logprobs if isinstance(delta, TextDelta) else ()
        if logprobs or self._logprobs:
            # Deltas before the first one with log-probabilities (held-back text has none) count as empty.
            self._logprobs.extend(() for _ in range(len(self._ends) - 1 - len(self._logprobs)))
            self._logprobs.append(logprobs)

    def close(self, state: ItemState) -> None:
        """The item has ended."""
        if self.state is not ItemState.OPEN or state is ItemState.OPEN:
            raise RuntimeError(f"item: illegal transition {self.state.value} -> {state.value}")
        self._text = "".join(self._pieces)
        self._pieces = []
        self.state = state

    def merged(self, first: int) -> TextDelta | ArgumentsDelta:
        """One delta for everything from delta number `first` on."""
        start, token_start = (self._ends[first - 1], self._token_ends[first - 1]) if first else (0, 0)
        text = "".join(self._pieces[first:]) if self.state is ItemState.OPEN else self._text[start:]
        tokens = tuple(self._token_ids[token_start:])
        if self.call is not None:
            return ArgumentsDelta(text, tokens)
        return TextDelta(text, tokens, tuple(chain.from_iterable(self._logprobs[first:])))
