"""The engine without its sockets: requests in, outputs out, one step at a time.

    core = EngineCore(runner, model, SchedulerConfig(blocks=2048))
    core.add(Generate(id="1", prompt=[1, 2, 3], sampling=SamplingParams()))
    while not core.idle:
        for output in core.step():
            ...

Synchronous and single-threaded: whoever hosts a core calls it from one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import msgspec

from engine.adapters.loader import Loader
from engine.adapters.loads import Bank, Install, Prepare
from engine.adapters.residency import BASE_ONLY, ResidencyConfig
from engine.cache.prefix_keys import chain_root
from engine.execution.device_check import DeviceCheck
from engine.execution.host_loader import HostLoader, HostMemory
from engine.grammar.constraints import Constraints
from engine.outputs import failed, gained, usage_of
from engine.plan import Runner, Sampled, StepPlan
from engine.request import GrammarError, Request, RequestError, State
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.scheduler import Scheduler
from engine.speculation.speculator import Speculator
from engine.validation import is_adapter_version, validate
from engine.wire import MAX_RESIDENT_NAMED, Generate, Load, ModelInfo, Output

logger = logging.getLogger(__name__)

__all__ = ["EngineCore", "RequestError", "SchedulerConfig"]

_STALLED_SECONDS = 0.1
"""How often requests that wait for loads only are looked at, for time limits of theirs."""
_SMOOTHING = 0.1
"""Weight of the newest step in the moving average of step times."""


class EngineCore:
    """One model replica.

    `bank` serves adapters, as far as `residency` lets it, and `constraints` grammars; without them requests that have
    one are refused. `host` takes what the prefix cache has no room for. `clock` gives seconds that never go back.
    """

    def __init__(
        self,
        runner: Runner,
        model: ModelInfo,
        config: SchedulerConfig,
        *,
        speculator: Speculator | None = None,
        constraints: Constraints | None = None,
        bank: Bank | None = None,
        residency: ResidencyConfig | None = None,
        host: HostMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._runner = runner
        if bank is None:
            residency = BASE_ONLY
        else:
            residency = replace(residency or ResidencyConfig(), sector_bytes=bank.sector_bytes)
        self._scheduler = Scheduler(config, model, residency, 0 if host is None else host.blocks)
        self._host = None if host is None else HostLoader(host, lambda: self.wake())
        self._adapters = self._scheduler.adapters
        self._device = DeviceCheck(runner, self._scheduler.pool, self._clear_blocks)
        self._loader = None if bank is None else Loader(bank, lambda: self.wake())
        self.model = msgspec.structs.replace(model, context=self._scheduler.context)
        """What clients are told: its context is what this engine can hold."""
        self.wake: Callable[[], None] = lambda: None
        """Called, in any thread, when a core that has been idle may have something to do. Set by whoever hosts it."""
        self._speculator = speculator
        self._constraints = constraints
        self._clock = clock
        self._deadlines = Deadlines()
        self.resident_adapters: tuple[str, ...] = ()
        """At most `MAX_RESIDENT_NAMED` versions on the device, those asked for last. Any thread may read it."""
        self._had_rows = True
        """Whether the last step had any."""
        self._ended: list[Output] = []
        """Last words of requests that ended between steps."""
        self._step_seconds = 0.0

    def __len__(self) -> int:
        """Live requests, those included that wait for something before they can run."""
        return len(self._scheduler) + (0 if self._constraints is None else len(self._constraints))

    @property
    def idle(self) -> bool:
        """Nothing to do: `step` would return nothing until something is added or `wake` is called."""
        compiled = self._constraints is not None and self._constraints.ready
        loaded = self._loader is not None and self._loader.ready
        loads = len(self._scheduler) + len(self._scheduler.loads)
        return loads == 0 and not self._ended and not compiled and not loaded

    @property
    def patience(self) -> float | None:
        """Seconds that its host may wait for messages before the next step: 0 while there is work, None for ever."""
        if not self.idle:
            return _STALLED_SECONDS if self.stalled else 0.0
        due = self._deadlines.next()  # of requests whose grammar is being compiled
        return None if due is None else max(0.0, due - self._clock())

    @property
    def stalled(self) -> bool:
        """All requests wait for loads: no step has rows before `wake` is called, or a request comes or ends."""
        loaders = [loader for loader in (self._loader, self._host) if loader is not None]
        if not loaders or self._ended or any(loader.ready for loader in loaders):
            return False
        if len(self._scheduler.loads) and not self._had_rows:
            return True
        return 0 < len(self._scheduler) == self._adapters.standing_aside and self._adapters.residency.loading > 0

    @property
    def serves_adapters(self) -> bool:
        return self._loader is not None

    def add(self, generate: Generate) -> None:
        """Accept a request; its outputs come from `step`.

        Raises:
            RequestError: it is refused; nothing else is affected.
        """
        validate(generate, self.model, adapters=self.serves_adapters)
        request = Request(
            id=generate.id,
            prompt=generate.prompt,
            sampling=generate.sampling,
            arrival=self._clock(),
            adapter=generate.adapter,
            tenant=generate.tenant,
            weight=generate.weight,
            service=generate.service,
            grammar=generate.grammar,
            queue_timeout=generate.queue_timeout,
            timeout=generate.timeout,
            speculate=generate.speculate,
            chain_root=chain_root(self.model, len(generate.prompt), generate.adapter, generate.salt),
        )
        if request.id in self._scheduler or (self._constraints is not None and request.id in self._constraints):
            raise RequestError(f"{request.id!r} is a live request; choose another id", field="id")
        if len(self) >= self.config.max_requests:
            retry_after = self._scheduler.queue_seconds or None
            raise RequestError(f"the engine is full ({len(self)} requests); try again", "overloaded", retry_after)
        if request.grammar is None:
            self._scheduler.add(request, request.arrival)
        elif self._constraints is None:
            raise GrammarError("not supported by this engine; leave it out")
        else:
            self._constraints.add(request, lambda: self.wake())
            if request.adapter is not None:
                self._adapters.prefetch.announce(request.adapter)
        self._deadlines.add(request, len(self))

    def announce(self, adapter: str) -> None:
        """A request for this adapter version is about to come: begin to load it, if there is room."""
        if self.serves_adapters and is_adapter_version(adapter):
            self._adapters.prefetch.announce(adapter)

    def pin(self, adapters: Iterable[str]) -> None:
        """Load these adapter versions ahead and keep them, and no others."""
        if self.serves_adapters:
            self._adapters.prefetch.pin(filter(is_adapter_version, adapters))

    def follow_blocks(self, on: bool) -> None:
        """Whether somebody wants to know which prefix blocks are cached."""
        self._scheduler.pool.follow(on)

    def held_blocks(self) -> Collection[bytes]:
        """Keys of all prefix blocks that are cached now."""
        return self._scheduler.pool.prefixes

    def take_block_changes(self) -> dict[bytes, bool]:
        """Keys of blocks that are cached since the last call (True) or not any more (False), if somebody follows."""
        return self._scheduler.pool.take_changes()

    def close(self) -> None:
        """End the threads that load. The core must not be used any more."""
        for loader in (self._loader, self._host):
            if loader is not None:
                loader.close()

    def cancel(self, id: str) -> None:
        """End a request now and free its blocks; its last output comes from the next step. Unknown ids are ignored."""
        request = self._scheduler.cancel(id)
        if request is not None:
            self._release(request)
        elif self._constraints is not None:
            request = self._constraints.cancel(id)
        if request is not None:
            self._ended.append(Output(id, finish="cancelled", usage=usage_of(request)))

    def step(self) -> list[Output]:
        """Run one step; at most one output per request, after an empty one if its grammar has just been compiled.

        Raises:
            DeviceLost: steps fail whatever is in them.
        """
        outputs, self._ended = self._ended, []
        begun = self._clock()
        if self._constraints is not None and self._constraints.ready:
            outputs += self._collect(self._constraints, begun)
        outputs += [self._expired(request) for request in self._deadlines.due(begun)]
        if self._loader is not None and self._loader.ready:
            outputs += self._take_loaded(self._loader)
        if self._host is not None:
            for load, failed in self._host.take():
                self._scheduler.loads.end(load, failed=failed)
        plan = self._scheduler.schedule(begun)
        self._had_rows = bool(plan)
        for request in plan.preempted:
            self._release(request)
        self._clear_blocks()
        if self._loader is not None:
            outputs += self._load_adapters(self._loader)
        if self._host is not None:
            for load in self._scheduler.loads.take_due():
                self._host.submit(load)
        if not plan:
            return outputs
        masks = None
        try:
            if self._speculator is not None:
                plan = self._drafted(plan, self._speculator)
                self._clear_blocks()
            masks = None if self._constraints is None else self._constraints.start(plan.rows)
            launched = self._clock()
            sampled = self._runner.launch(plan, masks).result()
            if self._speculator is not None:
                self._speculator.observe(plan, sampled, self._clock() - launched)
            _check(plan, sampled)
        except Exception:
            if masks is not None:
                masks.settle()
            # Whatever a row did to the runner ends with this step: its requests go, all others stay.
            logger.exception("a step of %d requests and %d tokens failed", len(plan.rows), plan.tokens)
            error = RequestError("the engine failed while it ran this request; try again", "internal")
            outputs += [self._fail(row.request, error) for row in plan.rows]
            self._device.suspect()
            return outputs
        self._device.passed()
        if masks is not None:
            outputs += self._end_failed_grammars(plan)
        starts = {row.request.id: row.start for row in plan.rows}
        for request, result in self._scheduler.commit(plan, sampled):
            output = gained(request, result, starts[request.id])
            if output is not None:
                outputs.append(output)
            if request.finish is not None:
                self._release(request)
        elapsed = self._clock() - begun
        self._step_seconds += _SMOOTHING * (elapsed - self._step_seconds) if self._step_seconds else elapsed
        return outputs

    def _collect(self, constraints: Constraints, now: float) -> list[Output]:
        """Put requests whose grammar is compiled into the line: first words of these, which tell their clients so, and
        last words of those that cannot be served.
        """
        words: list[Output] = []
        for request, error in constraints.collect():
            try:
                if error is not None:
                    raise error
                self._scheduler.add(request, now)
                words.append(Output(request.id))
            except RequestError as refusal:
                request.move_to(State.FINISHED)
                words.append(failed(request.id, refusal, usage_of(request)))
        return words

    def _take_loaded(self, loader: Loader) -> list[Output]:
        """Tell the scheduler which loads have ended; the last words of requests whose adapter could not be loaded."""
        ended: list[Output] = []
        for loaded in loader.take():
            job = loaded.job
            if loaded.error is not None:
                logger.warning("adapter %s: %s", job.version, loaded.error)
                ended += [self._fail(request, loaded.error) for request in self._adapters.failed(job.version)]
                if isinstance(job, Install):
                    self._device.suspect()
            elif isinstance(job, Prepare):
                self._adapters.prepared(job.version, loaded.sectors)
            else:
                self._adapters.installed(job.version)
        self._name_residents()
        return ended

    def _name_residents(self) -> None:
        self.resident_adapters = tuple(self._adapters.residency.resident[-MAX_RESIDENT_NAMED:])

    def _clear_blocks(self) -> None:
        """Save KV and remove adapters that have lost their blocks, before anything else is written there."""
        saves = self._scheduler.pool.host.take_saves()
        if saves and self._host is not None:
            self._host.memory.save(saves)
        removed = self._adapters.residency.take_removed()
        if removed and self._loader is not None:
            self._loader.remove(removed)
            self._name_residents()

    def _load_adapters(self, loader: Loader) -> list[Output]:
        """Begin the loads of adapters that are decided on; last words of requests that can never be served."""
        loader.forget(self._adapters.residency.take_forgotten())
        for job in self._adapters.take_jobs():
            loader.submit(job)
        return [self._fail(request, error) for request, error in self._adapters.take_refused()]

    def _end_failed_grammars(self, plan: StepPlan) -> list[Output]:
        """End requests whose grammar cannot be followed any further within the limits of one step."""
        matchers = [(row.request, row.request.matcher) for row in plan.rows]
        return [
            self._fail(request, GrammarError(f"{matcher.error}; simplify it", "internal"))
            for request, matcher in matchers
            if matcher is not None and matcher.error is not None
        ]

    def load(self) -> Load:
        """A snapshot for routers and metrics."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        block_bytes = 0 if self._host is None else self._host.memory.block_bytes
        return Load(
            running=len(scheduler.running),
            waiting=len(self) - len(scheduler.running),
            waiting_tokens=scheduler.uncomputed_tokens,
            total_blocks=pool.total,
            free_blocks=pool.free,
            cached_blocks=pool.cached,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            prompt_tokens=scheduler.prompt_tokens,
            output_tokens=scheduler.output_tokens,
            preemptions=scheduler.preemptions,
            step_seconds=self._step_seconds,
            predicted_queue_seconds=scheduler.queue_seconds,
            drafted_tokens=self._speculator.drafted if self._speculator else 0,
            accepted_tokens=self._speculator.accepted if self._speculator else 0,
            lent_blocks=pool.lent,
            adapter_loads=self._adapters.residency.loads,
            adapter_evictions=self._adapters.residency.evictions,
            host_blocks=pool.host.total,
            host_free_blocks=pool.host.free,
            host_cached_blocks=pool.host.cached,
            host_hit_tokens=scheduler.loads.hit_tokens,
            host_saved_bytes=pool.host.saved * block_bytes,
            host_loaded_bytes=scheduler.loads.loaded * block_bytes,
        )

    def check_integrity(self) -> None:
        """Compare the books: every block is free, cached or used, and used by whom. Cheap; run it when idle.

        Raises:
            RuntimeError: something leaked; the message says what.
        """
        self._scheduler.check_integrity()

    def _expired(self, request: Request) -> Output:
        """End a request that has missed a time limit, wherever it is; its last words.

        Who never ran ends with "error": it could not be served in time. Who did ends with "timeout" and what it has.
        """
        ran = request.first_scheduled is not None
        if self._scheduler.cancel(request.id, "timeout" if ran else "error") is not None:
            self._release(request)
        elif self._constraints is not None:
            self._constraints.cancel(request.id)
        if ran:
            return Output(request.id, finish="timeout", usage=usage_of(request))
        message = "the engine was too busy to begin with this request in time; try again later"
        error = RequestError(message, "overloaded", self._scheduler.queue_seconds or None)
        return failed(request.id, error, usage_of(request))

    def _drafted(self, plan: StepPlan, speculator: Speculator) -> StepPlan:
        """The plan with drafts, as far as grammars allow them.

        Once they are in the plan nobody changes them: the runner answers how much of them was right.
        """
        depths = speculator.depths(plan)
        if not depths:
            return plan
        drafts = speculator.propose(plan, self._scheduler.reserve(plan, depths))
        rows = [
            msgspec.structs.replace(row, draft=_legal(row.request, drafts[row.request.id]))
            if row.request.id in drafts
            else row
            for row in plan.rows
        ]
        return StepPlan(rows, plan.preempted)

    def _release(self, request: Request) -> None:
        """A request has finished or lost its blocks."""
        self._runner.release(request)
        if self._speculator is not None:
            self._speculator.release(request)

    def _fail(self, request: Request, error: RequestError) -> Output:
        self._scheduler.cancel(request.id, "error")
        self._release(request)
        return failed(request.id, error, usage_of(request))


def _legal(request: Request, draft: tuple[int, ...]) -> tuple[int, ...]:
    return draft if request.matcher is None or not draft else tuple(request.matcher.truncate_draft(draft))


def _check(plan: StepPlan, sampled: Sequence[Sampled]) -> None:
    if len(sampled) != len(plan.rows):
        raise RuntimeError(f"the runner answered {len(sampled)} rows of {len(plan.rows)}")
    for row, result in zip(plan.rows, sampled, strict=True):
        if row.sample != bool(result.tokens):
            raise RuntimeError(f"the runner sampled {result.tokens} where sample is {row.sample}")
