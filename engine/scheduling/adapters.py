"""Decides when requests with adapters may run: order of loads, bytes per step, and which adapters drain. Pure.

While a version is OPEN or ENTERING (`engine/adapters/states.py`), its waiting requests stand in the policy's line like
all others. In every other state they stand aside, indexed by version, so that a step never looks at requests that
cannot run. Both ways they keep their place.

* The adapter waited for longest is loaded first, and no other is installed before it.
* The adapters of one step have at most `step_bytes` together: a step reads each of them once. Those of running
  requests count; those of preempted ones and the base model do not. One adapter alone is always admitted.
* An adapter that cannot get in for `wait` seconds is *starving*. From then on nothing else is newly brought in, idle
  and wanted adapters make way, KV blocks are kept for it, and the adapter in use that needs the fewest steps to finish
  what it runs is DRAINING: none of its requests is admitted. After twice that time they are preempted.
* Once it is in, it is ENTERING: nobody takes its place before one of its requests has run.

(The design follows SGLang's LoRA drainer and LoRAX's cycling of adapters, which know no bytes.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.adapters.loads import Job
from engine.adapters.prefetch import Prefetch
from engine.adapters.residency import AdapterFit, Residency, ResidencyConfig
from engine.adapters.states import IN_LINE, LOADING, AdapterVersionState
from engine.request import Request, RequestError
from engine.scheduling.versions import Versions


@dataclass(slots=True)
class LineChanges:
    """Changes that the scheduler has to make to requests."""

    joining: list[Request] = field(default_factory=list)
    """Waiting requests that stand in line from now on."""
    leaving: list[Request] = field(default_factory=list)
    """Waiting requests that stand aside from now on."""
    preempted: list[Request] = field(default_factory=list)
    """Running requests that have to wait again, as far as they may be preempted."""


class AdapterAdmission:
    """Waiting and running requests by adapter, and the loads and drains that let each of them run."""

    def __init__(self, residency: Residency, config: ResidencyConfig) -> None:
        self.residency = residency
        self.prefetch = Prefetch(residency)
        self.standing_aside = 0
        """Waiting requests that are not in the policy's line."""
        self.reserved = 0
        """KV blocks that admission has to leave to a starving adapter."""
        self._config = config
        self._waiting: dict[str, dict[Request, float]] = {}
        """Waiting requests by version, and since when each waits."""
        self._running: dict[str, dict[Request, None]] = {}
        self._in_step: set[str] = set()
        """Versions whose bytes count in a step: those in use and those that are entering."""
        self._absent, self._hosted, self._closed = Versions(), Versions(), Versions()
        """Versions waited for: to be loaded onto the host, onto the device, and closed ones on the device."""
        self._starving: str | None = None
        self._may_open = False
        """Whether something has changed that could open a version in `_closed`."""
        self._jobs: list[Job] = []
        self._refused: list[tuple[str, RequestError]] = []

    # What happens to requests.

    def arrive(self, request: Request) -> None:
        """Register a new request; it must `wait` next."""
        self.residency.hold(_version(request))

    def wait(self, request: Request, now: float) -> bool:
        """Register that a request waits, as a new one or preempted; whether it may stand in line."""
        version = _version(request)
        self._waiting.setdefault(version, {})[request] = now
        if self._is_open(version):
            return True
        self.standing_aside += 1
        self._place(version)
        return False

    def unwait(self, request: Request) -> bool:
        """Remove a waiting request that has ended; whether it stood in line."""
        version = _version(request)
        stood = self._is_open(version)
        self.standing_aside -= not stood
        self._forget_waiting(request)
        if version not in self._waiting:
            if version == self._starving:
                self._stop_starving()
            if stood and version not in self._running:
                self.residency.move(version, AdapterVersionState.RESIDENT)
        self._place(version)
        self.residency.release(version)
        return stood

    def start(self, request: Request) -> None:
        """Register that a waiting request runs, which `admits` has let in."""
        version = _version(request)
        self._forget_waiting(request)
        self.residency.start(version)
        self._running.setdefault(version, {})[request] = None
        self._place(version)

    def stop(self, request: Request, *, ended: bool) -> None:
        """Register that a running request has ended, or is preempted and must `wait` next."""
        version = _version(request)
        self.residency.stop(version)
        running = self._running[version]
        del running[request]
        if not running:
            del self._running[version]
            self._may_open = True
            state = self.residency.state(version)
            if state is AdapterVersionState.DRAINING or (
                state is AdapterVersionState.OPEN and version not in self._waiting
            ):
                self.residency.move(version, AdapterVersionState.RESIDENT)
            self._place(version)
        if ended:
            self.residency.release(version)

    def admits(self, request: Request) -> bool:
        """Whether a request in line may run as far as its adapter is concerned."""
        version = _version(request)
        return version in self._in_step or (self._starving is None and self._fits(version))

    def close(self, version: str) -> list[Request]:
        """Stop admitting requests of an open version; return those that leave the line to stand aside."""
        if not self._is_open(version):
            return []
        self.residency.move(version, AdapterVersionState.RESIDENT)
        self._place(version)
        leaving = self.waiting(version)
        self.standing_aside += len(leaving)
        return leaving

    def evict(self) -> list[Request] | None:
        """Take the sectors of an adapter that no running request uses; return who leaves the line, None without one."""
        version = self.residency.next_wanted
        if version is None:
            return None
        leaving = self.close(version)
        self.residency.evict(version)
        self._place(version)
        return leaving

    # Steps.

    def relieve(self, now: float, growth: int) -> LineChanges:
        """Find starving adapters and make way for them. `growth`: KV blocks to be left to running requests."""
        changes = LineChanges()
        self.reserved = 0
        if self._hosted or self._closed or self._starving is not None:
            self._relieve(now, growth, changes)
        return changes

    def advance(self, growth: int) -> LineChanges:
        """Begin loads, and open adapters that can be opened."""
        changes = LineChanges()
        while self.residency.loading < self._config.loads and (job := self._next_load(growth, changes)) is not None:
            self._place(job.version)
            self._jobs.append(job)
        if self._may_open:
            self._may_open = False
            self._reopen(changes)
        return changes

    def take_jobs(self) -> list[Job]:
        """Return loads that have been decided on since the last call."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def take_refused(self) -> list[tuple[Request, RequestError]]:
        """Return waiting requests whose adapters can never be installed, with the reason; they must be ended."""
        refused, self._refused = self._refused, []
        return [(request, error) for version, error in refused for request in self.waiting(version)]

    def waiting(self, version: str) -> list[Request]:
        """Return all waiting requests with this version."""
        return list(self._waiting.get(version, ()))

    def prepared(self, version: str, sectors: int) -> None:
        """Register that a version is on the host."""
        self.residency.prepared(version, sectors)
        self._place(version)

    def installed(self, version: str) -> None:
        """Register that a version is on the device."""
        self.residency.installed(version)
        self._place(version)

    def failed(self, version: str) -> list[Request]:
        """Register that a load failed; return the requests that wait for it, which must be ended."""
        self.residency.failed(version)
        self._place(version)
        return self.waiting(version)

    def check_integrity(self, running: Iterable[Request], in_line: Iterable[Request]) -> None:
        """Check the bookkeeping against the scheduler's, the residency's and itself.

        Raises:
            RuntimeError: they differ; the message says where.
        """
        self.residency.check_integrity()
        used = {request for each in self._running.values() for request in each}
        in_line_waiting = {r for version in self._waiting if self._is_open(version) for r in self._waiting[version]}
        waiting = sum(map(len, self._waiting.values()))
        placed = [*self._absent.versions(), *self._hosted.versions(), *self._closed.versions()]
        counted = {
            *self._running,
            *(v for v in self._waiting if self.residency.state(v) is AdapterVersionState.ENTERING),
        }
        problems = {
            "running requests differ": used != {request for request in running if request.adapter is not None},
            "requests in line differ": in_line_waiting
            != {request for request in in_line if request.adapter is not None},
            "requests standing aside are counted wrongly": self.standing_aside != waiting - len(in_line_waiting),
            "a version is listed twice": len(placed) != len(set(placed)),
            "a version waits for nothing": set(placed)
            != {v for v in self._waiting if self.residency.state(v) not in (*LOADING, *IN_LINE)},
            "bytes are counted wrongly": self._in_step != counted,
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

    def _is_open(self, version: str) -> bool:
        return self.residency.state(version) in IN_LINE

    def _place(self, version: str) -> None:
        """Put a version into the list that its state, its waiting and its running requests call for."""
        state = self.residency.state(version)
        counts = version in self._running or state is AdapterVersionState.ENTERING
        (self._in_step.add if counts else self._in_step.discard)(version)
        for versions in (self._absent, self._hosted, self._closed):
            versions.discard(version)
        waiting = self._waiting.get(version)
        if waiting is None:
            return
        since = next(iter(waiting.values()))
        if state is AdapterVersionState.ABSENT:
            self._absent.add(version, since)
        elif state is AdapterVersionState.HOST:
            self._hosted.add(version, since)
        elif state in (AdapterVersionState.RESIDENT, AdapterVersionState.DRAINING):
            self._closed.add(version, since)
            self._may_open = True

    def _fits(self, version: str, more: int = 0) -> bool:
        """Whether a version's bytes fit into a step, beside those of other versions and `more`."""
        limit = self._config.step_bytes
        if limit is None or version in self._running:
            return True
        others = sum(map(self.residency.size, self._in_step)) + more
        return not others or others + self.residency.size(version) <= limit

    def _relieve(self, now: float, growth: int, changes: LineChanges) -> None:
        """Find starving adapters and make way for them."""
        if self._starving is None:
            since, version = min(self._hosted.first(), self._closed.first())
            if now - since <= self._config.wait or self._room(version, growth, urgent=False) is AdapterFit.YES:
                return
            self._starving = version
        version = self._starving
        if version not in self._hosted and version not in self._closed:
            return  # it is being loaded
        room = self._room(version, growth, urgent=True)
        if room is AdapterFit.YES:
            return
        if room is AdapterFit.BLOCKS:
            self.reserved = self.residency.sectors(version)
        since = (self._hosted if version in self._hosted else self._closed).since(version)
        draining = [other for other in self._running if self._drains(other)]
        if not draining:
            draining = self._choose_victim(version, changes)
        if now - since > 2 * self._config.wait:
            changes.preempted += [request for other in draining for request in self._running[other]]

    def _room(self, version: str, growth: int, *, urgent: bool) -> AdapterFit:
        """Whether a version on the host or the device can be brought in; yes if waiting for that is of no use."""
        if version in self._closed:
            return AdapterFit.YES if self._fits(version) else AdapterFit.BYTES
        room = self.residency.room(version, growth, urgent=urgent)
        return AdapterFit.YES if room is AdapterFit.NEVER else room

    def _choose_victim(self, version: str, changes: LineChanges) -> list[str]:
        """Let the adapter drain that needs the fewest steps for it; return none if draining would not help."""
        needs_sectors = version in self._hosted
        candidates = [
            other
            for other in self._running
            if not self._drains(other) and not (needs_sectors and self.residency.anchored(other))
        ]
        if not candidates:
            return []
        victim = min(candidates, key=lambda other: max(map(_remaining, self._running[other])))
        changes.leaving += self.close(victim)
        self.residency.move(victim, AdapterVersionState.DRAINING)
        self._place(victim)
        return [victim]

    def _stop_starving(self) -> None:
        self._starving = None
        for version in filter(self._drains, self._running):
            self.residency.move(version, AdapterVersionState.RESIDENT)
        self._may_open = True

    def _drains(self, version: str) -> bool:
        return self.residency.state(version) is AdapterVersionState.DRAINING

    def _next_load(self, growth: int, changes: LineChanges) -> Job | None:
        """Begin the load that is due next and return it; None if nothing is to be loaded or can be."""
        while self._hosted:
            version = self._hosted.first()[1]
            if self._starving is not None and self._starving in self._hosted:
                version = self._starving
            urgent = version == self._starving
            room = self.residency.room(version, growth, urgent=urgent)
            if room is AdapterFit.NEVER:
                self._hosted.discard(version)
                self._refused.append((version, self._too_large(version)))
                continue
            if room is not AdapterFit.YES:
                break
            while self.residency.room(version, growth) is not AdapterFit.YES:
                changes.leaving += self.evict() or ()
            return self.residency.install(version)
        if self._absent:
            since, version = self._absent.first()
            # The adapter waited for longest is prepared whatever the budget: one copy more, and none waits for ever.
            oldest = since <= min(self._hosted.first()[0], self._closed.first()[0])
            if oldest or self.residency.may_prepare():
                return self.residency.prepare(version)
        if self._starving in self._hosted:
            return None
        return self.prefetch.next_load(growth)

    def _reopen(self, changes: LineChanges) -> None:
        """Open versions that are on the device, the one waited for longest first, as far as their bytes fit."""
        opened = 0
        for version in self._closed.versions():
            new = version not in self._running
            if self._drains(version) or (new and self._starving not in (None, version)):
                continue
            if new and not self._fits(version, opened):
                return
            opened += self.residency.size(version) if new else 0
            starved = version == self._starving
            self.residency.move(version, AdapterVersionState.ENTERING if starved else AdapterVersionState.OPEN)
            self._place(version)
            waiting = self.waiting(version)
            self.standing_aside -= len(waiting)
            changes.joining += waiting
            if starved:
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
    """Return the tokens that a running request may still need."""
    return request.uncomputed + request.sampling.max_tokens - len(request.output)
