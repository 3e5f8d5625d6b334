"""The simulation's promises, and the bench on a few requests of each kind, real engines and a gateway included."""

from __future__ import annotations

import dataclasses

import pytest

from bench import replica_gateway
from bench.replica_engines import SERVICE, measure
from bench.replica_gateway import scaled
from bench.replica_simulation import (
    ReplicaArrival,
    ReplicaCost,
    by_score,
    ceiling,
    least_loaded,
    longest_prefix,
    round_robin,
    simulate,
)
from bench.replica_workload import Service, made_up
from router.replica import ReplicaPolicy

TWICE = [ReplicaArrival(0.0, (1, 2, 3), 150, 10), ReplicaArrival(5.0, (1, 2, 4), 150, 10)]


def test_one_replica_reuses_what_it_has_computed() -> None:
    run = simulate(TWICE, round_robin(), replicas=1, block=50, cost=ReplicaCost(prefill=100, decode=10))
    assert [each.hits for each in run.outcomes] == [0, 2]
    assert run.ttfts == pytest.approx([1.5, 0.5])
    assert (run.hit_ratio, run.computed) == (ceiling(TWICE), 200)


def test_who_waits_waits_for_prompt_and_answer() -> None:
    together = [ReplicaArrival(0.0, (1,), 50, 10), ReplicaArrival(0.0, (2,), 50, 10)]
    run = simulate(together, round_robin(), replicas=1, block=50, cost=ReplicaCost(prefill=100, decode=10))
    assert run.ttfts == pytest.approx([0.5, 2.0])


def test_a_small_cache_gives_up_what_was_not_used_for_longest() -> None:
    arrivals = [
        ReplicaArrival(float(at), (10 * name, 10 * name + 1), 100, 1) for at, name in enumerate((1, 2, 1, 3, 2))
    ]
    run = simulate(
        arrivals, round_robin(), replicas=1, capacity=4, block=50, cost=ReplicaCost(prefill=1000, decode=1000)
    )
    assert [each.hits for each in run.outcomes] == [0, 0, 2, 0, 0]


def test_the_rule_finds_prefixes_without_sending_all_to_one() -> None:
    """What it is for, on a minute of the made-up service."""
    service = Service(seconds=60.0)
    arrivals = made_up(service, seed=3)
    ours, load, prefix = (
        simulate(arrivals, rule, capacity=6000, block=service.block)
        for rule in (by_score(ReplicaPolicy()), least_loaded, longest_prefix)
    )
    assert ours.hit_ratio > 1.3 * load.hit_ratio
    assert ours.imbalance < 1.5 < prefix.imbalance
    assert ours.hit_ratio <= ceiling(arrivals)


def test_the_made_up_service_repeats_what_was_said() -> None:
    """Every later turn begins with the turn before it, but for a block that was not full."""
    arrivals = made_up(Service(seconds=20.0), seed=1)
    assert arrivals == made_up(Service(seconds=20.0), seed=1)
    assert all(len(each.blocks) == -(-each.prompt // 64) for each in arrivals)
    assert ceiling(arrivals) > 0.5


@pytest.mark.anyio
@pytest.mark.deep
async def test_real_engines_find_what_the_rule_expects() -> None:
    """Two processes: ours finds more than round robin, which sends each turn of a conversation elsewhere."""
    service = dataclasses.replace(SERVICE, seconds=5.0)
    found = await measure(
        2, {"round robin": round_robin, "ours": lambda: by_score(ReplicaPolicy())}, service, repeats=1
    )
    by_rule = {line.rule: line.cached for line in found.lines}
    assert 0 < by_rule["round robin"] < by_rule["ours"] <= 1
    assert found.markdown()


def test_whole_conversations_are_taken_of_a_trace() -> None:
    """In their order, smaller and in less time."""
    talks = [(0, talk, *range(1000 * talk, 1000 * talk + turn)) for turn in range(1, 4) for talk in range(1, 200)]
    recorded = [ReplicaArrival(float(at), blocks, 512 * len(blocks), 320) for at, blocks in enumerate(talks)]
    taken = scaled(recorded, parts=10, seconds=6.0)
    kept = {each.blocks[1] for each in taken}
    assert 5 < len(kept) < 40 and len(taken) == 3 * len(kept)
    assert [each.at for each in taken] == sorted(each.at for each in taken) and taken[-1].at == 6.0
    assert all((each.prompt, each.answer) == (16 * len(each.blocks), 10) for each in taken)


@pytest.mark.anyio
@pytest.mark.deep
async def test_a_gateway_finds_what_its_engines_hold() -> None:
    """A real one before two processes: the second turn of each of four conversations repeats the first."""
    first = [ReplicaArrival(0.0, tuple(range(10 * talk, 10 * talk + 5)), 80, 4) for talk in range(4)]
    second = [ReplicaArrival(4.0, (*each.blocks, 10_000 + number), 96, 4) for number, each in enumerate(first)]
    found = await replica_gateway.measure(2, [*first, *second], repeats=1, rules={"ours": {}})
    (line,) = found.lines
    assert 0.3 < line.cached < 0.5 < found.ceiling + 0.1
    assert 1 <= line.imbalance < 2
    assert found.markdown()
