"""The life of an entry."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.semantic.entry import (
    TRANSITIONS,
    EntryState,
    IllegalTransition,
    Observation,
    Thresholds,
    after_check,
    transition,
)

RIGHT = Observation(2.0, True)
WRONG = Observation(2.0, False)
DOUBTED = Observation(-2.0, False)


@pytest.mark.parametrize(("before", "after"), sorted(itertools.product(EntryState, EntryState)))
def test_only_listed_transitions_are_possible(before: EntryState, after: EntryState) -> None:
    if after in TRANSITIONS[before]:
        assert transition(before, after) is after
    else:
        with pytest.raises(IllegalTransition, match=f"{before} cannot become {after}"):
            transition(before, after)


@pytest.mark.parametrize(
    ("state", "observations", "after"),
    [
        (EntryState.PROBATION, [RIGHT] * 2, EntryState.PROBATION),
        (EntryState.PROBATION, [RIGHT] * 3, EntryState.VERIFIED),
        (EntryState.PROBATION, [RIGHT, WRONG], EntryState.QUARANTINED),
        (EntryState.VERIFIED, [RIGHT, RIGHT, RIGHT, WRONG], EntryState.QUARANTINED),
        (EntryState.VERIFIED, [RIGHT, RIGHT, RIGHT, DOUBTED], EntryState.VERIFIED),
        (EntryState.QUARANTINED, [WRONG, RIGHT, RIGHT], EntryState.QUARANTINED),
        (EntryState.QUARANTINED, [WRONG, RIGHT, RIGHT, RIGHT], EntryState.PROBATION),
        (EntryState.QUARANTINED, [WRONG, RIGHT, WRONG, WRONG], EntryState.REVOKED),
    ],
)
def test_checks_move_an_entry(state: EntryState, observations: list[Observation], after: EntryState) -> None:
    assert after_check(state, observations, Thresholds()) is after


def test_a_revoked_entry_is_not_checked() -> None:
    with pytest.raises(IllegalTransition):
        after_check(EntryState.REVOKED, [RIGHT], Thresholds())


@given(st.lists(st.sampled_from([RIGHT, WRONG, DOUBTED]), max_size=40))
def test_no_history_leads_to_an_illegal_transition(history: list[Observation]) -> None:
    state = EntryState.PROBATION
    for length in range(1, len(history) + 1):
        if state is EntryState.REVOKED:
            break
        state = after_check(state, history[:length], Thresholds())
        if history[length - 1] is WRONG:
            assert not state.servable
