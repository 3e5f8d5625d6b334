"""A bank without weights: an adapter marks every cell of its sectors, and each step checks that the marks are there.

A fault is therefore noticed in the step in which it would have changed an answer: a sector that is used for KV and an
adapter at once, an adapter that is used but not on the device, a load that wrote to memory of others, or a load that
failed half-way and left its marks in KV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.adapters.config import AdapterError
from engine.cache.blocks import BLOCK_SIZE
from engine.plan import Sampled, StepPlan
from tests.engine.ledger_runner import LedgerRunner


class LedgerBank(LedgerRunner):
    """A runner and its adapter bank. `sizes`: sectors of each registered version, 1 where it is not named."""

    sector_bytes = 10

    def __init__(self, blocks: int, sizes: Mapping[str, int] | None = None) -> None:
        super().__init__(blocks)
        self.sizes = dict(sizes or {})
        self.host: set[str] = set()
        self.device: dict[str, Sequence[int]] = {}
        self._written: dict[str, Sequence[int]] = {}
        self.log: list[str] = []
        self.distinct: list[int] = []
        """Number of distinct adapters in every step that ran."""

    def prepare(self, version: str) -> int:
        self.log.append(f"prepare {version}")
        if version.startswith("bad"):
            raise AdapterError("is not registered")
        if version.startswith("broken"):
            raise ZeroDivisionError("secret")
        assert version not in self.host
        self.host.add(version)
        return self.sizes.get(version, 1)

    def install(self, version: str, sectors: Sequence[int]) -> None:
        self.log.append(f"install {version}")
        assert version in self.host and version not in self.device
        self._written[version] = sectors
        for cell in self._cells(sectors):
            if version.startswith("unlucky") and cell == self._cells(sectors)[-1]:
                raise OSError("device")
            self.cells[cell] = ("adapter", version)
        self.device[version] = sectors

    def remove(self, version: str) -> None:
        self.log.append(f"remove {version}")
        self.device.pop(version, None)
        for cell in self._cells(self._written.pop(version, ())):
            self.cells[cell] = None

    def forget(self, version: str) -> None:
        self.log.append(f"forget {version}")
        assert version not in self.device
        self.host.remove(version)

    def execute(self, plan: StepPlan) -> list[Sampled]:
        versions = {row.request.adapter for row in plan.rows if row.request.adapter is not None}
        self.distinct.append(len(versions))
        for row in plan.rows:
            found = [self.cells[cell] for cell in self._cells(row.request.block_table)]
            assert not any(mark and mark[0] == "adapter" for mark in found), "a KV block holds an adapter's bytes"
        results = super().execute(plan)
        for version in versions:
            assert version in self.device, "an adapter is used that is not on the device"
        for version, sectors in list(self.device.items()):
            marks = {self.cells[cell] for cell in self._cells(sectors)}
            assert marks == {("adapter", version)}, "an adapter was overwritten"
        return results

    @staticmethod
    def _cells(sectors: Sequence[int]) -> list[int]:
        return [sector * BLOCK_SIZE + offset for sector in sectors for offset in range(BLOCK_SIZE)]
