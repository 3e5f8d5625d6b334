"""The states of a stored answer, and the checks that move it between them. Pure.

An answer starts on probation and is verified once enough independent checks found it right. Checks that find it wrong
put it in quarantine, where it is checked but never served; it leaves for probation after a row of right ones, or for
good. A revoked answer stays a record of its own end.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct


class EntryState(enum.StrEnum):
    PROBATION = "probation"
    VERIFIED = "verified"
    QUARANTINED = "quarantined"
    REVOKED = "revoked"

    @property
    def servable(self) -> bool:
        """Whether an answer in this state may be given to anybody."""
        return self in (EntryState.PROBATION, EntryState.VERIFIED)

    @property
    def checkable(self) -> bool:
        """Whether an answer in this state may be compared with a fresh one."""
        return self is not EntryState.REVOKED


TRANSITIONS: dict[EntryState, frozenset[EntryState]] = {
    EntryState.PROBATION: frozenset({EntryState.VERIFIED, EntryState.QUARANTINED, EntryState.REVOKED}),
    EntryState.VERIFIED: frozenset({EntryState.QUARANTINED, EntryState.REVOKED}),
    EntryState.QUARANTINED: frozenset({EntryState.PROBATION, EntryState.REVOKED}),
    EntryState.REVOKED: frozenset(),
}


class IllegalTransition(ValueError):
    """A state cannot follow another."""


class Observation(Struct, frozen=True, array_like=True):
    """One check: another question's own answer was compared with the entry's."""

    logit: float
    """Logit of the pooled model for the pair, before the entry's own offset."""
    correct: bool


class Thresholds(Struct, frozen=True, kw_only=True):
    """How many checks move an entry to another state."""

    verify: int = 3
    """Right checks, none of the last as many wrong, after which an entry is verified."""
    quarantine: int = 1
    """Wrong checks among the last `window` that put an entry in quarantine."""
    revoke: int = 3
    """Wrong checks among the last `window` that revoke an entry."""
    window: int = 8
    """Number of latest observations that count."""


def transition(state: EntryState, to: EntryState) -> EntryState:
    """Return the next state of an entry.

    Raises:
        IllegalTransition: `to` cannot follow `state`.
    """
    if to not in TRANSITIONS[state]:
        raise IllegalTransition(f"an entry that is {state} cannot become {to}")
    return to


def after_check(state: EntryState, observations: Sequence[Observation], thresholds: Thresholds) -> EntryState:
    """Return the state after the newest observation (the last one; oldest first).

    A verified entry survives a wrong check that the model held for unlikely to be right anyway: that check says little
    about the entry.

    Raises:
        IllegalTransition: a revoked entry was checked.
    """
    if state is EntryState.REVOKED:
        raise IllegalTransition("a revoked entry is not checked")
    recent = observations[-thresholds.window :]
    expected = [observation for observation in recent if observation.correct or observation.logit > 0]
    wrong = sum(not observation.correct for observation in expected)
    run = expected[-thresholds.verify :]
    proven = len(run) == thresholds.verify and all(observation.correct for observation in run)
    if wrong >= thresholds.revoke:
        return transition(state, EntryState.REVOKED)
    match state:
        case EntryState.QUARANTINED:
            return transition(state, EntryState.PROBATION) if proven else state
        case _ if wrong >= thresholds.quarantine and not proven:
            return transition(state, EntryState.QUARANTINED)
        case EntryState.PROBATION if proven:
            return transition(state, EntryState.VERIFIED)
    return state
