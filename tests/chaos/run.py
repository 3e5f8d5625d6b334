"""One run: an installation under load, faults that are injected, and what must hold meanwhile and afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from gateway.limits.limiter import LEASE
from tests.chaos import books
from tests.chaos.cases import Whole
from tests.chaos.faults import ENGINES, LANES, Injected, Kind, draw
from tests.chaos.injection import Injector
from tests.chaos.installation import PING, TENANTS, Installation, installation
from tests.chaos.invariants import PICO, Excuse, billed, excuse, refused_without_reason, wrong
from tests.chaos.load import Load, undisturbed
from tests.chaos.records import TurnRecord
from tests.gateway.turns.processes import GAUGES

_PATIENCE = 100.0
"""Seconds in which everything has to come to rest after a run: if Redis is away when a gateway's death is noticed, what
it had reserved comes back with its leases, after a minute."""
_IDLE = (*GAUGES, "roundhouse_turns_unstored", "roundhouse_ledger_lag", "roundhouse_engine_running{")
"""Beginnings of the names of metrics that are 0 at rest."""


@dataclass(frozen=True)
class Plan:
    """What a run does."""

    seed: int
    clients: int
    faults: int = 0
    """Most faults that are injected."""
    kinds: tuple[Kind, ...] = ()
    """Inject these faults instead, one after the other in their lanes."""
    minutes: float = float("inf")
    """Time after which no more faults are injected."""
    on_redis_down: str = "deny"
    budget: int = 20_000
    """Micro-dollars that the tenant `poor` may spend."""
    thinking: float = 1.0
    """Most seconds between two turns of a client."""


@dataclass
class Outcome:
    """What came of a run."""

    plan: Plan
    may_fail: bool = True
    """Whether turns may fail where a fault excuses it; else what they need is always there."""
    seconds: float = 0.0
    turns: list[TurnRecord] = field(default_factory=list)
    injected: list[Injected] = field(default_factory=list)
    skipped: list[Kind] = field(default_factory=list)
    """Faults for which this machine lacks something."""
    problems: list[str] = field(default_factory=list)
    """What must not be; none is excused."""
    excused: list[tuple[TurnRecord, Excuse]] = field(default_factory=list)
    """Turns that failed, and why they might."""
    folder: Path | None = None
    """With all logs, if there are problems."""
    looks: int = 0
    """Number of times that the limits were compared with what was used and held."""


async def chaos(plan: Plan, say: Callable[[str], None] = print) -> Outcome:
    """Inject faults in all lanes while clients ask."""
    outcome = Outcome(plan)
    async with _loaded(plan, outcome) as (built, load):
        injector = Injector(built, load.clients)
        outcome.injected = injector.injected
        ends = monotonic() + 60 * plan.minutes

        async def lane(number: int) -> None:
            wanted = iter([kind for kind in plan.kinds if kind in LANES[number]])
            for fault in draw(plan.seed, number):
                if plan.kinds:
                    if (kind := next(wanted, None)) is None:
                        return
                    fault = replace(fault, kind=kind)
                elif len(injector.injected) >= plan.faults or monotonic() > ends:
                    return
                if not injector.possible(fault.kind):
                    if fault.kind not in outcome.skipped:
                        outcome.skipped.append(fault.kind)
                        say(f"SKIPPED here: {fault.kind} (no libfaketime: apt install faketime)")
                    continue
                done = await injector.inject(fault)
                say(f"{len(injector.injected):5} {done.ended - done.began:6.1f} s  {done.kind}")

        async with asyncio.TaskGroup() as group:
            for number in range(len(LANES)):
                group.create_task(lane(number))
    return outcome


async def rolling_update(plan: Plan, turns: int, say: Callable[[str], None] = print) -> Outcome:
    """Replace engines and gateways one by one, until so many turns have ended: none may fail."""
    outcome = Outcome(plan, may_fail=False)
    async with _loaded(plan, outcome) as (built, load):
        injector = Injector(built, load.clients)
        outcome.injected = injector.injected
        faults = draw(plan.seed, 0)
        while load.turns < turns:
            for kind in (Kind.ENGINE_DRAINED, Kind.GATEWAY_DRAINED):
                for number in range(ENGINES):
                    await injector.inject(replace(next(faults), kind=kind, engine=number, gateway=number))
            say(f"everything was replaced {len(injector.injected) // (2 * ENGINES)} times, {load.turns} turns")
    return outcome


@contextlib.asynccontextmanager
async def _loaded(plan: Plan, outcome: Outcome) -> AsyncIterator[tuple[Installation, Load]]:
    """Run an installation under load; when the block ends, let everything come to rest and examine it."""
    async with installation(budget=plan.budget, on_redis_down=plan.on_redis_down) as built:
        wholes = await undisturbed(built)
        load, watch = Load(built, plan.clients, plan.seed, thinking=plan.thinking), books.LimitWatch(built)
        asking, watching = asyncio.create_task(load.run()), asyncio.create_task(watch.run())
        began = monotonic()
        try:
            yield built, load
            load.stop()
            await asking
        finally:
            watching.cancel()
            asking.cancel()
        outcome.seconds = monotonic() - began
        outcome.turns = [turn for client in load.clients for turn in client.turns]
        outcome.looks = watch.looks
        examine_turns(outcome, wholes)
        if plan.on_redis_down == "deny":
            outcome.problems += [what for at, what in watch.beyond if not _clock_jumped(outcome.injected, at)]
        await _examine_rest(built, outcome)
        if outcome.problems:
            built.kept, outcome.folder = True, built.folder
            (built.folder / "problems.txt").write_text("\n".join(outcome.problems) + "\n")


def examine_turns(outcome: Outcome, wholes: dict[str, Whole]) -> None:
    """Compare what clients saw with what they should have seen."""
    for turn in outcome.turns:
        who = f"{turn.client}, {turn.case.name}"
        outcome.problems += [f"{who}: {what}" for what in wrong(turn, wholes[turn.case.name])]
        outcome.problems += [f"{who}: {what}" for what in refused_without_reason(turn, outcome.injected)]
        if turn.failure:
            reason = excuse(turn, outcome.injected)
            if reason is None:
                outcome.problems.append(f"{who}: failed as {turn.failure}, which nothing excuses")
                continue
            outcome.excused.append((turn, reason))
            if reason.kind and not outcome.may_fail:
                outcome.problems.append(f"{who}: failed as {turn.failure}")
    outcome.problems += [what for fault in outcome.injected for what in fault.problems]


async def _examine_rest(built: Installation, outcome: Outcome) -> None:
    """Wait until nothing runs, and compare what Redis holds with what clients saw."""
    outcome.problems += await _at_rest(built)
    ledger = await books.entries(built)
    outcome.problems += billed(outcome.turns, ledger)
    outcome.problems += await books.sums_differ(built, ledger)
    spent = sum(entry.picodollars or 0 for entry in ledger if entry.tenant == "poor" and entry.cache != "hit")
    if spent > built.budget * PICO:
        outcome.problems.append(f"poor has spent {spent} picodollars of {built.budget} micro-dollars")


async def _at_rest(built: Installation) -> list[str]:
    """Wait until gateways and engines do nothing and hold nothing; return what does not come to an end."""
    deadline = monotonic() + _PATIENCE
    while busy := await _busy(built):
        if monotonic() > deadline:
            return busy
        await asyncio.sleep(0.2)
    return []


async def _busy(built: Installation) -> list[str]:
    found = []
    for number, gateway in enumerate(built.gateways):
        values = await gateway.metrics()
        busy = {name: value for name, value in values.items() if name.startswith(_IDLE) and value}
        found += [f"gateway {number}: {name} is {value:g}" for name, value in busy.items()]
    reserved = [f"{tenant}: {id} is still reserved" for tenant, id in await books.reserved(built)]
    if reserved:  # a lease that has ended is taken back when its tenant is served the next time
        for tenant in TENANTS:
            await built.ask(0, PING, tenant=tenant)
        return found + reserved
    return found + [f"{each} is still held" for each in await books.held(built)]


def _clock_jumped(injected: list[Injected], at: float) -> bool:
    return any(fault.kind is Kind.CLOCK_JUMPED and fault.touches(at, at, LEASE) for fault in injected)
