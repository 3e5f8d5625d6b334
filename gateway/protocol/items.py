"""One item of an answer as the log keeps it: a message with its text, or a function call with its arguments.

Deltas are not kept as objects: the text is stored once, with the offset at which each delta ends.
"""

from __future__ import annotations

import enum
from array import array
from itertools import accumulate, chain, pairwise

from gateway.protocol.slices import Deltas
from gateway.protocol.stream import ArgumentsDelta, CallBegun, TextDelta, TokenLogprob


class ItemState(enum.Enum):
    """States of an item: OPEN -> COMPLETED or OPEN -> INCOMPLETE; any other transition raises."""

    OPEN = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"


class OutputItem:
    """One item of an answer. Append-only until it is closed."""

    def __init__(self, index: int, call: CallBegun | None = None) -> None:
        self.index = index
        """Position among the items of its answer."""
        self.call = call
        """The called function; None for a message."""
        self.state = ItemState.OPEN
        self.merge = True
        """Whether deltas that wait for a reader are merged into one; not for a replay, whose deltas all wait at
        once."""
        self._pieces: list[str] = []
        self._text = ""
        self._ends = array("I")
        """Offset in the text at which each delta ends."""
        self._token_ids = array("I")
        self._token_ends = array("I")
        self._logprobs: list[tuple[TokenLogprob, ...]] = []
        """Log-probabilities of each delta; empty unless they were asked for."""

    @property
    def deltas(self) -> int:
        """Number of deltas so far."""
        return len(self._ends)

    @property
    def text(self) -> str:
        """The message's text, or the call's arguments, so far."""
        return "".join(self._pieces) if self.state is ItemState.OPEN else self._text

    @property
    def characters(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def tokens(self) -> int:
        """Token ids behind the deltas so far."""
        return len(self._token_ids)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of all tokens so far; empty unless asked for."""
        return tuple(chain.from_iterable(self._logprobs))

    def append(self, delta: TextDelta | ArgumentsDelta) -> None:
        """Append a delta."""
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
        """Close the item."""
        if self.state is not ItemState.OPEN or state is ItemState.OPEN:
            raise RuntimeError(f"item: illegal transition {self.state.value} -> {state.value}")
        self._text = "".join(self._pieces)
        self._pieces = []
        self.state = state

    def merged(self, first: int, end: int | None = None) -> TextDelta | ArgumentsDelta:
        """Return one delta for everything from delta number `first` on, and before number `end`."""
        end = self.deltas if end is None else end
        start, token_start = (self._ends[first - 1], self._token_ends[first - 1]) if first else (0, 0)
        stop, token_stop = (self._ends[end - 1], self._token_ends[end - 1]) if end else (0, 0)
        text = "".join(self._pieces[first:end]) if self.state is ItemState.OPEN else self._text[start:stop]
        tokens = tuple(self._token_ids[token_start:token_stop])
        if self.call is not None:
            return ArgumentsDelta(text, tokens)
        return TextDelta(text, tokens, tuple(chain.from_iterable(self._logprobs[first:end])))

    def since(self, first: int) -> Deltas:
        """Return the deltas from number `first` on, with their borders."""
        whole = self.merged(first)
        start, token_start = (self._ends[first - 1], self._token_ends[first - 1]) if first else (0, 0)
        return Deltas(
            self.index,
            whole.text,
            _lengths(start, self._ends[first:]),
            whole.token_ids,
            _lengths(token_start, self._token_ends[first:]) if whole.token_ids else (),
            tuple(self._logprobs[first:]),
        )

    def extend(self, gained: Deltas) -> None:
        """Append deltas that `since` gave of a copy of this item.

        Raises:
            ValueError: they contradict themselves.
        """
        if self.state is not ItemState.OPEN:
            raise ValueError("deltas after their item has ended")
        counts = gained.token_counts or (0,) * gained.entries
        if sum(gained.lengths) != len(gained.text) or sum(counts) != len(gained.token_ids):
            raise ValueError("the deltas do not add up to their text or tokens")
        if len(counts) != gained.entries or len(gained.logprobs) not in (0, gained.entries):
            raise ValueError("the deltas are of different number")
        borders = list(accumulate(gained.lengths, initial=0))
        self._logprobs.extend(() for _ in range(self.deltas - len(self._logprobs) if gained.logprobs else 0))
        self._pieces.extend(gained.text[start:end] for start, end in pairwise(borders))
        before, tokens_before = self.characters, len(self._token_ids)
        self._ends.extend(before + end for end in borders[1:])
        self._token_ids.extend(gained.token_ids)
        self._token_ends.extend(tokens_before + end for end in accumulate(counts))
        self._logprobs.extend(gained.logprobs)


def _lengths(start: int, ends: array[int]) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in pairwise((start, *ends)))
