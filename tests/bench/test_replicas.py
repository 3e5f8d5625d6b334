"""The simulation's promises, and the bench on a few requests of each kind, real engines and a gateway included."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from bench import replica_gateway
from bench.replica_engines import SERVICE, measure
from bench.replica_gateway import scaled
from bench.replica_rules import OURS, RULES, least_loaded, llm_d, longest_prefix, match_minus_load, ours, round_robin
from bench.replica_simulation import (
    MODEL,
    ReplicaArrival,
    ReplicaCost,
    ReplicaPool,
    SimulatedPool,
    ceiling,
    simulate,
)
from bench.replica_workload import Service, made_up
from bench.replicas import Scenario, main, smaller
from engine.cache.prefix_keys import block_hashes, chain_root, pack_numbers
from engine.wire import Blocks
from gateway.engines.placement import Placement, salt_of
from router.replica import ReplicaPolicy

TWICE = [ReplicaArrival(0.0, (1, 2, 3), 144, 10), ReplicaArrival(5.0, (1, 2, 4), 144, 10)]
ONE = SimulatedPool(replicas=1, block=48, cost=ReplicaCost(prefill=96, decode=10))


def test_one_replica_reuses_what_it_has_computed() -> None:
    run = simulate(TWICE, round_robin(), ONE)
    assert [each.hits for each in run.outcomes] == [0, 2]
    assert run.ttfts == pytest.approx([1.5, 0.5])
    assert (run.hit_ratio, run.computed) == (ceiling(TWICE), 192)


def test_who_waits_waits_for_prompt_and_answer() -> None:
    together = [ReplicaArrival(0.0, (1,), 48, 10), ReplicaArrival(0.0, (2,), 48, 10)]
    assert simulate(together, round_robin(), ONE).ttfts == pytest.approx([0.5, 2.0])


def test_a_small_cache_gives_up_what_was_not_used_for_longest() -> None:
    arrivals = [ReplicaArrival(float(at), (10 * name, 10 * name + 1), 96, 1) for at, name in enumerate((1, 2, 1, 3, 2))]
    fast = dataclasses.replace(ONE, capacity=4, cost=ReplicaCost(prefill=1000, decode=1000))
    assert [each.hits for each in simulate(arrivals, round_robin(), fast).outcomes] == [0, 0, 2, 0, 0]


@pytest.mark.parametrize("capacity", [40, 6000])
def test_the_index_knows_what_the_replicas_hold(capacity: int) -> None:
    """While they compute and when all have ended, whether their caches are large or always full."""
    service = Service(seconds=10.0)
    pools: list[ReplicaPool] = []

    def watched(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
        pools.append(pool)
        pool.placer.index.check_integrity()
        return ours(pool, placement, chance)

    simulate(made_up(service, seed=1), watched, SimulatedPool(2, capacity, service.block))
    (pool,) = set(pools)
    for name, node in pool.nodes.items():
        assert 0 < pool.placer.index.blocks(name) == sum(map(len, node.cache)) // 8
        assert len(node.cache) <= capacity


def test_the_rule_finds_prefixes_without_sending_all_to_one() -> None:
    """What it is for, on a minute of the made-up service."""
    arrivals = made_up(Service(seconds=60.0), seed=3)
    scenario = smaller(Scenario("talks", lambda seed: arrivals, SimulatedPool(capacity=6000, block=64)))
    gateway, load, prefix = (
        scenario.runs(rule, 1, ReplicaPolicy())[0] for rule in (OURS, "least loaded", "longest prefix")
    )
    assert gateway.hit_ratio > 1.3 * load.hit_ratio
    assert gateway.imbalance < 1.5 < prefix.imbalance and gateway.work_imbalance < 1.3
    assert gateway.hit_ratio <= ceiling(arrivals)


def test_long_prompts_are_found_to_their_end() -> None:
    """Two prompts of 40,000 tokens that differ in the last thousand."""
    blocks = tuple(range(78))
    arrivals = [ReplicaArrival(0.0, (*blocks, 100), 40_448, 10), ReplicaArrival(60.0, (*blocks, 200), 40_448, 10)]
    run = simulate(arrivals, ours, SimulatedPool(replicas=4))
    assert [each.hits for each in run.outcomes] == [0, 78]
    assert run.outcomes[0].replica == run.outcomes[1].replica


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_serves_a_trace_in_full_size_and_smaller_alike(rule: str) -> None:
    talks = [(0, talk, *range(1000 * talk, 1000 * talk + turn)) for turn in range(1, 4) for talk in range(1, 30)]
    recorded = [ReplicaArrival(0.2 * at, blocks, 512 * len(blocks), 320) for at, blocks in enumerate(talks)]
    scenario = Scenario("talks", lambda seed: recorded, SimulatedPool(replicas=4))
    row, small = (each.row(rule, 1) for each in (scenario, smaller(scenario)))
    assert small.hit_ratio.mean == pytest.approx(row.hit_ratio.mean)
    assert small.ttft_p50.mean == pytest.approx(row.ttft_p50.mean)


def test_rules_weigh_prefixes_and_queues_as_their_origins_do() -> None:
    """llm-d's scorers stay with a prefix that the production stack's rule leaves for an idle replica."""
    pool = ReplicaPool(2, 10_000, ReplicaPolicy())
    prompt = list(range(1600))
    keys = block_hashes(chain_root(MODEL, len(prompt), None, salt_of("")), prompt)
    pool.placer.told("node-0", Blocks(stored=pack_numbers(keys[:60])))
    placement, chance = pool.place(prompt, 0), random.Random(1)
    with pool.nodes["node-0"].in_flight.carry(1, 1), pool.nodes["node-0"].in_flight.carry(1, 1):
        assert llm_d(pool, placement, chance) == longest_prefix(pool, placement, chance) == "node-0"
        assert match_minus_load(pool, placement, chance) == least_loaded(pool, placement, chance) == "node-1"


def test_the_made_up_service_repeats_what_was_said() -> None:
    """Every later turn begins with the turn before it, but for a block that was not full."""
    arrivals = made_up(Service(seconds=20.0), seed=1)
    assert arrivals == made_up(Service(seconds=20.0), seed=1)
    assert all(len(each.blocks) == -(-each.prompt // 64) for each in arrivals)
    assert ceiling(arrivals) > 0.5


def test_tables_and_a_picture_are_published(tmp_path: Path) -> None:
    """Of a trace alone, and of what follows from it."""
    lines = [
        {"timestamp": 500 * at, "input_length": 1500, "output_length": 50, "hash_ids": [0, at % 7, 100 + at]}
        for at in range(60)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    main(
        ["--trace", str(path), "--synthetic", str(path), "--requests", "60", "--seeds", "1", "--output", str(tmp_path)]
    )
    workloads = json.loads((tmp_path / "replicas.json").read_bytes())["workloads"]
    assert [(each["replicas"], each["capacity"]) for each in workloads[:5]] == [
        (8, 3000),
        (8, 1000),
        (8, 300),
        (32, 3000),
        (32, 300),
    ]
    assert len(workloads) == 11 and len(workloads[0]["rows"]) == len(RULES)
    assert "## The synthetic trace: 8 replicas of 3,000 blocks" in (tmp_path / "replicas.md").read_text()
    assert (tmp_path / "replicas.png").stat().st_size > 1000


@pytest.mark.anyio
@pytest.mark.deep
async def test_real_engines_find_what_the_rule_expects() -> None:
    """Two processes: ours finds more than round robin, which sends each turn of a conversation elsewhere."""
    service = dataclasses.replace(SERVICE, seconds=5.0)
    found = await measure(2, {name: RULES[name] for name in ("round robin", OURS)}, service, repeats=1)
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
