"""Which faults a run injects, drawn from its seed, and the record of those that were. Pure.

Faults come in three lanes, which run side by side: in the first an engine or the way to it is harmed, in the second a
gateway, its disk or its clients, in the third Redis, the way to it, or a clock. In each lane one fault is repaired
before the next begins, so that another engine and another gateway are always there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

ENGINES, GATEWAYS = 2, 2
"""Processes of a run."""


class Kind(StrEnum):
    """A kind of fault."""

    ENGINE_KILLED = "engine killed"
    ENGINE_STOPPED = "engine stopped"
    ENGINE_DRAINED = "engine drained"
    CORE_HUNG = "core hung"
    CORE_FAILING = "every step fails"
    CHECKPOINT_DAMAGED = "checkpoint damaged"
    ENGINE_CUT = "gateway cut from engine"
    ENGINE_PARTED = "gateway partitioned from engine"
    ENGINE_SLOW = "engine's network slow"
    GATEWAY_KILLED = "gateway killed"
    GATEWAY_STOPPED = "gateway stopped"
    GATEWAY_DRAINED = "gateway drained"
    CLIENTS_CUT = "clients cut"
    REDIS_KILLED = "Redis killed"
    REDIS_STOPPED = "Redis stopped"
    REDIS_FULL = "Redis full"
    REDIS_CUT = "gateway cut from Redis"
    REDIS_PARTED = "gateway partitioned from Redis"
    REDIS_SLOW = "Redis slow"
    DISK_FULL = "disk full"
    CLOCK_JUMPED = "clock jumped"


LANES: tuple[dict[Kind, int], ...] = (
    {
        Kind.ENGINE_CUT: 4,
        Kind.ENGINE_PARTED: 4,
        Kind.ENGINE_SLOW: 4,
        Kind.ENGINE_STOPPED: 4,
        Kind.ENGINE_KILLED: 2,
        Kind.ENGINE_DRAINED: 1,
        Kind.CORE_FAILING: 1,
        Kind.CORE_HUNG: 1,
        Kind.CHECKPOINT_DAMAGED: 1,
    },
    {
        Kind.CLIENTS_CUT: 4,
        Kind.DISK_FULL: 4,
        Kind.GATEWAY_STOPPED: 4,
        Kind.GATEWAY_KILLED: 2,
        Kind.GATEWAY_DRAINED: 1,
    },
    {
        Kind.REDIS_CUT: 2,
        Kind.REDIS_PARTED: 2,
        Kind.REDIS_SLOW: 2,
        Kind.REDIS_STOPPED: 2,
        Kind.REDIS_KILLED: 2,
        Kind.REDIS_FULL: 2,
        Kind.CLOCK_JUMPED: 1,
    },
)
"""Kinds of each lane, and how often each comes before all have come. Those after which a process loads a model again
come seldom, or a run would mostly wait."""

SHORT, LONG = (0.1, 1.5), (2.0, 5.0)
"""Bounds of a fault's seconds; one in `_SELDOM` is long."""
_SELDOM = 6
_PAUSE = (0.1, 0.8)
"""Bounds of the seconds between the end of a fault and the beginning of the next one in its lane."""

LOSES_ENGINE = frozenset(LANES[0]) - {Kind.ENGINE_SLOW, Kind.ENGINE_DRAINED}
"""Kinds that can cost running answers their engine, or at least stop its tokens."""
REDIS_AWAY = frozenset(LANES[2]) - {Kind.CLOCK_JUMPED}
"""Kinds during which some gateway has to do without Redis."""


@dataclass(frozen=True)
class Fault:
    """One fault, before it is injected."""

    kind: Kind
    engine: int
    gateway: int
    seconds: float
    """Time from its beginning until it is repaired, or until what was killed is started again."""
    pause: float
    """Seconds in which nothing is done before it begins."""
    choice: float
    """Number from 0 to 1 for whatever else has to be chosen, such as the byte that is damaged."""


@dataclass
class Injected:
    """A fault that was injected; times on the monotonic clock."""

    fault: Fault
    began: float
    ended: float = float("inf")
    """When it was repaired, and everything was ready again."""
    gateway: str = ""
    """Id in Redis of the gateway process that was harmed."""
    replica: str = ""
    """Name of the engine process that was harmed."""
    noticed: float | None = None
    """Seconds until a hung core was noticed."""
    problems: list[str] = field(default_factory=list)
    """What the harmed process did wrong: an exit status, or a damaged checkpoint that it served."""

    @property
    def kind(self) -> Kind:
        return self.fault.kind

    def touches(self, began: float, ended: float, slack: float = 0.0) -> bool:
        """Whether it lay, wholly or in part, between two times; `slack` is added to both its ends."""
        return self.began - slack <= ended and began <= self.ended + slack


def draw(seed: int, lane: int) -> Iterator[Fault]:
    """Yield the faults of a lane without end."""
    generator = random.Random(f"{seed}/{lane}")
    while True:
        kinds = [kind for kind, times in LANES[lane].items() for _ in range(times)]
        generator.shuffle(kinds)
        for kind in kinds:
            yield fault(kind, generator)


def fault(kind: Kind, generator: random.Random) -> Fault:
    """Draw everything of a fault but its kind."""
    return Fault(
        kind=kind,
        engine=generator.randrange(ENGINES),
        gateway=generator.randrange(GATEWAYS),
        seconds=generator.uniform(*(LONG if generator.randrange(_SELDOM) == 0 else SHORT)),
        pause=generator.uniform(*_PAUSE),
        choice=generator.random(),
    )
