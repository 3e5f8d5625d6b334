"""Requests for a pool of simulated replicas: a recorded trace, and a made-up service with many tenants.

The made-up one is there because the trace shows one service only, whose users share little. Tenants are used by a zipf
law; each has system prompts that all its conversations begin with; a conversation has several turns, each of which
repeats everything before it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bench.replica_simulation import ReplicaArrival
from load.traces import paced, read_trace

TRACE_BLOCK = 512
"""Tokens of one of the trace's blocks."""


@dataclass(frozen=True, slots=True)
class Service:
    """The made-up service."""

    tenants: int = 60
    zipf: float = 1.1
    """The n-th tenant sends 1/n**zipf as much as the first."""
    prompts: int = 3
    """Number of a tenant's system prompts, the first of which half of its conversations have."""
    system_tokens: tuple[int, int] = (200, 4000)
    turns: float = 4.0
    """Mean turns per conversation."""
    question_tokens: int = 60
    document_tokens: int = 2500
    documents: float = 0.2
    """Share of the turns that bring a document."""
    answer_tokens: int = 220
    think: float = 25.0
    """Mean seconds between an answer and the next question."""
    conversations: float = 4.5
    """Conversations that begin per second."""
    seconds: float = 600.0
    block: int = 64


def trace(path: Path, requests: int, *, speed: float = 1.0) -> list[ReplicaArrival]:
    """Return the first requests of a trace; `speed` is how much faster than recorded time passes."""
    return [
        ReplicaArrival(each.start, each.blocks, each.input_tokens, each.output_tokens)
        for each in paced(read_trace(path)[:requests], speed)
    ]


def made_up(service: Service, seed: int) -> list[ReplicaArrival]:
    """Return all requests of a service's conversations, in order."""
    chance = random.Random(seed)
    fresh = count()
    weights = [1 / number**service.zipf for number in range(1, service.tenants + 1)]
    systems = [
        [_blocks(chance.randint(*service.system_tokens), service.block, fresh) for _ in range(service.prompts)]
        for _ in range(service.tenants)
    ]
    arrivals: list[ReplicaArrival] = []
    began = 0.0
    while (began := began + chance.expovariate(service.conversations)) < service.seconds:
        prompts = chance.choices(systems, weights)[0]
        blocks, tokens = prompts[0] if chance.random() < 0.5 else chance.choice(prompts)
        arrivals += _conversation(service, chance, began, blocks, tokens, fresh)
    return sorted(arrivals, key=lambda arrival: arrival.at)


def _conversation(
    service: Service, chance: random.Random, at: float, blocks: tuple[int, ...], tokens: int, fresh: Iterator[int]
) -> Iterator[ReplicaArrival]:
    while True:
        said = _length(chance, service.question_tokens)
        if chance.random() < service.documents:
            said += _length(chance, service.document_tokens)
        answer = _length(chance, service.answer_tokens)
        tokens += said
        # A block that was not full is another block once more tokens are in it.
        blocks = (*blocks[: (tokens - said) // service.block], *_new(tokens, tokens - said, service.block, fresh))
        yield ReplicaArrival(at, blocks, tokens, answer)
        if chance.random() < 1 / service.turns:
            return
        blocks = (*blocks[: tokens // service.block], *_new(tokens + answer, tokens, service.block, fresh))
        tokens += answer
        at += answer / 50 + chance.expovariate(1 / service.think)


def _blocks(tokens: int, block: int, fresh: Iterator[int]) -> tuple[tuple[int, ...], int]:
    return tuple(next(fresh) for _ in range(-(-tokens // block))), tokens


def _new(tokens: int, before: int, block: int, fresh: Iterator[int]) -> list[int]:
    """Return the blocks of what is said after `before` tokens."""
    return [next(fresh) for _ in range(-(-tokens // block) - before // block)]


def _length(chance: random.Random, mean: int) -> int:
    return max(1, round(chance.lognormvariate(0, 0.8) * mean / 1.377))  # 1.377 is that distribution's own mean
