"""The engine without its sockets: requests in, outputs out, one step at a time.

    core = EngineCore(runner, model, SchedulerConfig(blocks=2048))
    core.add(Generate(id="1", prompt=[1, 2, 3], sampling=SamplingParams()))
    while not core.idle:
        for output in core.step():
            ...

Synchronous and single-threaded: the host of a core calls it from one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from engine.cache.prefix_keys import chain_root
from engine.execution.device_check import DeviceCheck
from engine.outputs import failed, gained, usage_of
from engine.plan import Runner, Sampled, StepPlan
from engine.request import GrammarError, Request, RequestError
from engine.scheduling.config import SchedulerConfig
from engine.scheduling.deadlines import Deadlines
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.work import WorkTally
from engine.stages import AdapterStages, CoreStep, DraftStages, EngineFeatures, GrammarStages, HostKVStages, Stage
from engine.validation import is_adapter_version, validate
from engine.wire import FinishReason, Generate, Load, ModelInfo, Output

logger = logging.getLogger(__name__)

__all__ = ["EngineCore", "EngineFeatures", "RequestError", "SchedulerConfig"]

_STALLED_SECONDS = 0.1
"""Seconds between checks of time limits while all requests wait for loads."""
_LARGE = 0.25
"""Share of `step_tokens` from which a step says how long a step of all of them takes."""
_SMOOTHING = 0.1
"""Weight of the newest step in the moving average of step times."""


class EngineCore:
    """Runs one replica of a model with its optional `features`. `clock` gives seconds that never go back."""

    def __init__(
        self,
        runner: Runner,
        model: ModelInfo,
        config: SchedulerConfig,
        features: EngineFeatures | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.wake: Callable[[], None] = lambda: None
        """Callback set by the host, called in any thread when a core that has been idle may have something to do."""
        self._wake = lambda: self.wake()
        self._runner = runner
        self._clock = clock
        features = features or EngineFeatures()
        bank, host = features.bank, features.host
        self._constraints, self._speculator = features.constraints, features.speculator
        blocks_on_host = 0 if host is None else host.blocks
        scheduler = self._scheduler = Scheduler(config, model, features.adapter_limits(), blocks_on_host)
        self.model = msgspec.structs.replace(model, context=scheduler.context)
        """Model as clients are told of it: its context is what this engine can hold."""
        self.work = WorkTally()
        self._deadlines = Deadlines()
        self._device = DeviceCheck(runner, scheduler.pool, self._clear_blocks)
        self._adapters = self._host = self._grammars = self._drafts = None
        if bank is not None:
            self._adapters = AdapterStages(bank, scheduler, self._fail, self._device.suspect, self._wake)
        if host is not None:
            self._host = HostKVStages(host, scheduler, self._wake)
        if self._constraints is not None:
            self._grammars = GrammarStages(self._constraints, scheduler, self._fail)
        if self._speculator is not None:
            self._drafts = DraftStages(self._speculator, scheduler, self._clear_blocks, clock)
        self._loading = [each for each in (self._host, self._adapters) if each is not None]
        self._plan_stages, self._run_stages, self._end_stages = self._stages()
        self._had_rows = True
        """Whether the last step had any rows."""
        self._ended: list[Output] = []
        """Last outputs of requests that ended between steps."""
        self._step_seconds = 0.0
        self.largest_step = 0.0
        """Seconds that a step of all `step_tokens` takes: as expected by whoever warmed up, then as measured."""
        self.predicted_step = 0.0
        """Seconds that the step that runs now is predicted to take. Any thread may read it."""

    def __len__(self) -> int:
        """Number of live requests, including those that wait for something before they can run."""
        return len(self._scheduler) + (0 if self._constraints is None else len(self._constraints))

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do: `step` returns nothing until something is added or `wake` is called."""
        return len(self._scheduler) + len(self._scheduler.loads) == 0 and not self._has_results

    @property
    def patience(self) -> float | None:
        """Seconds that the host may wait for messages before the next step: 0 while there is work, None for ever."""
        if not self.idle:
            return _STALLED_SECONDS if self.stalled else 0.0
        due = self._deadlines.next()  # of requests whose grammar is being compiled
        return None if due is None else max(0.0, due - self._clock())

    @property
    def stalled(self) -> bool:
        """Whether all requests wait for loads: no step has rows before `wake` is called, or a request comes or ends."""
        if self._has_results:
            return False
        if len(self._scheduler.loads) and not self._had_rows:
            return True
        admission = self._scheduler.adapters
        return 0 < len(self._scheduler) == admission.standing_aside and admission.residency.loading > 0

    @property
    def serves_adapters(self) -> bool:
        return self._adapters is not None

    @property
    def resident_adapters(self) -> tuple[str, ...]:
        """Adapter versions on the device, at most `MAX_RESIDENT_NAMED`, last requested ones. Any thread may read it."""
        return () if self._adapters is None else self._adapters.resident

    @property
    def adapter_share(self) -> float:
        """Share of the adapters' blocks that those hold which requests name or which are pinned."""
        return self._scheduler.adapters.residency.used_share

    def add(self, generate: Generate) -> None:
        """Accept a request; its outputs come from `step`.

        Raises:
            RequestError: it is refused; nothing else is affected.
        """
        validate(generate, self.model, adapters=self.serves_adapters)
        begun = len(generate.prompt) - generate.resumed
        request = Request(
            id=generate.id,
            prompt=generate.prompt[:begun],
            output=generate.prompt[begun:],
            resumed=generate.resumed,
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
            chain_root=chain_root(self.model, begun, generate.adapter, generate.salt),
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
            self._constraints.add(request, self._wake)
            if request.adapter is not None:
                self._scheduler.adapters.prefetch.announce(request.adapter)
        self._deadlines.add(request, len(self))

    def announce(self, adapter: str) -> None:
        """Begin to load an adapter version that a request is about to name, if there is room."""
        if self.serves_adapters and is_adapter_version(adapter):
            self._scheduler.adapters.prefetch.announce(adapter)

    def pin(self, adapters: Iterable[str]) -> None:
        """Load these adapter versions without waiting for a request, and keep them and no others."""
        if self.serves_adapters:
            self._scheduler.adapters.prefetch.pin(filter(is_adapter_version, adapters))

    def follow_blocks(self, on: bool) -> None:
        """Start or stop recording for `take_block_changes` which prefix blocks are cached."""
        self._scheduler.pool.follow(on)

    def held_blocks(self) -> Collection[bytes]:
        """Return the keys of all prefix blocks that are cached now."""
        return self._scheduler.pool.prefixes

    def take_block_changes(self) -> dict[bytes, bool]:
        """Return the keys of blocks cached (True) or evicted (False) since the last call, if changes are recorded."""
        return self._scheduler.pool.take_changes()

    def close(self) -> None:
        """End the loading threads. The core must not be used any more."""
        for stages in self._loading:
            stages.close()

    def cancel(self, id: str) -> None:
        """End a request now and free its blocks; its last output comes from the next step. Unknown ids are ignored."""
        request = self._end(id, "cancelled")
        if request is not None:
            self._ended.append(Output(id, finish="cancelled", usage=usage_of(request)))

    def step(self) -> list[Output]:
        """Run one step; return at most one output per request, after an empty one if its grammar was just compiled.

        Raises:
            DeviceLost: every step fails, whatever is in it.
        """
        step = CoreStep(self._clock(), self._ended)
        self._ended = []
        for stage in self._plan_stages:
            stage(step)
        if step.plan:
            try:
                for stage in self._run_stages:
                    stage(step)
            except Exception:
                self._end_failed_step(step)
            else:
                for stage in self._end_stages:
                    stage(step)
        return step.outputs

    def _stages(self) -> list[list[Stage]]:
        """Return the stages of a step in their order; the stages of a feature that is off are absent.

        The first list plans the step. The second runs it if it has rows: a failure there ends the requests in the step,
        and no others. The third reports the results. On a device the model runs between `_launch` and `_await`.
        """
        grammars, adapters, host, drafts = self._grammars, self._adapters, self._host, self._drafts
        plan = [
            grammars and grammars.collect,
            self._expire,
            adapters and adapters.take_loaded,
            host and host.take_loaded,
            self._schedule,
            adapters and adapters.begin_loads,
            host and host.begin_loads,
        ]
        run = [
            drafts and drafts.propose,
            grammars and grammars.start_masks,
            self._launch,
            self._await,
            drafts and drafts.observe,
        ]
        end = [grammars and grammars.end_failed, self._commit]
        return [[stage for stage in stages if stage is not None] for stages in (plan, run, end)]

    def _expire(self, step: CoreStep) -> None:
        """End requests that have missed a time limit, wherever they are.

        Requests that never ran end with "error"; requests that ran end with "timeout" and keep their output.
        """
        for request in self._deadlines.due(step.begun):
            ran = request.first_scheduled is not None
            if request.resumed and request.timeout is not None:  # it ran elsewhere
                ran |= step.begun - request.arrival >= request.timeout
            self._end(request.id, "timeout" if ran else "error")
            if ran:
                step.outputs.append(Output(request.id, finish="timeout", usage=usage_of(request)))
            else:
                message = "the engine was too busy to begin with this request in time; try again later"
                error = RequestError(message, "overloaded", self._scheduler.queue_seconds or None)
                step.outputs.append(failed(request.id, error, usage_of(request)))

    def _schedule(self, step: CoreStep) -> None:
        """Choose the rows of the step, and make the blocks ready that they write to."""
        step.plan = self._scheduler.schedule(step.begun)
        self._had_rows = bool(step.plan)
        for request in step.plan.preempted:
            self._release(request)
        self._clear_blocks()

    def _launch(self, step: CoreStep) -> None:
        """Start the model."""
        step.launched = self._clock()
        share = step.plan.tokens / self.config.step_tokens
        self.predicted_step = max(self._step_seconds, self.largest_step * share)
        step.handle = self._runner.launch(step.plan, step.masks)

    def _await(self, step: CoreStep) -> None:
        """Wait for the tokens of the step."""
        assert step.handle is not None
        step.sampled = step.handle.result()
        _check(step.plan, step.sampled)

    def _commit(self, step: CoreStep) -> None:
        """Apply the step's results to its requests: append tokens, publish blocks, finish those that have ended."""
        self._device.passed()
        starts, now = {row.request.id: row.start for row in step.plan.rows}, self._clock()
        for request, result in self._scheduler.commit(step.plan, step.sampled):
            output = gained(request, result, starts[request.id])
            if output is not None:
                step.outputs.append(output)
                self.work.gained(request, output, now)
            if request.finish is not None:
                self._release(request)
        elapsed = self._clock() - step.begun
        self.work.ran(step.plan, elapsed)
        if step.plan.tokens >= _LARGE * self.config.step_tokens:
            self.largest_step = elapsed * self.config.step_tokens / step.plan.tokens
        self._step_seconds += _SMOOTHING * (elapsed - self._step_seconds) if self._step_seconds else elapsed

    def _end_failed_step(self, step: CoreStep) -> None:
        """End the requests of a failed step, and with them all state that it left in the runner; all others stay.

        Raises:
            DeviceLost: the device does not compute any more.
        """
        if step.masks is not None:
            step.masks.settle()
        logger.exception("a step of %d requests and %d tokens failed", len(step.plan.rows), step.plan.tokens)
        error = RequestError("the engine failed while it ran this request; try again", "internal")
        step.outputs += [self._fail(row.request, error) for row in step.plan.rows]
        self._device.suspect()

    def load(self) -> Load:
        """Return a snapshot for routers and metrics."""
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
            adapter_loads=scheduler.adapters.residency.loads,
            adapter_evictions=scheduler.adapters.residency.evictions,
            host_blocks=pool.host.total,
            host_free_blocks=pool.host.free,
            host_cached_blocks=pool.host.cached,
            host_hit_tokens=scheduler.loads.hit_tokens,
            host_saved_bytes=pool.host.saved * block_bytes,
            host_loaded_bytes=scheduler.loads.loaded * block_bytes,
        )

    def check_integrity(self) -> None:
        """Check that every block is free, cached or used, and by whom it is used. Cheap; run it when idle.

        Raises:
            RuntimeError: something leaked; the message says what.
        """
        self._scheduler.check_integrity()

    @property
    def _has_results(self) -> bool:
        """Whether grammars, requests or loads have ended that the next step is to report or take up."""
        compiled = self._constraints is not None and self._constraints.ready
        return compiled or bool(self._ended) or any([stages.ready for stages in self._loading])

    def _clear_blocks(self) -> None:
        """Save KV and remove adapters that have lost their blocks, before anything else is written there."""
        for stages in self._loading:
            stages.clear_blocks()

    def _end(self, id: str, reason: FinishReason) -> Request | None:
        """End a request wherever it is and return it; None if there is no such request."""
        request = self._scheduler.cancel(id, reason)
        if request is not None:
            self._release(request)
        elif self._constraints is not None:
            request = self._constraints.cancel(id)
        return request

    def _fail(self, request: Request, error: RequestError) -> Output:
        """End a request with an error; return its last output."""
        self._end(request.id, "error")
        return failed(request.id, error, usage_of(request))

    def _release(self, request: Request) -> None:
        """Forget what is kept of a request that has finished or lost its blocks."""
        self._runner.release(request)
        if self._speculator is not None:
            self._speculator.release(request)


def _check(plan: StepPlan, sampled: Sequence[Sampled]) -> None:
    if len(sampled) != len(plan.rows):
        raise RuntimeError(f"the runner answered {len(sampled)} rows of {len(plan.rows)}")
    for row, result in zip(plan.rows, sampled, strict=True):
        if row.sample != bool(result.tokens):
            raise RuntimeError(f"the runner sampled {result.tokens} where sample is {row.sample}")
