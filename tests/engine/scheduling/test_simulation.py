"""What the policies promise, proven on the real scheduler with simulated steps (`scale/simulation.py`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan import StepPlan
from engine.scheduling.config import POLICIES, SchedulerConfig
from engine.scheduling.fair import Fair
from engine.scheduling.scheduler import Scheduler
from engine.wire import PolicyName
from scale.capacity import StepCost
from scale.simulation import Arrival, Simulation, jain, simulate
from tests.amounts import DEEP, examples

COST = StepCost(base=0.01, token=2e-5, row=5e-5)
"""About those of a small model on a GPU."""
_fresh = count(1)


def arrival(at: float, tenant: str, prompt: int, output: int, **fields: object) -> Arrival:
    """A request whose prompt shares nothing with any other."""
    return Arrival(at, tenant, [next(_fresh)] + [0] * (prompt - 1), output, **fields)  # type: ignore[arg-type]


def p99(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


# Bounded difference of services

ROWS, PROMPT, OUTPUT = 4, 40, 12

Tenants = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(1, PROMPT), st.integers(1, OUTPUT)),
    min_size=2,
    max_size=4,
)


@settings(max_examples=examples(15))
@given(Tenants, st.integers(ROWS, 64))
def test_tenants_that_always_wait_are_served_alike(tenants: list[tuple[float, int, int]], step_tokens: int) -> None:
    """VTC's theorem (arXiv 2401.00588, 4.4): over any interval in which two tenants always have somebody waiting, their
    services divided by their weights differ by at most 2U.

    U bounds how far their counters part. A tenant is only admitted while its counter is the lowest, which adds at most
    one prompt; beyond that only the answers of its running requests add to it, of which there are at most as many as
    rows. What is paid for but not run yet, at most the running prompts, adds to the difference of what was run.
    """
    lightest = min(weight for weight, _, _ in tenants)
    apart = (PROMPT + 2 * OUTPUT * ROWS) / lightest
    bound = 2 * apart + 2 * ROWS * PROMPT / lightest
    arrivals = [
        arrival(0.0, str(number), prompt, output, weight=weight)
        for number, (weight, prompt, output) in enumerate(tenants)
        for _ in range(40)
    ]
    served: defaultdict[str, float] = defaultdict(float)
    most: dict[str, int] = {}
    extremes: dict[tuple[str, str], tuple[float, float]] = {}
    steps = 0

    def observe(scheduler: Scheduler, plan: StepPlan, now: float) -> None:
        nonlocal steps
        policy = scheduler.waiting
        assert isinstance(policy, Fair)
        waiting = sorted({request.tenant for request in policy})
        if len(waiting) == len(tenants):
            steps += 1
            for one in waiting:
                for other in waiting:
                    counters = policy.counter("standard", one), policy.counter("standard", other)
                    assert abs(counters[0] - counters[1]) <= apart
                    difference = served[one] - served[other]
                    low, high = extremes.get((one, other), (difference, difference))
                    extremes[one, other] = min(low, difference), max(high, difference)
                    assert extremes[one, other][1] - extremes[one, other][0] <= bound
        for row in plan.rows:
            request = row.request
            done = most.get(request.id, 0)  # what is computed again is no service
            most[request.id] = max(done, min(row.start + row.count, len(request.prompt)))
            prompt = most[request.id] - done
            served[request.tenant] += (prompt + 2 * row.sample) / request.weight

    simulate(arrivals, SchedulerConfig(blocks=64, step_tokens=step_tokens, max_running=ROWS), COST, observe=observe)
    assert steps > 10


def test_in_one_line_the_difference_has_no_bound() -> None:
    """The test above would notice."""
    for policy, least in (("fcfs", 500), ("priority", 500)):
        given_to: defaultdict[str, int] = defaultdict(int)

        def observe(scheduler: Scheduler, plan: StepPlan, now: float, given: dict[str, int] = given_to) -> None:
            if len({request.tenant for request in scheduler.waiting}) == 2:
                for row in plan.rows:
                    given[row.request.tenant] += row.count

        arrivals = [arrival(0.0, tenant, 40, 2) for tenant in "ab" for _ in range(40)]
        config = SchedulerConfig(blocks=64, step_tokens=64, max_running=ROWS, policy=policy)  # type: ignore[arg-type]
        simulate(arrivals, config, COST, observe=observe)
        assert given_to["a"] - given_to["b"] > least


def test_services_follow_weights() -> None:
    arrivals = [
        arrival(0.0, name, 30, 10, weight=weight) for name, weight in (("a", 1.0), ("b", 3.0)) for _ in range(300)
    ]
    given_to: defaultdict[str, int] = defaultdict(int)

    def observe(scheduler: Scheduler, plan: StepPlan, now: float) -> None:
        if len({request.tenant for request in scheduler.waiting}) == 2:
            for row in plan.rows:
                given_to[row.request.tenant] += row.count

    simulate(arrivals, SchedulerConfig(blocks=256, step_tokens=128, max_running=8), COST, observe=observe)
    assert given_to["b"] / given_to["a"] == pytest.approx(3.0, rel=0.05)


def test_jain_s_index_is_one_for_equals_and_one_nth_for_a_monopoly() -> None:
    assert jain([3.0, 3.0, 3.0]) == 1.0
    assert jain([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([1.0, 2.0]) == pytest.approx(0.9)


def test_jain_s_index_of_three_greedy_tenants(record_property: pytest.RecordProperty) -> None:
    """One of them asks first and for most."""
    sizes = {"a": 200, "b": 100, "c": 100}
    arrivals = [arrival(0.0, name, 100, 50) for name, number in sizes.items() for _ in range(number)]
    index = {}
    for policy in POLICIES:
        config = SchedulerConfig(blocks=2000, max_running=32, step_tokens=512, policy=policy)
        index[policy] = simulate(arrivals, config, COST, window=2.0).jain
        record_property(f"jain {policy}", index[policy])
    assert index["fair"] > 0.98
    assert index["fcfs"] < 0.7


# Nobody starves


@settings(max_examples=examples(4))
@given(st.sampled_from(["standard", "batch"]), st.floats(2.0, 8.0 if DEEP else 3.0), st.floats(1.1, 3.0))
def test_under_an_endless_better_load_everybody_starts_within_a_bound(
    service: str, aging: float, overload: float
) -> None:
    """`fair`: a class gets a turn after `aging` for every level below the better one; then one row has to come free."""
    answer, rows = 20, 4
    step = COST.base + rows * (COST.row + COST.token)
    between = answer * step / rows / overload
    levels = 1 if service == "standard" else 2
    seconds = 3 * levels * aging + 5
    flood = [
        arrival(number * between, f"premium{number % 3}", 5, answer, service="premium")
        for number in range(int(seconds / between))
    ]
    lowly = arrival(1.0, "lowly", 5, answer, service=service)
    config = SchedulerConfig(
        blocks=256, max_running=rows, max_waiting=100_000, policy="fair", aging=aging, step_tokens=64
    )
    run = simulate([*flood, lowly], config, COST)
    outcome = next(outcome for outcome in run.outcomes if outcome.arrival is lowly)
    assert outcome.started is not None
    row_comes_free = answer * (COST.base + 64 * COST.token + rows * COST.row)
    assert outcome.started - lowly.at <= levels * aging + row_comes_free


def test_in_priority_order_waiting_outweighs_the_class() -> None:
    """A batch request starts before any premium one that comes more than two levels of aging later."""
    flood = [arrival(0.05 * number, "p", 5, 20, service="premium") for number in range(600)]
    lowly = arrival(1.0, "lowly", 5, 20, service="batch")
    run = simulate([*flood, lowly], _priority(aging=4.0), COST)
    started = next(outcome.started for outcome in run.outcomes if outcome.arrival is lowly)
    assert started is not None
    for outcome in run.outcomes:
        if outcome.arrival.at > lowly.at + 8.0:
            assert outcome.started is not None
            assert outcome.started >= started


def _priority(aging: float) -> SchedulerConfig:
    return SchedulerConfig(
        blocks=256, max_running=4, max_waiting=10_000, policy="priority", aging=aging, step_tokens=64
    )


def test_an_endless_row_of_new_tenants_does_not_keep_an_old_one_waiting() -> None:
    """Each comes with less on its counter than the one that has had a lot before, which still gets its turns."""
    aging, answer = 5.0, 20 * (COST.base + 64 * COST.token + 4 * COST.row)
    old = [arrival(0.0, "old", 50, 200) for _ in range(30)]
    new = [arrival(1.0 + answer / 4 * number, f"new{number}", 50, 20) for number in range(500)]  # all the engine can
    turns: list[float] = []
    running: set[str] = set()

    def observe(scheduler: Scheduler, plan: StepPlan, now: float) -> None:
        nonlocal running
        olds = {request.id for request in scheduler.running if request.tenant == "old"}
        turns.extend([now] * len(olds - running))
        running = olds

    config = SchedulerConfig(blocks=1000, max_running=4, max_waiting=10_000, step_tokens=64, aging=aging)
    simulate([*old, *new], config, COST, observe=observe)
    for earlier, later in pairwise(turns):
        assert later - earlier <= aging + 2 * answer
    assert sum(2.0 < turn < 30.0 for turn in turns) >= 4


# Nothing stands idle, nobody is preempted too often

Mixed = st.lists(
    st.tuples(
        st.floats(0, 2),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 120),
        st.integers(1, 40),
        st.sampled_from(["premium", "standard", "batch"]),
    ),
    min_size=5,
    max_size=40,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=examples(15))
@given(Mixed, st.integers(12, 40), st.integers(0, 3))
def test_nobody_waits_while_there_is_room_and_everybody_ends(
    policy: PolicyName, mixed: list[tuple[float, str, int, int, str]], blocks: int, limit: int
) -> None:
    """Work conservation: who waits does so because the rows, the step's tokens or the blocks are taken."""

    def observe(scheduler: Scheduler, plan: StepPlan, now: float) -> None:
        assert plan
        if len(scheduler.waiting):
            longest = max(request.length + request.sampling.max_tokens for request in scheduler.waiting)
            room = scheduler.pool.available - len(scheduler.running) - -(-longest // 16)
            no_block = room < 0 or any(request.reserved_blocks for request in scheduler.running)
            assert len(scheduler.running) == 6 or plan.tokens == 48 or no_block

    arrivals = [arrival(at, tenant, *sizes, service=service) for at, tenant, *sizes, service in mixed]
    config = SchedulerConfig(blocks=blocks, max_running=6, step_tokens=48, policy=policy, max_preemptions=limit)
    run = simulate(arrivals, config, COST, observe=observe)
    for outcome in run.outcomes:
        assert outcome.ended is not None
        assert outcome.preemptions <= limit


# A greedy tenant beside a polite one


def _greedy_and_polite(at: float, policy: PolicyName) -> tuple[Simulation, Simulation]:
    """The polite tenant alone, and beside one with 200 requests."""
    polite = [arrival(at, "polite", 300, 50) for _ in range(5)]
    greedy = [arrival(0.0, "greedy", 200, 150) for _ in range(200)]
    config = SchedulerConfig(blocks=2048, step_tokens=512, policy=policy)
    return simulate(polite, config, COST), simulate([*greedy, *polite], config, COST)


@settings(max_examples=examples(3))
@given(st.floats(0.1, 8))
def test_a_polite_tenant_s_first_tokens_come_at_most_twice_as_late_beside_a_greedy_one(at: float) -> None:
    """Whenever it comes beside the other one, whose prompts fill the first steps and whose answers all rows later on.

    Who begin in the same instant have equal shares: then twice as late is fair, and a little more is what it takes.
    """
    alone, beside = _greedy_and_polite(at, "fair")
    assert p99(beside.ttfts("polite")) <= 2 * p99(alone.ttfts("polite"))
    assert len(beside.ttfts("greedy")) == 200


def test_under_fcfs_it_waits_for_all_of_them() -> None:
    alone, beside = _greedy_and_polite(1.0, "fcfs")
    assert p99(beside.ttfts("polite")) > 20 * p99(alone.ttfts("polite"))


def test_fairness_costs_next_to_no_throughput() -> None:
    seconds = {policy: _greedy_and_polite(1.0, policy)[1].seconds for policy in POLICIES}
    assert seconds["fair"] <= 1.02 * seconds["fcfs"]
