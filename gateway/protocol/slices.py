"""What a log gained between two of its numbers, as plain data that travels to other gateways and into Redis.

Deltas keep their borders, so that a copy of a log counts as the log itself does: whoever has seen number N of one can
go on after N with the other.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from gateway.protocol.stream import CallBegun, Finished, LimitState, PromptScored, Routed, TokenLogprob


class Deltas(Struct, array_like=True, tag=0, frozen=True):
    """Deltas of one item that follow one another."""

    item: int
    """Its position among the items of the answer."""
    text: str
    lengths: tuple[int, ...]
    """Characters per delta."""
    token_ids: tuple[int, ...] = ()
    token_counts: tuple[int, ...] = ()
    """Token ids per delta."""
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    """Per delta; empty unless log-probabilities were asked for."""

    @property
    def entries(self) -> int:
        return len(self.lengths)


class Structural(Struct, array_like=True, tag=1, frozen=True):
    """Any other entry of a log."""

    kind: int
    """Value of `gateway.protocol.log.LogEntryKind`."""
    event: Routed | PromptScored | LimitState | Finished | None = None
    item: int | None = None
    call: CallBegun | None = None
    """With the entry that begins an item: what it calls, if it is a call."""
    state: str | None = None
    """With the entries that end an item: how it ended."""

    @property
    def entries(self) -> int:
        return 1


class LogSlice(Struct, array_like=True, frozen=True):
    """The entries of a log from number `after` + 1 on."""

    after: int
    parts: tuple[Deltas | Structural, ...] = ()

    @property
    def last(self) -> int:
        """Number of its last entry."""
        return self.after + sum(part.entries for part in self.parts)


class Fit(enum.Enum):
    """How a slice fits a log."""

    NEXT = "next"
    """It goes on where the log ends."""
    KNOWN = "known"
    """The log has all of it."""
    GAP = "gap"
    """Something between them is missing, or they overlap: ask for what follows the log's last number."""


def fit(gained: LogSlice, last: int) -> Fit:
    """How `gained` fits a log whose last number is `last`."""
    if gained.last <= last:
        return Fit.KNOWN
    return Fit.NEXT if gained.after == last else Fit.GAP
