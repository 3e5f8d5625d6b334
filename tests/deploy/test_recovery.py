"""The rehearsal of disaster recovery, in its short form, with real cells."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from deploy.recovery.cell import LocalCell
from deploy.recovery.rehearse import Rehearsal, gap, run_rehearsal, shown
from deploy.recovery.traffic import Acknowledged


@pytest.mark.anyio
async def test_what_was_backed_up_is_there_in_another_cell() -> None:
    """Keys, limits, adapters, usage and the audit log; what was changed since the backup began is not."""
    rehearsal = Rehearsal(interval=2.0, backups=2, clients=2, standby=True)
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # unix sockets need short paths
        report = await run_rehearsal(rehearsal, Path(folder), print)
    assert [check for check in report.checks if check.problem] == []
    assert len(report.checks) == 8
    assert 0 < report.recovery_point <= report.backup_age
    assert 0 < report.changes_lost < report.changes
    assert report.turns > 0
    assert report.recovery_time == pytest.approx(sum(report.steps.values()))
    assert "recovery point" in shown(report)


@pytest.mark.anyio
async def test_data_that_cannot_be_removed_is_no_lost_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(folder: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(folder)

    cell = LocalCell(tmp_path / "cell", secret="", operator="")
    with monkeypatch.context() as patch:
        patch.setattr("deploy.recovery.cell._LOSS_SECONDS", 0.1)
        patch.setattr(shutil, "rmtree", refuse)
        with pytest.raises(PermissionError):
            await cell.lose()
    await cell.lose()
    assert not cell.folder.exists()


class TestGap:
    """Which changes may be missing."""

    @pytest.fixture
    def changes(self, tmp_path: Path) -> list[Acknowledged]:
        cell = LocalCell(tmp_path / "cell", secret="", operator="")
        return [Acknowledged(float(number), cell, f"customer-{number}") for number in range(6)]

    def test_those_since_the_backup_began_may(self, changes: list[Acknowledged]) -> None:
        assert gap(changes, changes[4:], 3.5) == ""
        assert gap(changes, [], 3.5) == ""

    def test_one_from_before_it_may_not(self, changes: list[Acknowledged]) -> None:
        assert "customer-3 is missing, acknowledged 0.5 s before" in gap(changes, changes[3:], 3.5)

    def test_one_may_not_while_a_later_one_is_there(self, changes: list[Acknowledged]) -> None:
        assert "although later changes are there" in gap(changes, changes[4:5], 3.5)
