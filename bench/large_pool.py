"""Pools of 10 to 1,000 replicas behind one gateway's router and prefix index: what a decision costs and is worth.

    python -m bench.large_pool

simulates the made-up service of `bench.replicas` (tenants by a zipf law, conversations that repeat what was said), with
the same load per replica in pools of each size. Which replica gets a request is decided as in the gateway: by
`router/route.py` and `gateway/engines/placement.py`. Seconds are those of the thread's CPU. What the index takes is
measured in a process that fills one with as many blocks for each replica, in pieces as engines tell of them.
"""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from bench.measure import ResidentMemory, quantile
from bench.replica_rules import least_loaded
from bench.replica_simulation import ReplicaPool, SimulatedPool, ceiling, simulate
from bench.replica_workload import Service, made_up
from bench.report import Environment, options, publish, table
from cache.prefix import PrefixIndex
from gateway.engines.placement import Placement
from router.complexity import Complexity
from router.route import RouteCandidate, RouteRequest, RoutingPolicy, route

SIZES = (10, 100, 1000)
CAPACITY = 6000
"""Blocks of a replica's prefix cache."""
SERVICE = Service(conversations=0.55, think=3.0, seconds=10.0)
"""Conversations are those of one replica; a pool has so many times as many, of so many times as many tenants."""
TENANTS_EACH = 6
INDEX_BLOCKS = 2000
"""Blocks of each replica in the index whose memory is measured."""
_SHARED = 0.25
"""Share of them that all replicas hold."""
_TOLD = 60
"""Blocks that an engine tells of at a time: those of a prompt of about a thousand tokens."""

_REQUEST = RouteRequest(model="small", complexity=Complexity(0.1, ()))
_POLICY = RoutingPolicy()


class IndexCost(msgspec.Struct, frozen=True):
    """What one block of one replica takes in the index."""

    bytes: float
    seconds: float
    """CPU seconds to note that it is stored, and later that it is not."""


class LargePool(msgspec.Struct, frozen=True):
    """Results of one size."""

    replicas: int
    requests: int
    ceiling: float
    """Share of blocks that one unbounded cache would hold."""
    hit_ratio: float
    by_load: float
    """Share of blocks found where load alone decides."""
    imbalance: float
    """Computed tokens of the busiest replica over the mean."""
    ttft_p50: float
    ttft_p99: float
    decision_p50: float
    decision_p99: float
    """CPU seconds of one decision."""
    index: IndexCost


class LargePools(msgspec.Struct, frozen=True):
    environment: Environment
    pools: list[LargePool]


def service_of(replicas: int) -> Service:
    """Return the service whose load keeps so many replicas as busy as its own keeps one."""
    return dataclasses.replace(SERVICE, conversations=replicas * SERVICE.conversations, tenants=TENANTS_EACH * replicas)


def by_gateway(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
    """Choose the tier as a gateway does, and in it the replica of the placement."""
    candidates = [
        RouteCandidate(
            replica=node.name,
            tier="small",
            model=placement.pool,
            context=1 << 20,
            prompt_tokens=placement.prompt_tokens,
            load=node.in_flight.tokens,
        )
        for node in pool.nodes.values()
    ]
    return placement.apply(route(_REQUEST, candidates, _POLICY)).replica


def measure(replicas: int) -> LargePool:
    """Simulate a pool of one size."""
    service = service_of(replicas)
    arrivals = made_up(service, seed=1)
    sizes = SimulatedPool(replicas, CAPACITY, service.block)
    ours, load = (simulate(arrivals, rule, sizes) for rule in (by_gateway, least_loaded))
    decisions = [each.placing for each in ours.outcomes]
    return LargePool(
        replicas=replicas,
        requests=len(arrivals),
        ceiling=ceiling(arrivals),
        hit_ratio=ours.hit_ratio,
        by_load=load.hit_ratio,
        imbalance=ours.work_imbalance,
        ttft_p50=quantile(ours.ttfts, 0.5),
        ttft_p99=quantile(ours.ttfts, 0.99),
        decision_p50=quantile(decisions, 0.5),
        decision_p99=quantile(decisions, 0.99),
        index=index_cost(replicas),
    )


def _fill(replicas: int) -> IndexCost:
    """Fill an index, and empty it again; memory that the process has used before and kept counts as none."""
    index, count = PrefixIndex(), replicas * INDEX_BLOCKS
    before, began = ResidentMemory().now(), time.thread_time()
    for replica in range(replicas):
        for blocks in _told(replica):
            index.stored(f"replica-{replica}", blocks)
    gained = ResidentMemory().now() - before
    for replica in range(replicas):
        for blocks in _told(replica):
            index.removed(f"replica-{replica}", blocks)
    return IndexCost(gained / count, (time.thread_time() - began) / count)


def _told(replica: int) -> Iterator[list[int]]:
    """Yield the numbers of a replica's blocks, piece by piece: first those that all hold."""
    common = int(_SHARED * INDEX_BLOCKS)
    for start in range(0, INDEX_BLOCKS, _TOLD):
        numbers = range(start, min(start + _TOLD, INDEX_BLOCKS))
        yield [1 << 50 | (0 if number < common else replica << 20) | number for number in numbers]


def index_cost(replicas: int) -> IndexCost:
    """Measure in a process of its own, whose memory nothing else has used."""
    program = f"from bench.large_pool import _fill; each = _fill({replicas}); print(each.bytes, each.seconds)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return IndexCost(*map(float, done.stdout.split()))


def markdown(result: LargePools) -> str:
    lines = [
        "# Large pools",
        "",
        "One gateway in front of simulated replicas, which serve one request after another "
        "(`bench.replica_simulation`), with the same load for each: "
        f"{SERVICE.conversations:g} conversations a second, {TENANTS_EACH} tenants. The choice is the gateway's: its "
        "prefix index and its rule. *By load*: the share of blocks that would be found if load alone decided. "
        "Imbalance: computed tokens of the busiest replica over the mean. Decisions: CPU of one thread, in which the "
        "names of the prompt's blocks are computed, too. The index: memory of a block of one replica, and CPU to note "
        "that it is stored and given up. Made by "
        "`python -m bench.large_pool`.",
        "",
        *table(
            "replicas | requests | blocks found | by load | most there are | imbalance | TTFT p50 (s) | p99 (s) | "
            "decision p50 (ms) | p99 (ms) | index, bytes per block | µs per block",
            map(_line, result.pools),
            words=0,
        ),
        "",
        f"- {result.environment}",
        "",
    ]
    return "\n".join(lines)


def _line(pool: LargePool) -> str:
    return (
        f"{pool.replicas:,} | {pool.requests:,} | {pool.hit_ratio:.1%} | {pool.by_load:.1%} | {pool.ceiling:.1%} | "
        f"{pool.imbalance:.2f} | {pool.ttft_p50:.2f} | {pool.ttft_p99:.2f} | {pool.decision_p50 * 1e3:.2f} | "
        f"{pool.decision_p99 * 1e3:.2f} | {pool.index.bytes:,.0f} | {pool.index.seconds * 1e6:.1f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=SIZES, help="sizes of the pools")
    chosen = parser.parse_args(arguments)
    pools = []
    for replicas in chosen.replicas:
        pools.append(measure(replicas))
        print(pools[-1], flush=True)
    result = LargePools(Environment.here(), pools)
    publish(chosen.output / "large-pool", markdown(result), result)


if __name__ == "__main__":
    main()
