"""Who loses its KV for whom, how often, and that everybody still ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Request, State
from engine.scheduling.config import POLICIES, SchedulerConfig
from engine.wire import PolicyName
from tests.amounts import examples
from tests.engine.scheduler_bench import Bench


def test_the_victim_is_who_has_least_to_compute_again_after_its_shared_prefix() -> None:
    """The one with more tokens computed shares most of them with the first in line, so that they stay cached."""
    bench = Bench(blocks=7, step_tokens=64, policy="fcfs", max_running=3)
    prefix = list(range(32))
    first = bench.add("first", [*prefix, 1], max_tokens=60)
    bench.step()
    shares = bench.add("shares", [*prefix, 2], max_tokens=40)
    alone = bench.add("alone", [9] * 20, max_tokens=40)
    while not (shares.preemptions or alone.preemptions):
        bench.step()
    assert (first.preemptions, shares.preemptions, alone.preemptions) == (0, 1, 0)
    bench.run()
    bench.assert_correct()


def test_a_tenant_with_a_lower_counter_takes_blocks_from_one_with_a_higher() -> None:
    """Whoever came first of a tenant that has had more gives way, except the first in line."""
    bench = Bench(blocks=8, policy="fair", max_running=4)
    for number in range(3):
        bench.add(f"greedy-{number}", 15, max_tokens=60, tenant="greedy")
    for _ in range(5):
        bench.step()
    polite = bench.add("polite", 15, max_tokens=40, tenant="polite")
    while polite.finish is None:
        bench.step()
    assert polite.preemptions == 0
    assert bench.requests["greedy-0"].preemptions == 0
    assert bench.scheduler.preemptions > 0
    bench.run()
    bench.assert_correct()


def _full(max_running: int = 4, **config: object) -> Bench:
    """All rows taken by one tenant's requests that decode."""
    bench = Bench(blocks=64, policy="fair", max_running=max_running, **config)
    for number in range(2 * max_running):
        bench.add(f"greedy-{number}", 3, max_tokens=100, tenant="greedy")
    for _ in range(3):
        bench.step()
    assert len(bench.scheduler.running) == max_running
    return bench


def test_a_tenant_below_its_share_gets_rows_of_one_above_at_once() -> None:
    bench = _full()
    for number in range(3):
        bench.add(f"polite-{number}", 3, tenant="polite", max_tokens=9)
    ran = bench.step()
    assert sorted(id for id in ran if id.startswith("polite")) == ["polite-0", "polite-1"], "half of four rows"
    assert "greedy-0" in ran, "the first in line"
    assert len(bench.plan.preempted) == 2
    bench.run()
    bench.assert_correct()


def test_a_weight_is_a_share() -> None:
    bench = _full()
    for number in range(4):
        bench.add(f"polite-{number}", 3, tenant="polite", max_tokens=9, weight=3.0)
    assert sum(id.startswith("polite") for id in bench.step()) == 3


def test_tenants_with_nothing_running_get_a_row_each_until_the_other_is_at_its_share() -> None:
    """Five tenants on four rows: a share is less than a row."""
    bench = _full()
    for number in range(4):
        bench.add(f"polite-{number}", 3, tenant=f"polite-{number}", max_tokens=90)
    for _ in range(9):
        ran = bench.step()
        assert sorted(ran) == ["greedy-0", "polite-0", "polite-1", "polite-2"]
    assert bench.scheduler.preemptions == 3


def test_a_better_class_gets_rows_of_a_lower_one() -> None:
    bench = _full()
    for number in range(9):
        bench.add(f"premium-{number}", 3, tenant="greedy", max_tokens=9, service="premium")
    assert sorted(bench.step()) == ["premium-0", "premium-1", "premium-2", "premium-3"]


def test_a_lower_class_gets_none_of_a_better_one() -> None:
    bench = _full()
    bench.add("batch", 3, tenant="polite", max_tokens=9, service="batch")
    assert "batch" not in bench.step()
    assert bench.scheduler.preemptions == 0


def test_a_tenant_below_its_share_gets_blocks_of_one_above() -> None:
    bench = Bench(blocks=12, policy="fair", max_running=8, step_tokens=200)
    for number in range(3):
        bench.add(f"greedy-{number}", 46, max_tokens=16, tenant="greedy")
    bench.step()
    assert bench.scheduler.pool.available < 6
    bench.add("polite", 60, max_tokens=2, tenant="polite")
    assert "polite" in bench.step()
    assert [request.id for request in bench.plan.preempted] == ["greedy-2"]
    bench.run()
    bench.assert_correct()


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_in_one_line_nobody_who_waits_preempts_anybody(policy: PolicyName) -> None:
    bench = Bench(blocks=64, policy=policy, max_running=2)
    for number in range(4):
        bench.add(str(number), 3, max_tokens=30, tenant="greedy", service="batch")
    bench.step()
    bench.add("new", 3, tenant="polite", service="premium")
    bench.run()
    assert bench.scheduler.preemptions == 0


def test_who_has_been_preempted_as_often_as_allowed_keeps_its_blocks_to_the_end() -> None:
    bench = Bench(blocks=3, policy="fcfs", max_preemptions=1)
    bench.add("first", 16, max_tokens=20)
    victim = bench.add("victim", 8, max_tokens=20)
    while not victim.preemptions:
        bench.step()
    while victim.state is State.WAITING:
        bench.step()
    assert len(victim.block_table) == victim.reserved_blocks == 2
    bench.add("third", 8, max_tokens=20)
    bench.run()
    assert victim.preemptions == 1
    assert victim.reserved_blocks == 0
    bench.assert_correct()


def test_none_is_preempted_where_that_is_forbidden() -> None:
    bench = Bench(blocks=3, policy="fair", max_preemptions=0)
    for number in range(5):
        bench.add(str(number), 8, max_tokens=30, tenant=str(number % 2))
    bench.run()
    assert bench.scheduler.preemptions == 0
    bench.assert_correct()


Load = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 40), st.sampled_from("abc"), st.integers(0, 30)),
    min_size=2,
    max_size=14,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(20))
@given(Load, st.integers(7, 12), st.integers(0, 2))
def test_nobody_is_preempted_too_often_and_the_first_in_line_always_progresses(
    policy: PolicyName, load: list[tuple[int, int, str, int]], blocks: int, limit: int
) -> None:
    """However small the cache. All requests are of one class, so that nobody gets ahead of the first in line."""
    bench = Bench(blocks, policy=policy, max_preemptions=limit, max_running=5, step_tokens=24)
    coming = sorted(enumerate(load), key=lambda entry: entry[1][3])
    for step in range(3000):
        while coming and coming[0][1][3] <= step:
            index, (prompt, output, tenant, _) = coming.pop(0)
            bench.add(str(index), prompt, output, tenant=tenant)
        if not coming and not len(bench.scheduler):
            break
        first: Request | None = next(iter(bench.scheduler.running), None)
        ran = bench.step()
        assert first is None or first.id in ran or min(row.request.rank for row in bench.plan.rows) < first.rank
    else:
        pytest.fail("somebody starved")
    assert all(request.preemptions <= limit for request in bench.requests.values())
    bench.assert_correct()


def test_a_negative_number_of_preemptions_is_refused() -> None:
    with pytest.raises(ValueError, match="max_preemptions"):
        SchedulerConfig(blocks=1, max_preemptions=-1)
