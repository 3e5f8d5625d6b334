"""The optional features of the core, and the stages of a step that belong to them."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from engine.adapters.loader import Loader
from engine.adapters.loads import Bank, Install, Prepare
from engine.adapters.residency import BASE_ONLY, ResidencyConfig
from engine.cache.host_tier import HostMemory
from engine.grammar.constraints import Constraints
from engine.grammar.masks import FilledMasks
from engine.outputs import failed, usage_of
from engine.plan import Handle, Row, Sampled, StepPlan
from engine.request import GrammarError, Request, RequestError, State
from engine.scheduling.host_loads import HostLoad
from engine.scheduling.scheduler import Scheduler
from engine.speculation.speculator import Speculator
from engine.wire import MAX_RESIDENT_NAMED, Output

logger = logging.getLogger(__name__)

_NO_ROWS = StepPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFeatures:
    """The optional features of an engine. One that is None is off, and requests that need it are refused."""

    constraints: Constraints | None = None
    """Compiles grammars and computes their masks."""
    bank: Bank | None = None
    """Holds the weights of adapters, within the bounds of `residency`."""
    residency: ResidencyConfig | None = None
    host: HostMemory | None = None
    """Holds prefixes that the KV cache has no room for."""
    speculator: Speculator | None = None
    """Decides what is drafted and learns how much of it was right."""

    def adapter_limits(self) -> ResidencyConfig:
        """Bounds of what adapters may take: nothing without a bank."""
        if self.bank is None:
            return BASE_ONLY
        return replace(self.residency or ResidencyConfig(), sector_bytes=self.bank.sector_bytes)


@dataclass(slots=True)
class CoreStep:
    """State of one step of the core; each stage reads what those before it have written."""

    begun: float
    """When the step began, on the core's clock."""
    outputs: list[Output]
    """Outputs for clients."""
    plan: StepPlan = _NO_ROWS
    masks: FilledMasks | None = None
    """Masks of the rows that sample under a grammar; None if there are none."""
    handle: Handle | None = None
    launched: float = 0.0
    """When the model was launched, on the core's clock."""
    sampled: Sequence[Sampled] = ()
    """Results of the plan's rows."""


Stage = Callable[[CoreStep], None]
Fail = Callable[[Request, RequestError], Output]
"""Ends a request with an error, wherever it is; returns its last output."""


@final
@dataclass(frozen=True, slots=True)
class GrammarStages:
    """Stages for grammars: requests wait until theirs is compiled; masks are computed beside the model."""

    constraints: Constraints
    scheduler: Scheduler
    fail: Fail

    def collect(self, step: CoreStep) -> None:
        """Queue requests whose grammar is compiled, and tell their clients; end those that cannot be served."""
        for request, error in self.constraints.collect():
            try:
                if error is not None:
                    raise error
                self.scheduler.add(request, step.begun)
                step.outputs.append(Output(request.id))
            except RequestError as refusal:
                request.move_to(State.FINISHED)
                step.outputs.append(failed(request.id, refusal, usage_of(request)))

    def start_masks(self, step: CoreStep) -> None:
        """Begin to compute the masks of the step's rows."""
        step.masks = self.constraints.start(step.plan.rows)

    def end_failed(self, step: CoreStep) -> None:
        """End requests whose grammar cannot be followed any further within the limits of one step."""
        for row in step.plan.rows if step.masks is not None else ():
            matcher = row.request.matcher
            if matcher is not None and matcher.error is not None:
                error = GrammarError(f"{matcher.error}; simplify it", "internal")
                step.outputs.append(self.fail(row.request, error))


