"""The block pool and the hash chain of prefixes."""

from __future__ import annotations

import subprocess
import sys
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache.blocks import BlockPool, PrefixMatch, block_hash, root_hash

DIGESTS = [block_hash(b"", [number]) for number in range(6)]


def test_a_new_pool_is_all_free() -> None:
    pool = BlockPool(4)
    assert (pool.free, pool.cached, pool.available) == (4, 0, 4)


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_allocating_more_than_available_takes_nothing() -> None:
    pool = BlockPool(2)
    with pytest.raises(MemoryError, match="3 KV blocks wanted, 2 available"):
        pool.allocate(3)
    assert pool.available == 2


def test_released_blocks_without_a_prefix_are_free_again() -> None:
    pool = BlockPool(2)
    pool.release(pool.allocate(2))
    assert (pool.free, pool.cached) == (2, 0)


def test_a_registered_block_is_found_after_its_release() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.register(blocks[0], DIGESTS[0])
    pool.release(blocks)
    assert (pool.free, pool.cached) == (1, 1)
    assert pool.match([DIGESTS[0], DIGESTS[1]]) == blocks


def test_a_match_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, digest in zip(blocks, DIGESTS, strict=False):
        pool.register(block, digest)
    assert pool.match([DIGESTS[0], DIGESTS[5], DIGESTS[2]]) == blocks[:1]


def test_sharing_takes_a_cached_block_out_of_what_is_available() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.register(blocks[0], DIGESTS[0])
    pool.release(blocks)
    assert pool.idle(blocks) == 1
    pool.share(blocks)
    assert (pool.idle(blocks), pool.available) == (0, 0)


def test_a_shared_block_is_kept_until_its_last_user_is_gone() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.register(blocks[0], DIGESTS[0])
    pool.share(blocks)
    pool.release(blocks)
    assert pool.available == 0
    pool.release(blocks)
    assert pool.available == 1


def test_free_blocks_are_taken_before_cached_ones_are_given_up() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.register(blocks[0], DIGESTS[0])
    pool.release(blocks)
    assert pool.allocate(1) != blocks
    assert pool.match(DIGESTS[:1]) == blocks


def test_the_least_recently_used_prefix_is_given_up_first() -> None:
    pool = BlockPool(2)
    for digest in DIGESTS[:2]:
        blocks = pool.allocate(1)
        pool.register(blocks[0], digest)
        pool.release(blocks)
    first = pool.match(DIGESTS[:1])
    pool.share(first)
    pool.release(first)
    pool.allocate(1)
    assert pool.match(DIGESTS[:1]) == first
    assert pool.match(DIGESTS[1:2]) == []


def test_the_tail_of_a_freed_request_is_given_up_before_its_head() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block, digest in zip(blocks, DIGESTS, strict=False):
        pool.register(block, digest)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.match(DIGESTS[:3]) == blocks[:2]


def test_a_second_block_with_a_known_prefix_stays_private() -> None:
    pool = BlockPool(2)
    one, two = pool.allocate(2)
    pool.register(one, DIGESTS[0])
    pool.register(two, DIGESTS[0])
    pool.release([one, two])
    assert (pool.free, pool.cached) == (1, 1)


def test_releasing_too_often_raises() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="released more often"):
        pool.release(blocks)


def test_registering_a_block_twice_raises() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.register(blocks[0], DIGESTS[0])
    with pytest.raises(RuntimeError, match="registered twice"):
        pool.register(blocks[0], DIGESTS[1])


def test_lent_blocks_are_nobody_elses_until_they_are_given_back() -> None:
    pool = BlockPool(4)
    lent = pool.lend("a", 3)
    assert (pool.free, pool.lent, pool.available) == (1, 3, 1)
    assert set(pool.allocate(1)).isdisjoint(lent)
    with pytest.raises(MemoryError):
        pool.lend("b", 1)
    pool.give_back("a")
    assert (pool.free, pool.lent) == (3, 0)


def test_nobody_borrows_twice() -> None:
    pool = BlockPool(4)
    pool.lend("a", 1)
    with pytest.raises(RuntimeError, match="a borrows KV blocks twice"):
        pool.lend("a", 1)


def test_lending_takes_the_least_recently_used_prefix_if_nothing_is_free() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    for block, digest in zip(blocks, DIGESTS, strict=False):
        pool.register(block, digest)
    pool.release(blocks)
    assert pool.lend("a", 1) == blocks[1:]
    assert pool.match(DIGESTS[:2]) == blocks[:1]
    pool.check_integrity([])


def test_a_resting_borrower_loses_all_its_blocks_and_is_told() -> None:
    pool = BlockPool(4)
    told: list[str] = []
    pool.on_revoke = told.append
    pool.lend("a", 3)
    pool.rest("a")
    assert pool.available == 4
    pool.allocate(2)
    assert (told, pool.free, pool.lent) == (["a"], 2, 0)


def test_a_borrower_that_is_awake_again_keeps_its_blocks() -> None:
    pool = BlockPool(4)
    pool.lend("a", 3)
    pool.rest("a")
    pool.wake("a")
    assert pool.available == 1
    pool.check_integrity([])


