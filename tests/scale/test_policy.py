"""How many replicas a pool gets, and why."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scale.policy import PoolMemory, ScaleDecision, ScalePolicy, decide
from scale.signals import PoolBounds, PoolReplica, PoolSignal, ReplicaPhase

BOUNDS = PoolBounds(min_replicas=1, max_replicas=100)


def ready(count: int, **fields: object) -> tuple[PoolReplica, ...]:
    values = {"phase": ReplicaPhase.READY, "age": 1000.0, "slots": 64, **fields}
    return tuple(PoolReplica(id=f"small-{at}", **values) for at in range(count))  # type: ignore[arg-type]


def starting(count: int) -> tuple[PoolReplica, ...]:
    return tuple(PoolReplica(id=f"new-{at}", phase=ReplicaPhase.STARTING, age=10.0) for at in range(count))


class Pool:
    """A pool that is looked at every 10 s, and follows each decision at once unless told otherwise."""

    def __init__(self, replicas: tuple[PoolReplica, ...], bounds: PoolBounds = BOUNDS) -> None:
        self.replicas = replicas
        self.bounds = bounds
        self.policy = ScalePolicy()
        self.memory = PoolMemory()
        self.time = 0.0

    def look(self, offered: float = 0.0, **fields: object) -> ScaleDecision:
        """Decide once. `offered`: work in replicas."""
        self.time += 10
        values = {"replicas": self.replicas, "offered": 10 * offered, **fields}
        signal = PoolSignal(time=self.time, **values)  # type: ignore[arg-type]
        decision, self.memory = decide(signal, self.memory, self.bounds, self.policy)
        return decision

    def run(self, seconds: float, offered: float = 0.0, **fields: object) -> ScaleDecision:
        for _ in range(round(seconds / 10)):
            decision = self.look(offered, **fields)
            self.replicas = ready(decision.desired) if decision.desired != len(self.replicas) else self.replicas
        return decision


def kinds(decision: ScaleDecision) -> list[str]:
    return [reason.kind.value for reason in decision.reasons]


def test_constant_work_gets_the_staffing_rule_s_number() -> None:
    """9 / 0.85 + 1.5 = 12.09."""
    assert Pool(ready(1)).run(600, 9.0).desired == 13


def test_replicas_that_start_fast_may_be_busier() -> None:
    shares = [ScalePolicy(start_seconds=seconds).busy_share for seconds in (5, 30, 105, 180, 600)]
    assert shares == pytest.approx([0.9, 0.9, 0.875, 0.85, 0.85])
    assert ScalePolicy(start_seconds=30, utilisation=0.7).busy_share == 0.7


def test_growth_comes_at_once() -> None:
    pool = Pool(ready(10))
    pool.run(600, 7.0)
    assert pool.look(40.0).desired > 20


def test_a_pool_shrinks_after_the_hold_to_what_it_needs() -> None:
    pool = Pool(ready(13))
    pool.run(900, 9.0)
    assert pool.run(290, 0.0).desired == 13
    assert pool.run(600, 0.0).desired == 1


def test_a_controller_without_memory_does_not_shrink_before_the_hold_has_passed() -> None:
    pool = Pool(ready(13))
    assert pool.run(290).desired == 13
    assert pool.run(30).desired == 1


def test_without_a_signal_a_pool_keeps_its_size() -> None:
    pool = Pool(ready(13))
    pool.run(900, 9.0)
    decision = pool.run(3600, 0.0, known=False)
    assert decision.desired == 13
    assert kinds(decision) == ["no_signal"]


def test_a_pool_that_may_sleep_does_so_after_a_while_without_requests() -> None:
    pool = Pool(ready(1), PoolBounds(min_replicas=0, max_replicas=3))
    assert pool.run(600).desired == 1
    assert pool.run(310).desired == 0
    assert pool.look(wanted=1).desired == 1


def test_replicas_on_machines_that_stay_are_the_fewest_until_the_pool_sleeps() -> None:
    pool = Pool(ready(5), PoolBounds(min_replicas=0, max_replicas=10, on_demand=3))
    assert pool.run(400).desired == 3
    assert pool.look().reasons[-1].text == "on_demand_replicas is 3, not 1"
    assert pool.run(600).desired == 0


def test_the_victims_are_spot_machines_then_those_with_the_least_to_lose() -> None:
    pool = Pool(())
    pool.replicas = (
        *ready(1),
        PoolReplica(id="busy-spot", phase=ReplicaPhase.READY, age=1.0, slots=64, in_flight=9, spot=True),
        PoolReplica(id="busy", phase=ReplicaPhase.READY, age=1.0, slots=64, in_flight=3),
        PoolReplica(id="known", phase=ReplicaPhase.READY, age=1.0, slots=64, in_flight=0, unique_prefix=5),
    )
    for _ in range(31):
        decision = pool.look()
        assert decision.desired == 4 - len(decision.victims)
    assert decision.victims == ("busy-spot", "small-0", "known")


def test_nothing_shrinks_that_the_others_could_not_hold() -> None:
    """A large spot machine would go first, but has more in flight than the small ones have slots for."""
    large = PoolReplica(id="large", phase=ReplicaPhase.READY, age=1.0, slots=256, in_flight=100, spot=True)
    pool = Pool((large, *ready(3, slots=32)))
    for _ in range(40):
        decision = pool.look()
    assert (decision.desired, decision.victims) == (4, ())
    assert "survivors" in kinds(decision)


def test_slots_in_use_have_a_floor_of_their_own() -> None:
    pool = Pool(ready(4, in_flight=40))
    for _ in range(40):
        decision = pool.look()
    assert (decision.desired, len(decision.victims)) == (3, 1)
    assert kinds(decision)[-1] == "slots"


def test_starting_replicas_are_not_asked_for_again() -> None:
    pool = Pool((*ready(5), *starting(8)))
    assert pool.run(600, 9.0).desired == 13


def test_a_target_that_is_not_met_for_three_starts_falls_back_until_a_replica_comes() -> None:
    pool = Pool(ready(2))
    for _ in range(60):
        decision = pool.look(9.0)
    assert decision.desired == 3
    assert [reason.kind for reason in decision.reasons if reason.alert] == ["stuck"]
    pool.replicas = ready(3)
    assert pool.look(9.0).desired == 13


def test_the_budget_pays_draining_replicas_too() -> None:
    bounds = PoolBounds(max_replicas=100, budget=20.0, price=2.0)
    pool = Pool((*ready(6), PoolReplica(id="old", phase=ReplicaPhase.DRAINING, age=5.0)), bounds)
    for _ in range(30):
        decision = pool.look(20.0)
    assert decision.desired == 9
    assert "budget" in kinds(decision)


@pytest.mark.parametrize(
    ("on_demand", "spots", "draining", "desired"),
    [
        (0, 0, False, 6),  # 4 + 5 * 1.5 = 11.5
        (1, 5, False, 6),  # as many as there are
        (1, 5, True, 6),  # those that run are not given up for one that drains
        (2, 0, False, 4),  # 4 + 4 + 1.5 + 1.5 = 11
    ],
)
def test_spot_machines_have_a_price_of_their_own(on_demand: int, spots: int, draining: bool, desired: int) -> None:
    bounds = PoolBounds(max_replicas=100, on_demand=on_demand, budget=12.0, price=4.0, spot_price=1.5)
    old = (PoolReplica(id="old", phase=ReplicaPhase.DRAINING, age=5.0),) if draining else ()
    spot = tuple(replace(each, id=f"spot-{each.id}") for each in ready(spots, spot=True))
    pool = Pool((*ready(1), *spot, *old), bounds)
    for _ in range(30):
        decision = pool.look(20.0)
    assert decision.desired == desired
    assert "budget" in kinds(decision)


def test_keys_and_values_have_a_floor_of_their_own() -> None:
    pool = Pool(ready(5, kv_share=1.0))
    assert pool.look(1.0).desired == 6


def test_a_slow_first_token_adds_a_replica_a_minute() -> None:
    pool = Pool(ready(2))
    before = pool.run(600, 1.0).desired
    assert pool.run(60, 1.0, ttft_p95=3.0).desired == before
    assert pool.run(10, 1.0, ttft_p95=3.0).desired == before + 1


def test_a_first_token_that_no_replica_makes_faster_adds_a_quarter_at_most() -> None:
    pool = Pool(ready(10))
    pool.run(600, 8.0)
    assert pool.run(3600, 8.0, ttft_p95=9.0).desired == 14
