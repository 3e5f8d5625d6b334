"""The index of prefix blocks against a dictionary of sets."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.prefix import PrefixIndex

NAMES = ("small-0", "small-1", "small-2")
CHAINS = [[10 * chain + step for step in range(8)] for chain in range(3)]


def chain(length: int, number: int = 0) -> list[int]:
    return CHAINS[number][:length]


def test_each_replica_matches_as_far_as_it_holds_the_chain() -> None:
    index = PrefixIndex()
    index.stored("small-0", chain(6))
    index.stored("small-1", chain(3))
    index.stored("small-2", [CHAINS[0][0], *CHAINS[0][2:]])  # a gap
    assert index.match(CHAINS[0]) == {"small-0": 6, "small-1": 3, "small-2": 1}
    assert index.match(chain(2)) == {"small-0": 2, "small-1": 2, "small-2": 1}
    assert index.match(CHAINS[1]) == {}
    assert index.match([]) == {}


def test_no_more_of_a_chain_is_computed_than_somebody_knows() -> None:
    index = PrefixIndex()
    index.stored("small-0", chain(2))
    asked = []

    def lazily():  # type: ignore[no-untyped-def]
        for block in CHAINS[0]:
            asked.append(block)
            yield block

    assert index.match(lazily()) == {"small-0": 2}
    assert len(asked) == 3


def test_removed_and_cleared_blocks_match_no_more() -> None:
    index = PrefixIndex()
    index.stored("small-0", chain(4))
    index.stored("small-1", chain(4))
    index.removed("small-0", [CHAINS[0][2], 999])
    assert index.match(CHAINS[0]) == {"small-0": 2, "small-1": 4}
    index.cleared("small-1")
    assert index.match(CHAINS[0]) == {"small-0": 2}
    index.forget("small-0")
    assert (index.match(CHAINS[0]), len(index)) == ({}, 0)


def test_what_is_expected_counts_until_the_request_has_ended() -> None:
    """What the engine stored meanwhile stays, the rest goes; two requests with one prefix expect it twice."""
    index = PrefixIndex()
    one, two = index.expect("small-0", chain(5)), index.expect("small-0", chain(3))
    assert index.match(CHAINS[0]) == {"small-0": 5}
    index.stored("small-0", chain(2))
    index.settle("small-0", one)
    assert index.match(CHAINS[0]) == {"small-0": 3}
    index.settle("small-0", two)
    assert index.match(CHAINS[0]) == {"small-0": 2}


def test_a_lost_connection_keeps_what_is_on_its_way() -> None:
    index = PrefixIndex()
    expected = index.expect("small-0", chain(3))
    index.cleared("small-0")
    assert index.match(CHAINS[0]) == {"small-0": 3}
    index.forget("small-0")
    index.settle("small-0", expected)
    assert len(index) == 0


def test_memory_is_bounded_by_what_a_replica_has_room_for_and_chains_go_from_their_end() -> None:
    index = PrefixIndex()
    index.resize("small-0", 10)
    index.resize("small-1", 10)
    index.stored("small-0", chain(8, 0))
    index.stored("small-0", chain(6, 1))
    assert index.blocks("small-0") == len(index) == 10
    assert index.match(CHAINS[1]) == {"small-0": 6}
    assert index.match(CHAINS[0]) == {"small-0": 4}
    assert len(index.expect("small-1", chain(8, 0))) == 8
    assert len(index.expect("small-1", chain(8, 2))) == 2
    index.resize("small-0", 6)
    assert index.match(CHAINS[0]) == {"small-1": 8} and index.blocks("small-0") == 6
    index.check_integrity()


def test_blocks_that_are_asked_for_again_outlive_newer_ones() -> None:
    """Engines tell only of what is new to them; what a request finds is used all the same."""
    index = PrefixIndex()
    index.resize("small-0", 12)
    index.stored("small-0", chain(6, 0))
    index.stored("small-0", chain(6, 1))
    index.settle("small-0", index.expect("small-0", chain(6, 0)))
    index.stored("small-0", chain(4, 2))
    assert [index.match(each) for each in CHAINS] == [{"small-0": 6}, {"small-0": 2}, {"small-0": 4}]


def test_a_large_replica_forgets_the_oldest_in_portions() -> None:
    index = PrefixIndex()
    index.resize("small-0", 160)
    for number in range(1000):
        index.stored("small-0", [number])
        assert 0 < index.blocks("small-0") <= 160 and index.match([number]) == {"small-0": 1}
    assert all(index.match([number]) for number in range(850, 1000))
    index.check_integrity()


class Index(RuleBasedStateMachine):
    """Everything that may happen, beside a model that is plainly right."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.stored: dict[str, set[int]] = {name: set() for name in NAMES}
        self.expected: dict[str, Counter[int]] = {name: Counter() for name in NAMES}
        self.open: list[tuple[str, list[int]]] = []

    names = st.sampled_from(NAMES)
    pieces = st.lists(st.sampled_from([block for chain in CHAINS for block in chain]), max_size=6, unique=True)

    @rule(name=names, blocks=pieces)
    def store(self, name: str, blocks: list[int]) -> None:
        self.index.stored(name, blocks)
        self.stored[name] |= set(blocks)

    @rule(name=names, blocks=pieces)
    def remove(self, name: str, blocks: list[int]) -> None:
        self.index.removed(name, blocks)
        self.stored[name] -= set(blocks)

    @rule(name=names)
    def clear(self, name: str) -> None:
        self.index.cleared(name)
        self.stored[name].clear()

    @rule(name=names)
    def forget(self, name: str) -> None:
        self.index.forget(name)
        self.stored[name].clear()
        self.expected[name].clear()
        self.open = [one for one in self.open if one[0] != name]

    @rule(name=names, blocks=pieces)
    def expect(self, name: str, blocks: list[int]) -> None:
        self.open.append((name, list(self.index.expect(name, blocks))))
        self.expected[name].update(blocks)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        name, blocks = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.index.settle(name, blocks)
        self.expected[name] -= Counter(blocks)

    @invariant()
    def agrees(self) -> None:
        self.index.check_integrity()
        for each in CHAINS:
            wanted = {}
            for name in NAMES:
                held = self.stored[name] | set(self.expected[name])
                length = next((at for at, block in enumerate(each) if block not in held), len(each))
                if length:
                    wanted[name] = length
            assert self.index.match(each) == wanted


TestIndex = Index.TestCase
TestIndex.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_broken_index_is_noticed() -> None:
    index = PrefixIndex()
    index.stored("small-0", chain(2))
    index._holders[99] = 1
    with pytest.raises(RuntimeError, match="differs"):
        index.check_integrity()
