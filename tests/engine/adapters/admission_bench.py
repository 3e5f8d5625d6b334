"""A scheduler with adapters whose loads take a number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.adapters.config import AdapterError
from engine.adapters.loads import Job, Prepare
from engine.adapters.residency import ResidencyConfig
from engine.request import Request
from tests.engine.adapters.ledger_bank import LedgerBank
from tests.engine.scheduler_bench import Bench

_SIZES = {"share", "host_bytes", "step_bytes", "wait", "loads"}


class AdapterBench(Bench):
    """A bench whose adapters take `delay` steps to load."""

    def __init__(self, blocks: int = 16, *, sizes: Mapping[str, int] | None = None, delay: int = 0, **config: Any):
        residency = {name: config.pop(name) for name in _SIZES & config.keys()}
        super().__init__(blocks, adapters=ResidencyConfig(**residency, sector_bytes=LedgerBank.sector_bytes), **config)
        self.runner: LedgerBank = LedgerBank(blocks, sizes)
        self.adapters = self.scheduler.adapters
        self.delay = delay
        self.loading: list[tuple[float, Job]] = []
        self.failed: dict[str, str] = {}
        """Errors that ended requests, by request."""

    def step(self) -> dict[str, int]:
        """End the loads that are due, schedule, carry out what the bank plans, and run the step."""
        while self.loading and self.loading[0][0] <= self.now:
            self._finish(self.loading.pop(0)[1])
        ran = super().step()
        assert self.runner.host >= self.runner.device.keys()
        return ran

    def _before_execution(self) -> None:
        residency = self.adapters.residency
        for version in residency.take_removed():
            self.runner.remove(version)
        for version in residency.take_forgotten():
            self.runner.forget(version)
        for request, error in self.adapters.take_refused():
            self._fail(request, str(error))
        self.loading += [(self.now + self.delay, job) for job in self.adapters.take_jobs()]

    def _finish(self, job: Job) -> None:
        try:
            if isinstance(job, Prepare):
                self.adapters.prepared(job.version, self.runner.prepare(job.version))
            else:
                self.runner.install(job.version, job.sectors)
                self.adapters.installed(job.version)
        except (AdapterError, OSError) as error:
            for request in self.adapters.failed(job.version):
                self._fail(request, str(error))

    def _fail(self, request: Request, message: str) -> None:
        self.scheduler.cancel(request.id, "error")
        self.failed[request.id] = message

    def run(self, steps: int = 10_000) -> None:
        """Step until nothing is left; a step without rows is one in which something loads."""
        while len(self.scheduler):
            assert steps > 0, "the scheduler does not finish its work"
            failed = len(self.failed)
            assert self.step() or self.loading or len(self.failed) > failed, (
                "a step without rows although there is work"
            )
            steps -= 1
