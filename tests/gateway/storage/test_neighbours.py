"""Who counts as dead, and when: whatever others do, and whatever one gateway sees of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.storage.neighbours import GONE, SILENT, Neighbours

A, B = "gw_a", "gw_b"


def looks_until_dead(neighbours: Neighbours, beats: dict[str, float], connected: set[str] | None) -> int:
    """Look at the same again and again until A is dead; return how often."""
    for count in range(1, 100):
        if A in neighbours.look(beats, connected):
            return count
    raise AssertionError("it lives for ever")


def test_a_killed_gateway_is_dead_after_a_few_looks_and_a_silent_one_after_many() -> None:
    killed, silent, unknown = Neighbours(), Neighbours(), Neighbours()
    for neighbours in (killed, silent, unknown):
        assert neighbours.look({A: 1.0}, {A}) == {}
        assert neighbours.living == {A}
    assert looks_until_dead(killed, {A: 1.0}, set()) == GONE
    assert looks_until_dead(silent, {A: 1.0}, {A}) == SILENT
    assert looks_until_dead(unknown, {A: 1.0}, None) == SILENT
    assert killed.living == silent.living == unknown.living == frozenset()


def test_one_that_has_left_is_dead_sooner() -> None:
    neighbours = Neighbours()
    neighbours.look({A: 1.0, B: 1.0}, {A, B})
    neighbours.look({B: 2.0}, {B})
    assert neighbours.look({B: 3.0}, {B}) == {A: 1.0}
    assert neighbours.living == {B}


def test_while_redis_is_away_and_shortly_afterwards_a_missing_connection_proves_nothing() -> None:
    neighbours = Neighbours()
    neighbours.look({A: 1.0}, {A})
    for _ in range(100):
        neighbours.disturbed()  # nobody grows older meanwhile
    assert not neighbours.doubtful(A)
    assert looks_until_dead(neighbours, {A: 1.0}, set()) >= SILENT


def test_one_that_beats_again_after_its_death_is_alive() -> None:
    neighbours = Neighbours()
    neighbours.look({A: 1.0}, {A})
    looks_until_dead(neighbours, {A: 1.0}, set())
    assert neighbours.look({A: 2.0}, {A}) == {}
    assert neighbours.living == {A} and not neighbours.doubtful(A)


LOOKS = st.lists(st.tuples(st.booleans(), st.sampled_from([True, False, None])), min_size=1, max_size=60)
"""Of each look: whether A has beaten since the last one, and whether it has a connection; None: Redis does not tell."""


@given(LOOKS)
def test_dead_are_those_that_are_silent_for_long_or_for_a_while_and_cut_off(
    looks: list[tuple[bool, bool | None]],
) -> None:
    neighbours, beat, silence, known = Neighbours(), 0.0, 0, False
    for beats, connected in looks:
        beat += beats
        dead = neighbours.look({A: beat}, None if connected is None else {A} if connected else set())
        silence = silence + 1 if known and not beats else 0
        assert bool(dead) == (silence >= (GONE if connected is False else SILENT))
        known = not dead
        assert neighbours.living == ({A} if known else frozenset())
