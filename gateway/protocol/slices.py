"""Slices of a log between two of its numbers, as plain data that travels to other gateways and into Redis.

Deltas keep their borders, so that a copy of a log counts as the log itself does: whoever has seen number N of one can
go on after N with the other.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from gateway.protocol.stream import CallBegun, Finished, LimitState, PromptScored, Routed, TokenLogprob


class Deltas(Struct, array_like=True, tag=0, frozen=True):
    """Consecutive deltas of one item."""

    item: int
    """Index of the item in the answer."""
    text: str
    lengths: tuple[int, ...]
    """Number of characters of each delta."""
    token_ids: tuple[int, ...] = ()
    token_counts: tuple[int, ...] = ()
    """Number of token ids of each delta."""
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    """Log-probabilities of each delta; empty unless they were asked for."""

    @property
    def entries(self) -> int:
        return len(self.lengths)


class Structural(Struct, array_like=True, tag=1, frozen=True):
    """Any entry of a log that is no delta."""

    kind: int
    """Value of the entry's `gateway.protocol.log.LogEntryKind`."""
    event: Routed | PromptScored | LimitState | Finished | None = None
    item: int | None = None
    call: CallBegun | None = None
    """The called function, in the entry that begins a call."""
    state: str | None = None
    """Final state of the item, in the entries that end it."""

    @property
    def entries(self) -> int:
        return 1


class LogSlice(Struct, array_like=True, frozen=True):
    """The entries of a log from number `after` + 1 on."""

    after: int
    parts: tuple[Deltas | Structural, ...] = ()

    @property
    def last(self) -> int:
        """Number of the last entry."""
        return self.after + sum(part.entries for part in self.parts)


class Fit(enum.Enum):
    """Relation of a slice to a log."""

    NEXT = "next"
    """The slice begins where the log ends."""
    KNOWN = "known"
    """The log has all of the slice."""
    GAP = "gap"
    """Something between log and slice is missing, or they overlap: ask for what follows the log's last number."""


def fit(gained: LogSlice, last: int) -> Fit:
    """Return how `gained` fits a log whose last number is `last`."""
    if gained.last <= last:
        return Fit.KNOWN
    return Fit.NEXT if gained.after == last else Fit.GAP
