"""When requests with adapters may run: loads in the order of waiting, bytes per step, and who has to drain. Pure.

A version is *open* when its adapter is on the device and may be used: its waiting requests then stand in the policy's
line like all others. Otherwise it is *closed* and they stand aside, indexed by version, so that a step never looks at
requests that cannot run. Both ways they keep their place.

* What waits longest is loaded first, and nothing is installed past it.
* The adapters of one step have at most `step_bytes` together: a step reads each of them once. Those of running
  requests count; those of preempted ones and the base model do not. One adapter alone is always admitted.
* An adapter that cannot get in for `wait` seconds is *starving*. From then on nothing else is newly brought in, idle
  and wanted adapters make way, KV blocks are kept for it, and the adapter in use that needs the fewest steps to finish
  what it runs drains: none of its requests is admitted. After twice that time they are preempted.
* Once it is in, nobody takes its place before one of its requests has run.

(The design follows SGLang's LoRA drainer and LoRAX's cycling of adapters, which know no bytes.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.adapters.loads import Job
from engine.adapters.prefetch import Prefetch
from engine.adapters.residency import Residency, ResidencyConfig, Room
from engine.adapters.states import AdapterState
from engine.request import Request, RequestError
from engine.scheduling.versions import Versions


@dataclass(slots=True)
class Moves:
    """What the scheduler has to do with requests."""

    opened: list[Request] = field(default_factory=list)
    """They join the line."""
    aside: list[Request] = field(default_factory=list)
    """They leave it, but go on waiting."""
    preempted: list[Request] = field(default_factory=list)
    """They stop running and wait, as far as they may be preempted."""


class AdapterAdmission:
    """Requests by adapter, and what is done so that each can run."""

    def __init__(self, residency: Residency, config: ResidencyConfig) -> None:
        self.residency = residency
        self.prefetch = Prefetch(residency)
        self.standing_aside = 0
        """Waiting requests that are not in the policy's line."""
        self.reserved = 0
        """KV blocks that admission has to leave to a starving adapter."""
        self._config = config
        self._waiting: dict[str, dict[Request, float]] = {}
        """By version, with the moment since when each waits."""
        self._running: dict[str, dict[Request, None]] = {}
        self._running_bytes = 0
        self._open: set[str] = set()
        self._absent, self._hosted, self._held = Versions(), Versions(), Versions()
        """Closed versions that have to be loaded onto the host, onto the device, and that are there."""
        self._starving: str | None = None
        self._draining: set[str] = set()
        self._entering: set[str] = set()
        """Versions that starved and are open now, until one of their requests runs: their bytes count already."""
        self._entering_bytes = 0
        self._may_open = False
        """Something has changed that could open a version in `_held`."""
        self._jobs: list[Job] = []
        self._refused: list[tuple[str, RequestError]] = []

    # What happens to requests.

    def arrive(self, request: Request) -> None:
        """A new request; it must `wait` next."""
        self.residency.hold(_version(request))

    def wait(self, request: Request, now: float) -> bool:
        """A request waits, as a new one or preempted; whether it may stand in line."""
        version = _version(request)
        self._waiting.setdefault(version, {})[request] = now
        if version in self._open:
            return True
        self.standing_aside += 1
        self._place(version)
        return False

    def unwait(self, request: Request) -> bool:
        """A waiting request has ended; whether it stood in line."""
        version = _version(request)
        stood = version in self._open
        self.standing_aside -= not stood
        self._forget_waiting(request)
        if version not in self._waiting:
            self._enter(version, entering=False)
            if version not in self._running:
                self._open.discard(version)
        self._place(version)
        self.residency.release(version)
        return stood

    def start(self, request: Request) -> None:
        """A waiting request, which `admits` has let in, runs."""
        version = _version(request)
        self._forget_waiting(request)
        self.residency.start(version)
        self._enter(version, entering=False)
        running = self._running.setdefault(version, {})
        if not running:
            self._running_bytes += self.residency.size(version)
        running[request] = None

    def stop(self, request: Request, *, ended: bool) -> None:
        """A running request has ended, or is preempted and must `wait` next."""
        version = _version(request)
        self.residency.stop(version)
        running = self._running[version]
        del running[request]
        if not running:
            del self._running[version]
            self._running_bytes -= self.residency.size(version)
            self._may_open = True
            if version not in self._waiting:
                self._open.discard(version)
        if ended:
            self.residency.release(version)

    def admits(self, request: Request) -> bool:
        """Whether a request that stands in line may run as far as its adapter is concerned."""
        version = _version(request)
        if version in self._running or version in self._entering:
            return True
        return self._starving is None and self._fits(version)

    def close(self, version: str) -> list[Request]:
        """Let no more requests of an open version in; those that leave the line, which stand aside now."""
        if version not in self._open:
            return []
        self._open.remove(version)
        self._enter(version, entering=False)
        self._place(version)
        aside = list(self._waiting.get(version, ()))
        self.standing_aside += len(aside)
        return aside

    def give_way(self) -> list[Request] | None:
        """Take the sectors of an adapter that no running request uses; who leaves the line for it, None if none can."""
        version = self.residency.give_way()
        if version is None:
            return None
        aside = self.close(version)
        self._place(version)
        return aside

    # Steps.

    def relieve(self, now: float, growth: int) -> Moves:
        """Find out who starves and make way for it. `growth`: KV blocks to be left to running requests."""
        moves = Moves()
        self.reserved = 0
        if self._hosted or self._held or self._starving is not None:
            self._relieve(now, growth, moves)
        return moves

    def advance(self, growth: int) -> Moves:
        """Begin loads, and open what can be opened."""
        moves = Moves()
        while self.residency.loading < self._config.loads:
            job = self._next_load(growth, moves)
            if job is None:
                break
            self._jobs.append(job)
        if self._may_open:
            self._may_open = False
            self._reopen(moves)
        return moves

    def take_jobs(self) -> list[Job]:
        """Loads that have been decided on since the last call."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def take_refused(self) -> list[tuple[Request, RequestError]]:
        """Waiting requests whose adapters can never be installed, with the reason; they must be ended."""
        refused, self._refused = self._refused, []
        return [(request, error) for version, error in refused for request in self.waiting(version)]

    def waiting(self, version: str) -> list[Request]:
        """All waiting requests with this version."""
        return list(self._waiting.get(version, ()))

    def prepared(self, version: str, sectors: int) -> None:
        """A version is on the host now."""
        self.residency.prepared(version, sectors)
        self._place(version)

    def installed(self, version: str) -> None:
        """A version is on the device now."""
        self.residency.installed(version)
        self._place(version)

    def failed(self, version: str) -> list[Request]:
        """A load failed; the requests that wait for it, which must be ended."""
        self.residency.failed(version)
        self._place(version)
        return self.waiting(version)

    def check_integrity(self, running: Iterable[Request], in_line: Iterable[Request]) -> None:
        """Compare the books with those of the scheduler, of the residency and with each other.

        Raises:
            RuntimeError: they differ; the message says where.
        """
        self.residency.check_integrity()
        used = {request for each in self._running.values() for request in each}
        open_waiting = {request for version in self._open for request in self._waiting.get(version, ())}
        waiting = sum(map(len, self._waiting.values()))
        placed = [*self._absent.versions(), *self._hosted.versions(), *self._held.versions()]
        closed = [version for version in self._waiting if version not in self._open]
        loading = [version for version in closed if version not in placed]
        problems = {
            "running requests differ": used != {request for request in running if request.adapter is not None},
            "requests in line differ": open_waiting != {request for request in in_line if request.adapter is not None},
            "requests standing aside are counted wrongly": self.standing_aside != waiting - len(open_waiting),
            "an open version is not resident": not self._open <= set(self.residency.resident),
            "a version is listed twice": len(placed) != len(set(placed)) or not set(placed) <= set(closed),
            "a version waits for nothing": any(
                self.residency.state(version) not in (AdapterState.PREPARING, AdapterState.INSTALLING)
                for version in loading
            ),
            "bytes are counted wrongly": self._running_bytes != sum(map(self.residency.size, self._running))
            or self._entering_bytes != sum(map(self.residency.size, self._entering)),
            "a version enters that is not open": not self._entering <= self._open,
        }
        broken = [problem for problem, found in problems.items() if found]
        if broken:
            raise RuntimeError(f"adapter admission is broken: {'; '.join(broken)}")

    # Details.

    def _forget_waiting(self, request: Request) -> None:
        waiting = self._waiting[_version(request)]
        del waiting[request]
        if not waiting:
            del self._waiting[_version(request)]

    def _place(self, version: str) -> None:
        """Put a version into the list that fits its state, if it is closed and waited for."""
        for versions in (self._absent, self._hosted, self._held):
            versions.discard(version)
        waiting = self._waiting.get(version)
        if waiting is None or version in self._open:
            return
        since = next(iter(waiting.values()))
        state = self.residency.state(version)
        if state is AdapterState.ABSENT:
            self._absent.add(version, since)
        elif state is AdapterState.HOST:
            self._hosted.add(version, since)
        elif state is AdapterState.RESIDENT:
            self._held.add(version, since)
            self._may_open = True

    def _enter(self, version: str, *, entering: bool) -> None:
        """Keep the place of a version that has starved, or do so no longer."""
        if entering == (version in self._entering) or (entering and version in self._running):
            return
        (self._entering.add if entering else self._entering.remove)(version)
        self._entering_bytes += self.residency.size(version) * (1 if entering else -1)
        self.residency.spare(version, entering)

    def _fits(self, version: str, more: int = 0) -> bool:
        """Whether its bytes fit into a step, beside those of running requests and `more`."""
        others = self._running_bytes + self._entering_bytes + more
        limit = self._config.step_bytes
        if limit is None or not others or version in self._running:
            return True
        return others + self.residency.size(version) <= limit

    def _relieve(self, now: float, growth: int, moves: Moves) -> None:
        """Find out who starves and make way for it."""
        if self._starving is not None and (self._starving in self._open or self._starving not in self._waiting):
            self._stop_starving()
        if self._starving is None:
            since, version = min(self._hosted.first(), self._held.first())
            if now - since <= self._config.wait or self._room(version, growth, urgent=False) is Room.YES:
                return
            self._starving = version
        version = self._starving
        if version not in self._hosted and version not in self._held:
            return  # it is being loaded
        room = self._room(version, growth, urgent=True)
        if room is Room.YES:
            return
        if room is Room.BLOCKS:
            self.reserved = self.residency.sectors(version)
        since = (self._hosted if version in self._hosted else self._held).since(version)
        draining = [other for other in self._draining if other in self._running]
        if not draining:
            draining = self._choose_victim(version, moves)
        if now - since > 2 * self._config.wait:
            moves.preempted += [request for other in draining for request in self._running[other]]

    def _room(self, version: str, growth: int, *, urgent: bool) -> Room:
        """Whether a version on the host or the device can be brought in; yes if there is no use in waiting for that."""
        if version in self._held:
            return Room.YES if self._fits(version) else Room.BYTES
        room = self.residency.room(version, growth, urgent=urgent)
        return Room.YES if room is Room.NEVER else room

    def _choose_victim(self, version: str, moves: Moves) -> list[str]:
        """Let the adapter drain that needs the fewest steps for it; none if draining would not help."""
        needs_sectors = version in self._hosted
        candidates = [
            other
            for other in self._running
            if other not in self._draining and not (needs_sectors and self.residency.anchored(other))
        ]
        if not candidates:
            return []
        victim = min(candidates, key=lambda other: max(map(_remaining, self._running[other])))
        self._draining.add(victim)
        moves.aside += self.close(victim)
        return [victim]

    def _stop_starving(self) -> None:
        self._starving = None
        self._draining.clear()
        self._may_open = True

    def _next_load(self, growth: int, moves: Moves) -> Job | None:
        """The load that is due next, begun; None if nothing is to be loaded or can be."""
        while self._hosted:
            version = self._hosted.first()[1]
            if self._starving is not None and self._starving in self._hosted:
                version = self._starving
            urgent = version == self._starving
            room = self.residency.room(version, growth, urgent=urgent)
            if room is Room.NEVER:
                self._hosted.discard(version)
                self._refused.append((version, self._too_large(version)))
                continue
            if room is not Room.YES:
                break
            while self.residency.room(version, growth) is not Room.YES:
                moves.aside += self.give_way() or ()
            self._hosted.discard(version)
            return self.residency.install(version)
        if self._absent:
            since, version = self._absent.first()
            # Who has waited longest is prepared whatever the budget: one copy more, and nobody waits for ever.
            oldest = since <= min(self._hosted.first()[0], self._held.first()[0])
            if oldest or self.residency.may_prepare():
                self._absent.discard(version)
                return self.residency.prepare(version)
        if self._starving in self._hosted:
            return None
        job = self.prefetch.next_load(growth)
        if job is not None:
            self._place(job.version)
        return job

    def _reopen(self, moves: Moves) -> None:
        """Open versions that are on the device, who has waited longest first, as far as their bytes fit."""
        opened = 0
        for version in self._held.versions():
            new = version not in self._running
            if version in self._draining or (new and self._starving not in (None, version)):
                continue
            if new and not self._fits(version, opened):
                return
            opened += self.residency.size(version) if new else 0
            self._open.add(version)
            self._held.discard(version)
            waiting = self._waiting[version]
            self.standing_aside -= len(waiting)
            moves.opened += waiting
            if version == self._starving:
                self._enter(version, entering=True)
                self._stop_starving()

    def _too_large(self, version: str) -> RequestError:
        needed, share = self.residency.sectors(version), self.residency.share
        return RequestError(
            f"{version!r} needs {needed} KV blocks, more than pinned adapters leave of the {share} that "
            "adapters may hold; raise --adapter-share or --kv-tokens, or pin less",
            field="adapter",
        )


def _version(request: Request) -> str:
    if request.adapter is None:
        raise ValueError(f"request {request.id} has no adapter")
    return request.adapter


def _remaining(request: Request) -> int:
    """Tokens that a running request may still need."""
    return request.uncomputed + request.sampling.max_tokens - len(request.output)
