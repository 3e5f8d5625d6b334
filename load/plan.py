"""What a run sends: the plan, and each planned turn. A plan and its seed always give the same turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, Literal, TypeVar, get_args

import msgspec

from load import arrivals
from load.traces import TracePoint

Protocol = Literal["chat", "responses", "responses-http"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
BLOCK_TOKENS = 512
"""Prompt tokens that one block id of a trace stands for."""
_REPEATED = 64
"""Earlier turns from which one is chosen to be asked again."""
_MIDWAY = 16
"""Most pieces of text after which a turn is cancelled or cut off; few enough that most answers have as many."""
_SEEDS = 2**31
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head service friend father power hour"
)
_WORDS = _TEXT.split()
"""Words that most tokenizers know as one token each."""
Value = TypeVar("Value")
Share = tuple[Value, float]
"""A value and its weight among others."""


class TrafficPlan(msgspec.Struct, frozen=True):
    """What is sent, apart from when. Shares are between 0 and 1."""

    models: tuple[Share[str], ...]
    """Names of models or adapters."""
    protocols: tuple[Share[Protocol], ...]
    tenants: tuple[str, ...]
    """Names of the API keys' holders, who take turns at random."""
    input_tokens: tuple[int, int] = (64, 64)
    """Least and most length of a prompt, where no trace says it."""
    output_tokens: tuple[int, int] = (64, 64)
    prompts: tuple[str, ...] = ()
    """Prompts to choose from instead of generated ones."""
    cancelled: float = 0.0
    """Share of turns that are cancelled midway."""
    dropped: float = 0.0
    """Share of turns whose connection is cut midway, and that are resumed on another one."""
    repeated: float = 0.0
    """Share of turns that ask again what an earlier one has asked, with the same seed, for the same text."""
    body: dict[str, Any] = {}
    """Fields added to every request; null takes one away."""
    seed: int = 0


class PlannedTurn(msgspec.Struct, frozen=True):
    """One turn: when it is due, what it asks, and what the client does midway."""

    number: int
    start: float
    """Seconds from the run's beginning at which it is due."""
    tenant: str
    model: str
    protocol: Protocol
    prompt: str
    output_tokens: int
    seed: int | None = None
    """Sampling seed; None: not sent."""
    cancel_after: int | None = None
    """Pieces of text after which the client cancels."""
    drop_after: int | None = None
    """Pieces of text after which the client cuts the connection."""
    repeats: int | None = None
    """Number of the turn that has asked the same."""


def synthetic(plan: TrafficPlan, starts: Iterable[float]) -> Iterator[TracePoint]:
    """Yield arrivals at these times with lengths drawn from the plan's ranges."""
    random = Random(f"{plan.seed}/lengths")
    for start in starts:
        yield TracePoint(start, random.randint(*plan.input_tokens), random.randint(*plan.output_tokens))


def starts(plan: TrafficPlan, rate: float, poisson: bool) -> Iterator[float]:
    """Yield when turns are due at a rate: evenly, or as a Poisson process."""
    return arrivals.poisson(rate, Random(f"{plan.seed}/arrivals")) if poisson else arrivals.constant(rate)


def bounded(points: Iterable[TracePoint], seconds: float, most: int) -> Iterator[TracePoint]:
    """Yield arrivals before `seconds`, and at most so many."""
    return itertools.takewhile(lambda each: each.start < seconds, itertools.islice(points, most))


def planned_turns(plan: TrafficPlan, points: Iterable[TracePoint], scale: float = 1.0) -> Iterator[PlannedTurn]:
    """Yield the turn of each arrival; `scale` is that of the trace's lengths."""
    random = Random(f"{plan.seed}/turns")
    recent: list[PlannedTurn] = []
    for number, point in enumerate(points):
        again = random.random() < plan.repeated and bool(recent)
        if again:
            earlier = random.choice(recent)
            yield msgspec.structs.replace(earlier, number=number, start=point.start, repeats=earlier.number)
            continue
        turn = _turn(plan, number, point, scale, random)
        if turn.cancel_after is None:
            recent.append(turn)
            del recent[:-_REPEATED]
        yield turn


def _turn(plan: TrafficPlan, number: int, point: TracePoint, scale: float, random: Random) -> PlannedTurn:
    protocol = _drawn(plan.protocols, random)
    fate = random.random()
    midway = random.randint(1, max(1, min(_MIDWAY, point.output_tokens // 2)))
    cancels = fate < plan.cancelled
    # A chat completion has nothing to be resumed by.
    drops = not cancels and fate < plan.cancelled + plan.dropped and protocol != "chat"
    return PlannedTurn(
        number=number,
        start=point.start,
        tenant=random.choice(plan.tenants),
        model=_drawn(plan.models, random),
        protocol=protocol,
        prompt=random.choice(plan.prompts) if plan.prompts else prompt(plan.seed, number, point, scale),
        output_tokens=point.output_tokens,
        seed=random.randrange(_SEEDS) if plan.repeated else None,
        cancel_after=midway if cancels else None,
        drop_after=midway if drops else None,
    )


def _drawn(shares: Sequence[Share[Value]], random: Random) -> Value:
    return random.choices([value for value, _ in shares], [weight for _, weight in shares])[0]


def prompt(seed: int, number: int, point: TracePoint, scale: float = 1.0) -> str:
    """Return a prompt of about so many tokens: of the arrival's blocks, or like no other."""
    if not point.blocks:
        return " ".join([f"({seed}/{number})", *_words(f"{seed}/prompt/{number}", point.input_tokens - 1)])
    length = max(1, round(BLOCK_TOKENS * scale))
    words = itertools.chain.from_iterable(_words(f"{seed}/block/{each}", length) for each in point.blocks)
    return " ".join(itertools.islice(words, point.input_tokens))


def _words(seed: str, count: int) -> list[str]:
    return Random(seed).choices(_WORDS, k=max(0, count))
