"""A load test: runs of one plan against one server, at one rate or at those that a search tries."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Literal

import msgspec

from load.connections.address import Address
from load.connections.http import HttpConnection, RequestRefused
from load.connections.pool import ChannelPool
from load.objectives import Objectives, lost
from load.plan import TrafficPlan, bounded, planned_turns, starts, synthetic
from load.records import MeasuredTurn, differing
from load.run import OpenLoop
from load.search import bracket, next_rate
from load.statistics import LoadRun, summarise
from load.traces import TracePoint, mean_rate, paced
from load.turn import TurnRunner

_ABSENT = (404, 405, 501)
_LOOK_SECONDS = 10.0


class Unmeasurable(Exception):
    """Nothing can be measured; the text says why."""


class Schedule(msgspec.Struct, frozen=True):
    """When turns are due, and the bounds of a run."""

    arrivals: Literal["poisson", "constant"] = "poisson"
    """How turns arrive at a rate, without a trace."""
    duration: float = 30.0
    requests: int = 10_000
    """Most turns of a run."""
    scale: float = 1.0
    """What the trace's lengths have been multiplied by."""

    def points(self, plan: TrafficPlan, trace: Sequence[TracePoint], rate: float | None) -> list[TracePoint]:
        """Return the arrivals of a run, of the trace if there is one.

        Args:
            rate: turns per second; None: as the trace was recorded, or one.
        """
        if trace:
            found: Iterator[TracePoint] = paced(trace, 1.0 if rate is None else rate / mean_rate(trace))
        else:
            found = synthetic(plan, starts(plan, rate or 1.0, self.arrivals == "poisson"))
        return list(bounded(found, self.duration, self.requests))


class LoadTarget(msgspec.Struct, frozen=True):
    """The server, and how it is reached."""

    address: Address
    headers: dict[str, dict[str, str]]
    """Headers of requests, by tenant; they hold secrets."""
    secrets: tuple[str, ...] = ()
    sockets: int = 256
    """Most open connections; a turn that has to wait for one waits on the clock."""
    limit: float = 60.0
    """Seconds after its intended start at which a turn is given up."""

    def redact(self, text: str) -> str:
        """Return a text without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


class LoadSession:
    """Runs of one plan.

    Args:
        watch: shows a run of so many turns while it goes on; cancelled at its end.
    """

    def __init__(
        self,
        target: LoadTarget,
        plan: TrafficPlan,
        schedule: Schedule,
        objectives: Objectives,
        trace: Sequence[TracePoint] = (),
        watch: Callable[[OpenLoop, int], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._target = target
        self._plan = plan
        self._schedule = schedule
        self._objectives = objectives
        self._trace = trace
        self._watch = watch
        self.interrupted = False

    async def measure(
        self, rate: float | None, number: int = 0, *, searching: bool = False
    ) -> tuple[LoadRun, list[MeasuredTurn]]:
        """Run once. Runs with other numbers ask other questions, so that no cache answers.

        Args:
            searching: end as soon as the objectives are out of reach.
        """
        plan = msgspec.structs.replace(self._plan, seed=self._plan.seed + number)
        points = self._schedule.points(plan, self._trace, rate)
        if not points:
            raise Unmeasurable("no turn is due: raise the rate or the duration")
        bad = 0

        def hopeless(turn: MeasuredTurn) -> bool:
            nonlocal bad
            bad += not self._objectives.good(turn)
            return searching and lost(bad, len(points), self._objectives)

        target = self._target
        pool = ChannelPool(target.address, target.headers, target.sockets)
        runner = TurnRunner(pool, plan.body, target.limit, target.redact)
        loop = OpenLoop(runner.run, hopeless)
        async with self._attended(loop, len(points)):
            turns = differing(await loop.run(planned_turns(plan, points, self._schedule.scale)))
        pool.close()
        whole = self._arriving(points)
        arriving = max((each.plan.start for each in turns), default=0.0) if loop.stopped else whole
        summary = summarise(turns, self._objectives, arriving or 1.0)
        return LoadRun(rate or len(points) / whole, loop.stopped, summary), turns

    async def search(self, first: float, most: float, precision: float) -> tuple[list[LoadRun], list[MeasuredTurn]]:
        """Look for the highest rate that keeps the objectives; returns all runs, and the turns of the best one."""
        tried: list[tuple[float, bool]] = []
        runs: list[LoadRun] = []
        best: list[MeasuredTurn] = []
        while (rate := next_rate(tried, first, most, precision)) is not None and not self.interrupted:
            run, turns = await self.measure(rate, len(tried), searching=True)
            met = run.summary.verdict.met and not run.stopped
            tried.append((rate, met))
            runs.append(run)
            if not best or (met and rate == bracket(tried)[0]):
                best = turns
        return runs, best

    def _arriving(self, points: Sequence[TracePoint]) -> float:
        """Return the seconds during which turns are due; less than the duration where something else bounds them."""
        last = points[-1].start
        whole = len(points) < self._schedule.requests and len(points) != len(self._trace)
        return self._schedule.duration if whole else last * len(points) / max(1, len(points) - 1) or 1.0

    @contextlib.asynccontextmanager
    async def _attended(self, loop: OpenLoop, planned: int) -> AsyncIterator[None]:
        """Show the run, and let Ctrl-C end it early: its figures are kept."""

        def interrupt() -> None:
            self.interrupted = True
            loop.stop()

        running = asyncio.get_running_loop()
        watching = asyncio.create_task(self._watch(loop, planned)) if self._watch else None
        running.add_signal_handler(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            running.remove_signal_handler(signal.SIGINT)
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)


async def look(target: LoadTarget) -> list[str]:
    """Ask the server which models it has; empty if it does not say.

    Raises:
        Unmeasurable: there is no server, or it does not accept the key.
    """
    address, headers = target.address, next(iter(target.headers.values()))
    body = bytearray()
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            connection = await HttpConnection.open(address, headers)
            with contextlib.closing(connection):
                await connection.request("GET", "/models", None, lambda data, _: body.extend(data))
    except RequestRefused as refused:
        if refused.status in _ABSENT:
            return []
        raise Unmeasurable(f"{address} refuses: {target.redact(str(refused))}") from None
    except (OSError, TimeoutError) as error:
        raise Unmeasurable(f"no server answers at {address} ({error or 'no answer'})") from error
    try:
        return [each["id"] for each in msgspec.json.decode(body)["data"]]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []
