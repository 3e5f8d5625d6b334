"""Which replica of a pool answers: the one that has most of the prompt in its prefix cache, unless it is too busy.

`score = matched prompt / prompt - beta * relative load - gamma * error rate`, of the replicas whose load lies within a
window of the least loaded one. Longest prefix alone sends everything to one replica; load alone throws the prefix
caches away. Where no replica knows any of the prompt, the least loaded one gets it. Of equal ones those in the
gateway's zone come first, then, for a request of the premium class, those on machines that stay, then one that is
drawn: gateways that see the same loads do not all choose the same replica.

The score is that of vLLM's production stack (`loadaware`), with load relative to the work that the request itself
brings: on an idle pool a known prefix is worth as many tokens of waiting as it saves.

Pure: chance comes in as a number.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct


class Replica(Struct, frozen=True, kw_only=True):
    """One replica as it was when the snapshot was taken."""

    name: str
    load: int = 0
    """Predicted tokens that the replica still has to compute for others."""
    weight: float = 1.0
    """Weight beside other replicas, above 0."""
    matched_tokens: int = 0
    """Tokens at the start of the prompt that the replica's prefix cache holds."""
    resident: bool = False
    """Whether the request's adapter is loaded on the replica."""
    error_rate: float = 0.0
    """Share of the replica's latest requests that failed, in [0, 1]."""
    sticky: bool = False
    """Whether the replica answered this conversation's last turn."""
    near: bool = False
    """Whether the replica is in the gateway's zone."""
    spot: bool = False
    """Whether the replica's machine may be taken away at short notice."""


class ReplicaPolicy(Struct, frozen=True, kw_only=True):
    """Weights of the score by which a replica is chosen."""

    beta: float = 0.5
    """Weight of load: with 0 only prefixes count, with a large value only load."""
    gamma: float = 1.0
    """Weight of the error rate."""
    window: float = 2.0
    """Largest distance from the least loaded replica, in units of the mean load."""
    sticky: float = 0.05
    """Value of staying with a conversation's last replica, as a share of a prompt."""
    adapter_tokens: int = 256
    """Value of an adapter that is loaded already, in prompt tokens."""
    eject_from: float = 0.5
    """Error rate from which a replica gets no requests while there is another one."""


class ReplicaReason(enum.StrEnum):
    """The reason of a choice, in one word."""

    ONLY = "only"
    """There is only one replica."""
    PREFIX = "prefix"
    """By score: some replica knows a part of the prompt, has the adapter, or answered the last turn."""
    LOAD = "load"
    """No replica knows any of the prompt: the least loaded one."""


class Score(Struct, frozen=True):
    """The parts of a replica's score."""

    match: float
    """Share of the prompt that need not be computed, in [0, 1]."""
    load: float
    """The replica's load relative to the mean: 0 is the mean, 1 twice as much."""
    error_rate: float
    sticky: float
    total: float


class ReplicaChoice(Struct, frozen=True):
    """The order in which replicas are tried, and why."""

    order: tuple[str, ...]
    how: ReplicaReason
    scores: dict[str, Score]
    """Score of each replica by name."""


def choose(
    replicas: Sequence[Replica],
    prompt_tokens: int,
    policy: ReplicaPolicy,
    draw: int,
    *,
    adapter: bool = False,
    premium: bool = False,
) -> ReplicaChoice:
    """Put a pool's replicas in the order in which they are to be tried.

    Args:
        replicas: at least one, all of which may be used.
        prompt_tokens: length of the prompt, at least 1.
        draw: a random number of 64 bits.
        adapter: whether the request needs one.
        premium: whether the request is of the premium class.
    """
    if len(replicas) == 1:
        return ReplicaChoice((replicas[0].name,), ReplicaReason.ONLY, {})
    pressures = [(each.load + prompt_tokens) / each.weight for each in replicas]
    mean = sum(pressures) / len(pressures)
    scores = {
        each.name: _score(each, pressure / mean - 1, prompt_tokens, policy, adapter=adapter)
        for each, pressure in zip(replicas, pressures, strict=True)
    }
    sound = [at for at, each in enumerate(replicas) if each.error_rate < policy.eject_from] or range(len(replicas))
    furthest = min(pressures[at] for at in sound) + policy.window * mean
    candidates = [replicas[at] for at in sound if pressures[at] <= furthest]
    # Of equal ones another one comes first each time.
    turn = draw % len(replicas)
    places = {each.name: (at - turn) % len(replicas) for at, each in enumerate(replicas)}

    def rank(each: Replica) -> tuple[float, bool, bool, int]:
        return -scores[each.name].total, not each.near, premium and each.spot, places[each.name]

    how = (
        ReplicaReason.PREFIX
        if any(scores[each.name].match or each.sticky for each in candidates)
        else ReplicaReason.LOAD
    )
    first = sorted(candidates, key=rank)
    taken = {each.name for each in first}
    last = sorted((each for each in replicas if each.name not in taken), key=rank)
    return ReplicaChoice(tuple(each.name for each in (*first, *last)), how, scores)


def explain(choice: ReplicaChoice, prompt_tokens: int) -> str:
    """Say for people what a choice was based on."""
    chosen = choice.order[0]
    if choice.how is ReplicaReason.ONLY:
        return f"{chosen} is the only replica"
    score = choice.scores[chosen]
    if choice.how is ReplicaReason.LOAD:
        return f"no replica knows the prompt: {chosen} has the least to do"
    return (
        f"{chosen} has {score.match:.0%} of the work on {prompt_tokens} prompt tokens behind it "
        f"at {score.load:+.0%} of the mean load (score {score.total:.2f})"
    )


def _score(each: Replica, load: float, prompt_tokens: int, policy: ReplicaPolicy, *, adapter: bool) -> Score:
    saved, work = min(each.matched_tokens, prompt_tokens), prompt_tokens
    if adapter:
        saved, work = saved + policy.adapter_tokens * each.resident, work + policy.adapter_tokens
    match = saved / work
    sticky = policy.sticky if each.sticky else 0.0
    total = match + sticky - policy.beta * load - policy.gamma * each.error_rate
    return Score(match, load, each.error_rate, sticky, total)