def test_the_integrity_check_sees_a_leaked_block() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(RuntimeError, match="references differ from block tables"):
        pool.check_integrity([])


def test_the_integrity_check_sees_a_block_that_two_tables_claim() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    with pytest.raises(RuntimeError, match="references differ"):
        pool.check_integrity([blocks, blocks])


def test_a_block_is_identified_by_everything_before_it() -> None:
    one, other = block_hash(b"", [1]), block_hash(b"", [2])
    assert block_hash(one, [7]) != block_hash(other, [7])
    assert block_hash(one, [7]) == block_hash(block_hash(b"", [1]), [7])


@given(st.lists(st.integers(0, 2**32 - 1), max_size=4), st.lists(st.integers(0, 2**32 - 1), max_size=4))
def test_different_tokens_have_different_hashes(one: list[int], other: list[int]) -> None:
    assert (block_hash(b"", one) == block_hash(b"", other)) == (one == other)


def test_every_part_of_the_root_counts_and_none_runs_into_the_next() -> None:
    roots = [
        root_hash("r", None, "float32", b""),
        root_hash("s", None, "float32", b""),
        root_hash("r", "", "float32", b""),
        root_hash("r", "a", "float32", b""),
        root_hash("r", None, "bfloat16", b""),
        root_hash("r", None, "float32", b"x"),
        root_hash("r", None, "float3", b"2"),
        root_hash("r", None, "float32", b"", regime=1),
    ]
    assert len(set(roots)) == len(roots)


def test_hashes_are_the_same_in_every_process() -> None:
    program = (
        "from engine.cache.blocks import *; print(block_hash(root_hash('r', 'a', 'float32', b'salt'), [1, 2]).hex())"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert there == block_hash(root_hash("r", "a", "float32", b"salt"), [1, 2]).hex()


class PoolMachine(RuleBasedStateMachine):
    """Tables that come and go, grow, share and publish: the books always balance."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.tables: list[list[int]] = []
        self.holders: list[int] = []
        self.next_holder = 1
        self.private: set[int] = set()
        self.awake: dict[str, list[int]] = {}
        self.resting: dict[str, list[int]] = {}
        self.pool.on_revoke = self.resting.__delitem__
        self.pool._lost = deque(maxlen=3)  # so that more is lost than it remembers
        self.known = [PrefixMatch() for _ in DIGESTS]

    @rule(start=st.integers(0, 5), most=st.integers(0, 6))
    def look_again(self, start: int, most: int) -> None:
        chain = DIGESTS[start:]
        most = min(most, len(chain))
        assert self.pool.rematch(self.known[start], chain, most) == self.pool.match(chain[:most])

    @rule(count=st.integers(0, 6))
    def take(self, count: int) -> None:
        if count <= self.pool.available:
            self.tables.append(self.pool.allocate(count, self.next_holder))
            self.hold()
            self.private.update(self.tables[-1])

    @rule(start=st.integers(0, 5))
    def reuse(self, start: int) -> None:
        hits = self.pool.match(DIGESTS[start:])
        self.pool.share(hits, self.next_holder)
        self.tables.append(hits)
        self.hold()

    def hold(self) -> None:
        self.holders.append(self.next_holder)
        self.next_holder += 1

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        for block in self.private.intersection(table):
            self.pool.register(block, data.draw(st.sampled_from(DIGESTS)))
        self.private.difference_update(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.tables) - 1))
        table = self.tables.pop(place)
        self.pool.release(table, self.holders.pop(place))
        self.private.difference_update(table)

    @rule(borrower=st.sampled_from("ab"), count=st.integers(1, 4))
    def lend(self, borrower: str, count: int) -> None:
        if borrower not in self.awake | self.resting and count <= self.pool.available:
            self.awake[borrower] = self.pool.lend(borrower, count)

    @precondition(lambda self: self.awake)
    @rule(data=st.data())
    def rest(self, data: st.DataObject) -> None:
        borrower = data.draw(st.sampled_from(sorted(self.awake)))
        self.pool.rest(borrower)
        self.resting[borrower] = self.awake.pop(borrower)

    @precondition(lambda self: self.resting)
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        borrower = data.draw(st.sampled_from(sorted(self.resting)))
        self.pool.wake(borrower)
        self.awake[borrower] = self.resting.pop(borrower)

    @precondition(lambda self: self.awake or self.resting)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        borrower = data.draw(st.sampled_from(sorted(self.awake | self.resting)))
        self.pool.give_back(borrower)
        self.awake.pop(borrower, None)
        self.resting.pop(borrower, None)

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_integrity(self.tables)
        self.pool.check_holders(dict(zip(self.holders, self.tables, strict=True)))
        lent = [block for blocks in (self.awake | self.resting).values() for block in blocks]
        assert self.pool.lent == len(lent) == len(set(lent))
        assert set(lent).isdisjoint(block for table in self.tables for block in table)


TestPoolMachine = PoolMachine.TestCase
