"""What holds of every decision, whatever the pool and its load do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scale.policy import PoolMemory, ScaleDecision, ScalePolicy, decide
from scale.signals import PoolBounds, PoolReplica, PoolSignal, ReplicaPhase

POLICY = ScalePolicy()
READY, STARTING, DRAINING = ReplicaPhase


@st.composite
def bounds(draw: st.DrawFn) -> PoolBounds:
    least = draw(st.integers(0, 5))
    most = draw(st.integers(max(1, least), 40))
    budget = draw(st.none() | st.integers(2 * max(1, least), 100).map(float))
    return PoolBounds(
        min_replicas=least,
        max_replicas=most,
        spare=draw(st.integers(0, 2)),
        on_demand=draw(st.integers(0, max(1, least))),
        budget=budget,
        price=0.0 if budget is None else 2.0,
        spot_price=None if budget is None else draw(st.sampled_from([None, 0.5])),
    )


def money(replicas: Iterable[PoolReplica], bounds: PoolBounds) -> float:
    return sum(bounds.price_of(spot=each.spot) for each in replicas)


@dataclass(frozen=True)
class Look:
    """What happens until the next look."""

    offered: float
    in_flight: int
    known: bool
    ttft: float | None
    lost: bool
    """Whether the first replica is lost."""
    became_ready: int


looks = st.lists(
    st.builds(
        Look,
        offered=st.floats(0, 60),
        in_flight=st.integers(0, 80),
        known=st.integers(0, 9).map(bool),
        ttft=st.none() | st.floats(0, 5),
        lost=st.integers(0, 20).map(lambda drawn: not drawn),
        became_ready=st.integers(0, 5),
    ),
    min_size=1,
    max_size=80,
)


@dataclass
class Pool:
    """A pool whose replicas start and drain as late as they like."""

    bounds: PoolBounds
    replicas: list[PoolReplica] = field(default_factory=list)
    policy: ScalePolicy = POLICY
    memory: PoolMemory = field(default_factory=PoolMemory)
    time: float = 1000.0
    asked: int = 0

    def signal(self, look: Look) -> PoolSignal:
        replicas = tuple(
            replace(each, in_flight=look.in_flight, slots=64, kv_share=look.in_flight / 80) for each in self.replicas
        )
        return PoolSignal(
            time=self.time, known=look.known, replicas=replicas, offered=10 * look.offered, ttft_p95=look.ttft
        )

    def look(self, look: Look) -> tuple[PoolSignal, ScaleDecision]:
        self.time += 10
        signal = self.signal(look)
        decision, self.memory = decide(signal, self.memory, self.bounds, self.policy)
        self.follow(decision, look)
        return signal, decision

    def follow(self, decision: ScaleDecision, look: Look) -> None:
        # Those that drain are gone one look later.
        self.replicas = [each for each in self.replicas if each.phase is not DRAINING]
        for at, each in enumerate(self.replicas):
            if each.id in decision.victims:
                self.replicas[at] = replace(each, phase=DRAINING)
        starting = [each for each in self.replicas if each.phase is STARTING]
        present = len(starting) + sum(each.phase is READY for each in self.replicas)
        for each in starting[::-1][: max(0, present - decision.desired)]:
            self.replicas.remove(each)
        for _ in range(decision.desired - present):
            self.asked += 1
            staying = sum(not each.spot and each.phase is not DRAINING for each in self.replicas)
            spot = staying >= self.bounds.on_demand
            self.replicas.append(PoolReplica(id=f"r{self.asked}", phase=STARTING, age=0.0, spot=spot))
        for each in [each for each in self.replicas if each.phase is STARTING][: look.became_ready]:
            self.replicas[self.replicas.index(each)] = replace(each, phase=READY)
        if look.lost and self.replicas:
            del self.replicas[0]


@given(bounds(), looks)
def test_bounds_and_budget_hold_and_victims_are_ready_replicas(bounds: PoolBounds, looks: list[Look]) -> None:
    pool = Pool(bounds)
    for look in looks:
        signal, decision = pool.look(look)
        ready, starting = signal.of(READY), signal.of(STARTING)
        draining = signal.of(DRAINING)
        assert decision.desired <= bounds.max_replicas
        if bounds.spot_price is None:
            assert decision.desired >= min(bounds.min_replicas, bounds.affordable - len(draining))
        if bounds.budget is not None:
            kept = money((each for each in pool.replicas if each.phase is not DRAINING), bounds)
            grows = decision.desired > len(ready) + len(starting)
            assert kept + grows * money(draining, bounds) <= bounds.budget + 1e-6
        assert len(set(decision.victims)) == len(decision.victims)
        assert set(decision.victims) <= {each.id for each in ready}
        assert not decision.victims or len(ready) - len(decision.victims) == decision.desired
        assert decision.reasons and all(reason.text for reason in decision.reasons)


@given(bounds(), looks)
def test_without_a_signal_the_size_stays(bounds: PoolBounds, looks: list[Look]) -> None:
    pool = Pool(replace(bounds, budget=None))
    before = None
    for look in looks:
        _, decision = pool.look(look)
        if not look.known:
            assert decision.victims == ()
            assert before is None or decision.desired == before
        before = decision.desired


@given(looks, st.integers(0, 30))
def test_no_size_is_left_again_within_the_hold(looks: list[Look], begin: int) -> None:
    """Whatever was asked for stays for five minutes, where it comes and is paid for."""
    pool = Pool(PoolBounds(min_replicas=0, max_replicas=1000), policy=ScalePolicy(patience=100))
    pool.replicas = [PoolReplica(id=f"b{at}", phase=READY, age=0.0) for at in range(begin)]
    rises: list[tuple[float, int]] = []
    before = 0
    for look in looks:
        signal, decision = pool.look(look)
        assert all(decision.desired >= size for at, size in rises if signal.time - at < POLICY.hold_seconds)
        if decision.desired > before and look.known:
            rises.append((signal.time, decision.desired))
        before = decision.desired


@given(bounds(), looks, st.floats(0, 30), st.integers(0, 30), st.floats(0, 300))
def test_more_load_never_asks_for_less(
    bounds: PoolBounds, looks: list[Look], work: float, in_flight: int, backlog: float
) -> None:
    pool = Pool(bounds)
    for look in looks:
        pool.time += 10
        signal = pool.signal(replace_look(look, 0.0, 0))
        more = pool.signal(replace_look(look, work, in_flight))
        decision, memory = decide(signal, pool.memory, bounds, POLICY)
        larger, _ = decide(replace(more, backlog=backlog), pool.memory, bounds, POLICY)
        assert larger.desired >= decision.desired
        pool.memory = memory
        pool.follow(decision, look)


def replace_look(look: Look, work: float, in_flight: int) -> Look:
    return Look(look.offered + work, look.in_flight + in_flight, look.known, look.ttft, look.lost, look.became_ready)


@given(bounds(), looks)
def test_a_memory_that_was_stored_decides_alike(bounds: PoolBounds, looks: list[Look]) -> None:
    pool = Pool(bounds)
    for look in looks:
        pool.look(look)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(pool.memory), type=PoolMemory)
    assert stored == pool.memory


@given(st.floats(0.2, 30), st.randoms(use_true_random=False))
def test_constant_work_with_noise_settles(offered: float, chance: object) -> None:
    """After the hold the size no longer changes by more than the noise asks for, and never back and forth."""
    pool = Pool(PoolBounds(max_replicas=1000))
    sizes = []
    for _ in range(180):
        noisy = offered * (1 + 0.1 * chance.uniform(-1, 1))  # type: ignore[attr-defined]
        _, decision = pool.look(Look(noisy, 0, True, None, False, 1000))
        sizes.append(decision.desired)
    settled = sizes[90:]
    assert max(settled) - min(settled) <= 1 + 0.2 * offered
    assert sum(one != other for one, other in pairwise(settled)) <= 6
