"""The books of KV blocks in host memory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache.blocks import BlockPool, block_hash
from engine.cache.host_tier import HostTier, Save

DIGESTS = [block_hash(b"", [number]) for number in range(7)]


def test_a_tier_without_host_blocks_holds_nothing() -> None:
    tier = HostTier(0)
    assert tier.put(DIGESTS[0], 3) == (DIGESTS[0],)
    assert (tier.match(DIGESTS), tier.take_saves()) == (0, [])


def test_a_tier_of_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold -1"):
        HostTier(-1)


def test_what_is_put_is_found_and_due_to_be_copied_once() -> None:
    tier = HostTier(2)
    assert tier.put(DIGESTS[0], 5) == ()
    assert tier.put(DIGESTS[0], 6) == ()
    assert tier.match(DIGESTS[:2]) == 1
    assert tier.take_saves() == [Save(5, tier.hold(DIGESTS[:1])[0])]
    assert tier.take_saves() == []


def test_the_least_recently_used_prefix_makes_room() -> None:
    tier = HostTier(2)
    for block, digest in enumerate(DIGESTS[:2]):
        tier.put(digest, block)
    tier.put(DIGESTS[0], 7)
    assert tier.put(DIGESTS[2], 8) == (DIGESTS[1],)


def test_what_was_loaded_is_used_last_and_its_tail_goes_before_its_head() -> None:
    tier = HostTier(3)
    for block, digest in enumerate(DIGESTS[:3]):
        tier.put(digest, block)
    tier.hold(DIGESTS[:2])
    tier.release(DIGESTS[:2])
    assert [tier.put(digest, 9) for digest in DIGESTS[3:6]] == [(DIGESTS[2],), (DIGESTS[1],), (DIGESTS[0],)]


def test_what_is_being_loaded_makes_no_room() -> None:
    tier = HostTier(1)
    tier.put(DIGESTS[0], 0)
    tier.hold(DIGESTS[:1])
    assert tier.put(DIGESTS[1], 1) == (DIGESTS[1],)
    assert (tier.free, tier.cached, tier.used) == (0, 0, 1)


def test_releasing_what_nobody_holds_raises() -> None:
    tier = HostTier(1)
    tier.put(DIGESTS[0], 0)
    with pytest.raises(RuntimeError, match="released more often"):
        tier.release(DIGESTS[:1])


def test_the_integrity_check_sees_a_load_that_was_forgotten() -> None:
    tier = HostTier(1)
    tier.put(DIGESTS[0], 0)
    tier.hold(DIGESTS[:1])
    with pytest.raises(RuntimeError, match="readers differ from loads"):
        tier.check_integrity([])


def test_a_block_that_the_pool_evicts_goes_to_its_tier() -> None:
    tier = HostTier(1)
    pool = BlockPool(1, tier)
    blocks = pool.allocate(1)
    pool.register(blocks[0], DIGESTS[0])
    pool.release(blocks)
    pool.allocate(1)
    assert tier.match(DIGESTS[:1]) == 1
    assert tier.take_saves() == [Save(blocks[0], 0)]


class TierMachine(RuleBasedStateMachine):
    """Blocks come, are loaded by several at a time and go: a host block holds what it was last told to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = HostTier(4)
        self.content: dict[int, bytes] = {}
        """What the copies made so far have put into each host block."""
        self.order: list[bytes] = []
        """All that must be held, least recently used first."""
        self.loads: list[list[bytes]] = []

    @rule(digest=st.sampled_from(DIGESTS))
    def put(self, digest: bytes) -> None:
        read = {each for load in self.loads for each in load}
        idle = [each for each in self.order if each not in read]
        lost = list(self.tier.put(digest, DIGESTS.index(digest)))
        if digest in self.order:
            assert lost == []
            if digest not in read:
                self.order.remove(digest)
                self.order.append(digest)
        elif len(self.order) < 4:
            assert lost == []
            self.order.append(digest)
        elif idle:
            assert lost == idle[:1]
            self.order.remove(idle[0])
            self.order.append(digest)
        else:
            assert lost == [digest]
        for save in self.tier.take_saves():
            self.content[save.host_block] = DIGESTS[save.block]

    @rule(start=st.integers(0, 6), count=st.integers(1, 4))
    def load(self, start: int, count: int) -> None:
        found = DIGESTS[start : start + count]
        found = found[: self.tier.match(found)]
        host_blocks = self.tier.hold(found)
        assert [self.content[host_block] for host_block in host_blocks] == found
        self.loads.append(found)

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        load = self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1)))
        self.tier.release(load)
        read = {each for other in self.loads for each in other}
        for digest in reversed(load):
            if digest not in read:
                self.order.remove(digest)
                self.order.append(digest)

    @invariant()
    def books_balance(self) -> None:
        self.tier.check_integrity(self.loads)
        assert self.tier.prefixes == set(self.order)
        assert self.tier.free + self.tier.cached + self.tier.used == self.tier.total
        assert self.tier.used == len(Counter(digest for load in self.loads for digest in load))


TestTierMachine = TierMachine.TestCase
