"""Rules that choose a replica: the gateway's own, and those of others for comparison."""

from __future__ import annotations

import random
from collections.abc import Callable

from bench.replica_simulation import Node, ReplicaPool, Rule
from gateway.engines.placement import Placement

OURS = "ours"


def ours(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
    """The gateway's choice."""
    return placement.choice.order[0]


def round_robin() -> Rule:
    count = -1

    def rule(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
        nonlocal count
        count += 1
        return list(pool.nodes)[count % len(pool.nodes)]

    return rule


def power_of_two(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
    return min(chance.sample(list(pool.nodes.values()), 2), key=lambda node: node.in_flight.tokens).name


def least_loaded(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
    return _best(pool, chance, lambda node: -node.in_flight.tokens)


def longest_prefix(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
    return max(pool.nodes, key=lambda name: placement.matched.get(name, 0))


def match_minus_load(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
    """`loadaware` of vLLM's production stack with its default beta of 1; its loads are tokens here, not requests, which
    serves it better."""
    mean = sum(node.in_flight.tokens for node in pool.nodes.values()) / len(pool.nodes)
    return _best(pool, chance, lambda node: _match(placement, node) - (node.in_flight.tokens - mean) / max(1.0, mean))


def llm_d(pool: ReplicaPool, placement: Placement, chance: random.Random) -> str:
    """llm-d's prefix-cache scorer with weight 2 and its queue scorer with weight 1."""
    waiting = {name: max(0, node.in_flight.requests - 1) for name, node in pool.nodes.items()}
    most, span = max(waiting.values()), max(waiting.values()) - min(waiting.values())
    return _best(
        pool,
        chance,
        lambda node: 2 * _match(placement, node) + ((most - waiting[node.name]) / span if span else 1.0),
    )


RULES: dict[str, Callable[[], Rule]] = {
    "round robin": round_robin,
    "power of two": lambda: power_of_two,
    "least loaded": lambda: least_loaded,
    "longest prefix": lambda: longest_prefix,
    "match - load": lambda: match_minus_load,
    "llm-d": lambda: llm_d,
    OURS: lambda: ours,
}


def _match(placement: Placement, node: Node) -> float:
    return placement.matched.get(node.name, 0) / placement.prompt_tokens


def _best(pool: ReplicaPool, chance: random.Random, score: Callable[[Node], float]) -> str:
    return max(pool.nodes.values(), key=lambda node: (score(node), chance.random())).name