@final
class AdapterStages:
    """Stages for adapters, which a thread loads beside the steps. `suspect` is called when the device failed."""

    def __init__(
        self, bank: Bank, scheduler: Scheduler, fail: Fail, suspect: Callable[[], None], wake: Callable[[], None]
    ) -> None:
        self._loader = Loader(bank, wake)
        self.resident: tuple[str, ...] = ()
        """Adapter versions on the device, at most `MAX_RESIDENT_NAMED`, last requested ones. Any thread may read it."""
        self._admission = scheduler.adapters
        self._fail = fail
        self._suspect = suspect

    @property
    def ready(self) -> bool:
        """Whether loads have ended that can be taken."""
        return self._loader.ready

    def close(self) -> None:
        """End the loading thread."""
        self._loader.close()

    def take_loaded(self, step: CoreStep) -> None:
        """Tell the scheduler which loads have ended; end requests whose adapter could not be loaded."""
        for loaded in self._loader.take():
            job = loaded.job
            if loaded.error is not None:
                logger.warning("adapter %s: %s", job.version, loaded.error)
                step.outputs += [self._fail(request, loaded.error) for request in self._admission.failed(job.version)]
                if isinstance(job, Install):
                    self._suspect()
            elif isinstance(job, Prepare):
                self._admission.prepared(job.version, loaded.sectors)
            else:
                self._admission.installed(job.version)
                self._name_residents()

    def begin_loads(self, step: CoreStep) -> None:
        """Begin the loads that are decided on; end requests that can never be served."""
        self._loader.forget(self._admission.residency.take_forgotten())
        for job in self._admission.take_jobs():
            self._loader.submit(job)
        step.outputs += [self._fail(request, error) for request, error in self._admission.take_refused()]

    def clear_blocks(self) -> None:
        """Remove adapters that have lost their blocks, before anything else is written there."""
        removed = self._admission.residency.take_removed()
        if removed:
            self._loader.remove(removed)
            self._name_residents()

    def _name_residents(self) -> None:
        self.resident = tuple(self._admission.residency.resident[-MAX_RESIDENT_NAMED:])


@final
class HostKVStages:
    """Stages for KV in host memory: evicted KV is copied there, and a thread loads it back beside the steps."""

    def __init__(self, memory: HostMemory, scheduler: Scheduler, wake: Callable[[], None]) -> None:
        self.memory = memory
        self._scheduler = scheduler
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, "kv loader")
        self._ended: queue.SimpleQueue[tuple[HostLoad, bool]] = queue.SimpleQueue()
        """Loads that have ended, and whether they failed."""

    @property
    def ready(self) -> bool:
        """Whether loads have ended that can be taken."""
        return not self._ended.empty()

    def take_loaded(self, step: CoreStep) -> None:
        """Tell the scheduler which loads have ended."""
        while not self._ended.empty():  # nobody else takes from it
            load, broken = self._ended.get_nowait()
            self._scheduler.loads.end(load, failed=broken)

    def begin_loads(self, step: CoreStep) -> None:
        """Begin the loads that are decided on."""
        for load in self._scheduler.loads.take_due():
            finish = self.memory.begin_load(load.host_blocks, load.blocks)
            self._thread.submit(finish).add_done_callback(partial(self._end, load))

    def clear_blocks(self) -> None:
        """Save KV that has lost its blocks, before anything else is written there."""
        saves = self._scheduler.pool.host.take_saves()
        if saves:
            self.memory.save(saves)

    def close(self) -> None:
        """End the loading thread; loads that it has not begun are given up."""
        self._thread.shutdown(cancel_futures=True)

    def _end(self, load: HostLoad, future: Future[None]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            # Its request computes what it did not get.
            logger.error("KV could not be loaded from host memory", exc_info=error)
        self._ended.put((load, error is not None))
        self._wake()


@final
@dataclass(frozen=True, slots=True)
class DraftStages:
    """Stages for speculative decoding. `clear_blocks` makes the blocks ready that drafts were given."""

    speculator: Speculator
    scheduler: Scheduler
    clear_blocks: Callable[[], None]
    clock: Callable[[], float]

    def propose(self, step: CoreStep) -> None:
        """Add drafts to the plan, as far as grammars allow them.

        They do not change after that: the runner reports how much of them was right.
        """
        depths = self.speculator.depths(step.plan)
        if depths:
            drafts = self.speculator.propose(step.plan, self.scheduler.reserve(step.plan, depths))
            rows = [_with_legal_draft(row, drafts.get(row.request.id, ())) for row in step.plan.rows]
            step.plan = StepPlan(rows, step.plan.preempted)
            self.clear_blocks()

    def observe(self, step: CoreStep) -> None:
        """Learn from the step's duration and from how much of its drafts was right."""
        self.speculator.observe(step.plan, step.sampled, self.clock() - step.launched)


def _with_legal_draft(row: Row, draft: tuple[int, ...]) -> Row:
    if not draft:
        return row
    matcher = row.request.matcher
    return row.with_draft(draft if matcher is None else tuple(matcher.truncate_draft(draft)))
