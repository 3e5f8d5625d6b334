"""The log of one turn: everything a viewer may be shown, numbered, in a size bounded by the answer's length.

Every entry has the sequence number of the Responses event it stands for, counted without gaps; a client that does not
take our own events is told numbers that leave them out. The deltas of an item are a run of numbers that the item
answers for itself: the text is stored once, with the offset at which each delta ends. That makes three things cheap at
the same time: resuming after any number, merging what a slow viewer has missed of an item into one delta (which then
carries the number of the last one it covers), and keeping ten thousand finished turns in memory.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from gateway.protocol.items import ItemState, OutputItem
from gateway.protocol.slices import Deltas, LogSlice, Structural
from gateway.protocol.stream import (
    ArgumentsDelta,
    CallBegun,
    CallEnded,
    Finished,
    LimitState,
    PromptScored,
    Replayed,
    Routed,
    TextDelta,
    TokenLogprob,
    TurnEvent,
)


class LogEntryKind(enum.Enum):
    """Kinds of entries. The structural ones exist for Responses clients and carry no neutral event.

    Stored responses hold these numbers: new kinds come last.
    """

    CREATED = enum.auto()
    IN_PROGRESS = enum.auto()
    ITEM_ADDED = enum.auto()
    PART_ADDED = enum.auto()
    EVENT = enum.auto()
    """A `Routed`, `PromptScored` or `LimitState`."""
    DELTA = enum.auto()
    """A delta of a message's text, or of a call's arguments."""
    TEXT_DONE = enum.auto()
    PART_DONE = enum.auto()
    ARGUMENTS_DONE = enum.auto()
    ITEM_DONE = enum.auto()
    FINISHED = enum.auto()
    QUEUED = enum.auto()


class LogEntry(NamedTuple):
    """One numbered entry. A merged delta carries the number of the last delta it covers."""

    sequence: int
    kind: LogEntryKind
    event: TurnEvent | None = None
    item: OutputItem | None = None
    """The item of the entry, from ITEM_ADDED to ITEM_DONE."""


class TurnLog:
    """Append-only: a sequence of parts, each of which is a list of entries or an item that stands for its deltas."""

    def __init__(self, *, with_item: bool = True, queued: bool = False) -> None:
        """
        Args:
            with_item: whether the turn has any output at all; a warm-up has none.
            queued: whether it is in progress only once it is routed.
        """
        self._with_item = with_item
        self._queued = queued
        self._text_ended = False
        self._items: list[OutputItem] = []
        self._parts: list[list[LogEntry] | OutputItem] = []
        self._starts: list[int] = []
        """Number of the first entry of each part."""
        self._extensions: list[int] = []
        """Numbers of the entries for events of ours."""
        self.last = -1
        """Sequence number of the newest entry."""
        self.routed: Routed | None = None
        """The latest `Routed`."""
        self.finished: Finished | None = None
        self._push(LogEntryKind.CREATED)
        self._push(LogEntryKind.QUEUED if queued else LogEntryKind.IN_PROGRESS)

    @property
    def items(self) -> Sequence[OutputItem]:
        """Items of the answer so far."""
        return self._items

    @property
    def messages(self) -> Sequence[OutputItem]:
        return [item for item in self._items if item.call is None]

    @property
    def calls(self) -> Sequence[OutputItem]:
        return [item for item in self._items if item.call is not None]

    @property
    def text(self) -> str:
        """Text of the answer's messages so far."""
        return "".join(item.text for item in self.messages)

    @property
    def characters(self) -> int:
        """Characters of messages and arguments so far."""
        return sum(item.characters for item in self._items)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of all tokens of messages so far; empty unless asked for."""
        return tuple(chain.from_iterable(item.logprobs for item in self._items))

    def append(self, event: TurnEvent) -> None:
        """Append one event.

        Raises:
            RuntimeError: the order of `gateway.protocol.stream` is broken, for example by a delta after the end.
        """
        if self.finished:
            raise RuntimeError(f"{type(event).__name__} after the turn has finished")
        match event:
            case TextDelta() | Replayed() | ArgumentsDelta() | CallBegun() | CallEnded() if self._text_ended:
                raise RuntimeError(f"{type(event).__name__} after the answer has ended")
            case TextDelta():
                self._delta(self._message(), event)
            case Replayed():
                message = self._message()
                message.merge = False
                deltas = Deltas(message.index, event.text, event.lengths, event.token_ids, event.token_counts)
                self._run_of(message, deltas.entries).extend(deltas)
            case CallBegun():
                self._close(ItemState.COMPLETED)
                self._open(event)
            case ArgumentsDelta():
                self._delta(self._call(), event)
            case CallEnded():
                self._call()
                self._close(ItemState.COMPLETED if event.complete else ItemState.INCOMPLETE)
            case Routed() | PromptScored():
                if self._items:
                    raise RuntimeError(f"{type(event).__name__} after the first token")
                if self._queued and self.routed is None:
                    self._push(LogEntryKind.IN_PROGRESS)
                self._push(LogEntryKind.EVENT, event)
                if isinstance(event, Routed):
                    self.routed = event
            case LimitState():
                self._text_ended = True
                self._push(LogEntryKind.EVENT, event)
            case Finished():
                self._finish(event)

    def read(self, after: int, apart: int = 0) -> list[LogEntry]:
        """Return all entries with a number above `after`; consecutive deltas of an item are merged into one, unless
        replayed.

        Args:
            apart: return no more than so many entries, and merge nothing; 0: all of them, merged.
        """
        entries: list[LogEntry] = []
        first = max(bisect_right(self._starts, after + 1) - 1, 0)
        for start, part in zip(self._starts[first:], self._parts[first:], strict=True):
            seen = max(after + 1 - start, 0)
            if isinstance(part, list):
                entries += part[seen:]
            elif seen < part.deltas:
                last = min(part.deltas, seen + apart) if apart else part.deltas
                for end in (last,) if part.merge and not apart else range(seen + 1, last + 1):
                    entries.append(LogEntry(start + end - 1, LogEntryKind.DELTA, part.merged(seen, end), part))
                    seen = end
            if apart and len(entries) >= apart:
                return entries[:apart]
        return entries

    def since(self, after: int) -> LogSlice:
        """Return the entries with a number above `after` as data from which `extend` makes them again elsewhere."""
        gained: list[Deltas | Structural] = []
        first = max(bisect_right(self._starts, after + 1) - 1, 0)
        for start, part in zip(self._starts[first:], self._parts[first:], strict=True):
            seen = max(after + 1 - start, 0)
            if isinstance(part, list):
                gained += map(_structural, part[seen:])
            elif seen < part.deltas:
                gained.append(part.since(seen))
        return LogSlice(after, tuple(gained))

    def extend(self, gained: LogSlice) -> None:
        """Append what `since` gave of another log that begins as this one does.

        Raises:
            ValueError: it does not follow this log's last entry, or is no part of a log.
        """
        if gained.after != self.last or self.finished:
            raise ValueError(f"entries after number {gained.after} cannot follow number {self.last}")
        for part in gained.parts:
            if part.item is not None and not 0 <= part.item < len(self._items) + (not isinstance(part, Deltas)):
                raise ValueError(f"item {part.item} does not exist")
            if isinstance(part, Deltas):
                self._run_of(self._items[part.item], part.entries).extend(part)
            else:
                self._restore(part)

    def _restore(self, entry: Structural) -> None:
        kind, item = LogEntryKind(entry.kind), None
        if entry.item is not None:
            if entry.item == len(self._items):
                self._items.append(OutputItem(entry.item, entry.call))
            item = self._items[entry.item]
            if entry.state is not None and item.state is ItemState.OPEN:
                item.close(ItemState(entry.state))
        match entry.event:
            case Routed():
                self.routed = entry.event
            case LimitState():
                self._text_ended = True
            case Finished():
                self.finished = entry.event
            case _:
                pass
        self._push(kind, entry.event, item)

    def number_of(self, sequence: int) -> int:
        """Return the number of an entry where events of ours are not counted."""
        return sequence - bisect_right(self._extensions, sequence)

    def sequence_of(self, number: int) -> int:
        """Return the entry's number for what `number_of` gave."""
        for extension in self._extensions:
            number += extension <= number
        return number

    def waiting(self, after: int) -> int:
        """Number of entries that a reader at `after` has not read."""
        return max(self.last - after, 0)

    @property
    def _current(self) -> OutputItem | None:
        """The item that is open."""
        newest = self._items[-1] if self._items else None
        return newest if newest and newest.state is ItemState.OPEN else None

    def _call(self) -> OutputItem:
        item = self._current
        if item is None or item.call is None:
            raise RuntimeError("arguments without a call")
        return item

    def _message(self) -> OutputItem:
        """Return the message to which text is appended: the open one, or a new one."""
        item = self._current or self._open()
        if item.call is not None:
            raise RuntimeError("text within a call")
        return item

    def _open(self, call: CallBegun | None = None) -> OutputItem:
        item = OutputItem(len(self._items), call)
        self._items.append(item)
        self._push(LogEntryKind.ITEM_ADDED, item=item)
        if call is None:
            self._push(LogEntryKind.PART_ADDED, item=item)
        return item

    def _close(self, state: ItemState) -> None:
        item = self._current
        if item is None:
            return
        item.close(state)
        done = (LogEntryKind.TEXT_DONE, LogEntryKind.PART_DONE) if item.call is None else (LogEntryKind.ARGUMENTS_DONE,)
        for kind in (*done, LogEntryKind.ITEM_DONE):
            self._push(kind, item=item)

    def _delta(self, item: OutputItem, delta: TextDelta | ArgumentsDelta) -> None:
        self._run_of(item, 1).append(delta)

    def _run_of(self, item: OutputItem, deltas: int) -> OutputItem:
        """Reserve numbers for so many more deltas of an item, which is then to be given them."""
        if not self._parts or self._parts[-1] is not item:
            self._parts.append(item)
            self._starts.append(self.last + 1)
        self.last += deltas
        return item

    def _finish(self, event: Finished) -> None:
        if event.reason in ("stop", "length", "content_filter") and not self._items and self._with_item:
            # An empty answer is a message with empty text, not a missing message.
            self._open()
        whole = event.reason == "stop" and self._current is not None and self._current.call is None
        self._close(ItemState.COMPLETED if whole else ItemState.INCOMPLETE)
        self._push(LogEntryKind.FINISHED, event)
        self.finished = event

    def _push(self, kind: LogEntryKind, event: TurnEvent | None = None, item: OutputItem | None = None) -> None:
        self.last += 1
        if kind is LogEntryKind.EVENT:
            self._extensions.append(self.last)
        if not self._parts or not isinstance(self._parts[-1], list):
            self._parts.append([])
            self._starts.append(self.last)
        part = self._parts[-1]
        assert isinstance(part, list)
        part.append(LogEntry(self.last, kind, event, item))


_ENDS = (LogEntryKind.TEXT_DONE, LogEntryKind.PART_DONE, LogEntryKind.ARGUMENTS_DONE, LogEntryKind.ITEM_DONE)


def _structural(entry: LogEntry) -> Structural:
    item, event = entry.item, entry.event
    assert event is None or isinstance(event, Routed | PromptScored | LimitState | Finished)
    if item is None:
        return Structural(entry.kind.value, event)
    state = item.state.value if entry.kind in _ENDS else None
    return Structural(
        entry.kind.value, event, item.index, item.call if entry.kind is LogEntryKind.ITEM_ADDED else None, state
    )
