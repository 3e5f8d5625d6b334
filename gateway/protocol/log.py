"""The record of one turn: everything a viewer may be shown, numbered, in a size bounded by the answer's length.

Every entry has the sequence number of the Responses event it stands for, counted without gaps. Deltas are not kept as
objects: the text is stored once, with the offset at which each delta ends. That makes three things cheap at the same
time: resuming after any number, merging what a slow viewer has missed into one delta (which then carries the number
of the last one it covers), and keeping ten thousand finished turns in memory.
"""

from __future__ import annotations

import enum
from array import array
from itertools import chain
from typing import NamedTuple

from gateway.protocol.stream import (
    Finished,
    LimitState,
    PromptScored,
    Routed,
    TextDelta,
    TokenLogprob,
    TurnEvent,
)


class Kind(enum.Enum):
    """What an entry stands for. The structural ones exist for Responses clients and carry no neutral event."""

    CREATED = enum.auto()
    IN_PROGRESS = enum.auto()
    ITEM_ADDED = enum.auto()
    PART_ADDED = enum.auto()
    EVENT = enum.auto()
    """`Routed`, `PromptScored` or `LimitState`."""
    DELTA = enum.auto()
    TEXT_DONE = enum.auto()
    PART_DONE = enum.auto()
    ITEM_DONE = enum.auto()
    FINISHED = enum.auto()


class Entry(NamedTuple):
    """One numbered entry. A merged delta carries the number of the last delta it covers."""

    sequence: int
    kind: Kind
    event: TurnEvent | None = None


class TurnLog:
    """Append-only: what comes before the first delta (`_head`), the deltas, what comes after them (`_tail`)."""

    def __init__(self, *, with_item: bool = True) -> None:
        """Args: with_item: whether the turn has an output message at all; a warm-up has none."""
        self._with_item = with_item
        self._item_open = False
        self._text_ended = False
        self._head = [Entry(0, Kind.CREATED), Entry(1, Kind.IN_PROGRESS)]
        self._tail: list[Entry] = []
        self._pieces: list[str] = []
        self._text = ""
        self._ends = array("I")
        """Per delta: characters of text up to its end."""
        self._token_ids = array("I")
        self._token_ends = array("I")
        self._logprobs: list[tuple[TokenLogprob, ...]] = []
        """Per delta; empty unless log-probabilities were asked for."""
        self.routed: Routed | None = None
        """The last route taken."""
        self.finished: Finished | None = None

    @property
    def last(self) -> int:
        """Sequence number of the newest entry."""
        return len(self._head) + len(self._ends) + len(self._tail) - 1

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._text if self.finished else "".join(self._pieces)

    @property
    def has_item(self) -> bool:
        """Whether the output message has been opened."""
        return self._item_open

    @property
    def characters(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of all tokens so far; empty unless asked for."""
        return tuple(chain.from_iterable(self._logprobs))

    def append(self, event: TurnEvent) -> None:
        """Record one event.

        Raises:
            RuntimeError: the order of `gateway.protocol.stream` is broken, for example by a delta after the end.
        """
        if self.finished:
            raise RuntimeError(f"{type(event).__name__} after the turn has finished")
        match event:
            case TextDelta():
                if self._text_ended:
                    raise RuntimeError("a delta after the text has ended")
                self._open_item()
                self._append_delta(event)
            case Routed() | PromptScored():
                if self._item_open:
                    raise RuntimeError(f"{type(event).__name__} after the first token")
                self._push(Kind.EVENT, event)
                if isinstance(event, Routed):
                    self.routed = event
            case LimitState():
                self._text_ended = True
                self._push(Kind.EVENT, event)
            case Finished():
                self._finish(event)

    def read(self, after: int) -> list[Entry]:
        """All entries with a number above `after`, consecutive deltas merged into one."""
        start = after + 1
        entries = self._head[start:]
        first = max(start - len(self._head), 0)
        if first < len(self._ends):
            entries.append(Entry(len(self._head) + len(self._ends) - 1, Kind.DELTA, self._merged(first)))
        entries += self._tail[max(first - len(self._ends), 0) :]
        return entries

    def waiting(self, after: int) -> int:
        """How many entries a reader at `after` has not read."""
        return max(self.last - after, 0)

    def _open_item(self) -> None:
        if self._with_item and not self._item_open:
            self._item_open = True
            self._push(Kind.ITEM_ADDED)
            self._push(Kind.PART_ADDED)

    def _append_delta(self, delta: TextDelta) -> None:
        self._pieces.append(delta.text)
        self._ends.append(self.characters + len(delta.text))
        self._token_ids.extend(delta.token_ids)
        self._token_ends.append(len(self._token_ids))
        if delta.logprobs or self._logprobs:
            # Deltas before the first one with log-probabilities (held-back text has none) count as empty.
            self._logprobs.extend(() for _ in range(len(self._ends) - 1 - len(self._logprobs)))
            self._logprobs.append(delta.logprobs)

    def _finish(self, event: Finished) -> None:
        if event.reason in ("stop", "length"):
            # An empty answer is a message with empty text, not a missing message.
            self._open_item()
        if self._item_open:
            for kind in (Kind.TEXT_DONE, Kind.PART_DONE, Kind.ITEM_DONE):
                self._push(kind)
        self._push(Kind.FINISHED, event)
        self._text = "".join(self._pieces)
        self._pieces = []
        self.finished = event

    def _push(self, kind: Kind, event: TurnEvent | None = None) -> None:
        part = self._tail if self._ends else self._head
        part.append(Entry(self.last + 1, kind, event))

    def _merged(self, first: int) -> TextDelta:
        """One delta for everything from delta number `first` on."""
        start, token_start = (self._ends[first - 1], self._token_ends[first - 1]) if first else (0, 0)
        text = self._text[start:] if self.finished else "".join(self._pieces[first:])
        return TextDelta(
            text=text,
            token_ids=tuple(self._token_ids[token_start:]),
            logprobs=tuple(chain.from_iterable(self._logprobs[first:])),
        )
