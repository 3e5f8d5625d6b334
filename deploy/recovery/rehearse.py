"""Rehearses the loss of a cell: `python -m deploy.recovery.rehearse --help`.

A cell runs under load and is backed up again and again. Then all its processes are killed, and its disk is gone.
Another cell is given the last backup and takes over. What was acknowledged and is missing there, and how long clients
got no answer, are measured: the recovery point (RPO) and the recovery time (RTO).
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import click
import httpx2
import msgspec
from msgspec import Struct

from deploy.recovery.cell import MODEL, CellFailed, LocalCell
from deploy.recovery.traffic import Acknowledged, Traffic, ask
from gateway.config.settings import DEMO

FLUSH_SECONDS = 5.0
"""Seconds within which a turn's charge is in Redis, well above `usage.flush_interval`."""
QUESTION = "Who are you?"
ADAPTER = "captain"
_BUDGET = 50
"""Micro-dollars a month of the tenant whose budget is spent before the loss."""


class Rehearsal(Struct, frozen=True, kw_only=True):
    """What is rehearsed."""

    interval: float
    """Seconds from the end of one backup to the beginning of the next."""
    backups: int
    clients: int
    standby: bool
    """Whether the other cell's engine runs already when the first cell is lost."""


class RehearsalCheck(Struct, frozen=True):
    """Something that has to hold in the cell that took over."""

    what: str
    problem: str = ""
    """Empty if it holds."""


class RehearsalReport(Struct, frozen=True, kw_only=True):
    """Result of a rehearsal. Times are in seconds."""

    rehearsal: Rehearsal
    backup_seconds: float
    """Duration of the last backup."""
    backup_age: float
    """Time from the beginning of the last backup to the loss: the recovery point cannot be older."""
    recovery_point: float
    """Time from the first acknowledged change that is missing to the loss; 0 if none is."""
    recovery_time: float
    """Time from the loss to the first answer of the other cell."""
    steps: dict[str, float]
    """Parts of the recovery time."""
    changes: int
    changes_lost: int
    turns: int
    turns_lost: int
    """Turns that were answered and are not in the usage report."""
    checks: list[RehearsalCheck]


class RehearsalBaseline(Struct, frozen=True):
    """What is true of the first cell before the load begins, and has to be true of the other one."""

    key: str
    spent: str
    """Key of a tenant that has spent its budget."""
    revoked: str
    answers: dict[str, str]
    """Greedy answers to `QUESTION` by model."""
    mark: str
    """Newest entry of the audit log, as `roundhouse audit verify` prints it."""


async def run_rehearsal(rehearsal: Rehearsal, folder: Path, say: Callable[[str], None]) -> RehearsalReport:
    """Lose a cell, and recover in another one. Args: folder: an empty one, with a short path.

    Raises:
        CellFailed: a cell or a command did not do what it had to.
    """
    secret, operator = secrets.token_hex(32), secrets.token_urlsafe(24)
    first, other = (LocalCell(folder / name, secret=secret, operator=operator) for name in ("a", "b"))
    vault = folder / "vault"
    vault.mkdir()
    try:
        say("starting a cell")
        await first.start_engine()
        await first.serve()
        if rehearsal.standby:
            await other.start_engine()
        known = await _prepare(first)
        traffic = Traffic(first, known.key)
        async with traffic.running(rehearsal.clients):
            began = ended = monotonic()
            for number in range(rehearsal.backups):
                await asyncio.sleep(rehearsal.interval)
                say(f"backup {number + 1} of {rehearsal.backups}")
                began = monotonic()
                await _back_up(first, vault)
                ended = monotonic()
            await asyncio.sleep(rehearsal.interval / 2)
            say("the cell is lost")
            lost = monotonic()
            await first.lose()
            steps = await _recover(other, vault, traffic, since=lost, warm=rehearsal.standby)
            say("the other cell answers")
        return await _examine(rehearsal, other, known, traffic, steps, (began, ended, lost))
    finally:
        for cell in (first, other):
            if cell.folder.exists():
                await cell.lose()


async def _prepare(cell: LocalCell) -> RehearsalBaseline:
    """Make tenants, keys and an adapter, spend a budget and revoke a key."""
    await cell.run("adapter", "add", ADAPTER, str(DEMO / "adapters" / "pirate"), "--model", MODEL)
    keys = {}
    for tenant in ("acme", "spent"):
        await cell.admin("POST", "/tenants", {"name": tenant})
        keys[tenant] = (await cell.admin("POST", f"/tenants/{tenant}/keys", {"description": "rehearsal"}))["key"]
    await cell.admin("PUT", "/tenants/spent/quotas", {"quota": {"spend_per_month": _BUDGET}})
    revoked = await cell.admin("POST", "/tenants/acme/keys", {"description": "to be revoked"})
    await cell.admin("DELETE", f"/tenants/acme/keys/{revoked['record']['id']}")
    async with httpx2.AsyncClient(verify=False, timeout=60) as http:
        while (found := await ask(http, cell, keys["spent"], QUESTION))[0] == 200:
            pass
        if found != (429, "insufficient_quota"):
            raise CellFailed(f"a budget could not be spent: {found}")
        answers = {}
        for model in ("small", ADAPTER):
            status, answers[model] = await _patiently(http, cell, keys["acme"], model)
            if status != 200:
                raise CellFailed(f"{model} gives no answer: {answers[model]}")
    mark = _mark(await cell.run("audit", "verify"))
    return RehearsalBaseline(keys["acme"], keys["spent"], revoked["key"], answers, mark)


async def _patiently(http: httpx2.AsyncClient, cell: LocalCell, key: str, model: str) -> tuple[int, str]:
    """Ask `QUESTION`; a name that was registered just now is known within a second."""
    for _ in range(50):
        found = await ask(http, cell, key, QUESTION, model=model)
        if found[1] != "model_not_found":
            break
        await asyncio.sleep(0.1)
    return found


def _mark(printed: str) -> str:
    found = re.search(r"\b(\d+:[0-9a-f]{64})", printed)
    if found is None:
        raise CellFailed(f"audit verify printed no mark: {printed}")
    return found[1]


async def _back_up(cell: LocalCell, vault: Path) -> None:
    """Bring a backup and the adapters to where a disaster of the cell does not reach."""
    partial = vault / "partial"
    await cell.run("backup", str(partial))
    await asyncio.to_thread(shutil.copytree, cell.adapters, vault / "adapters", dirs_exist_ok=True)
    partial.replace(vault / "newest")


async def _recover(cell: LocalCell, vault: Path, traffic: Traffic, *, since: float, warm: bool) -> dict[str, float]:
    """Have a cell take over from a backup, send clients there, and return the seconds of each step.

    Args:
        since: when the other cell was lost.
        warm: the cell's engine runs.
    """
    steps: dict[str, float] = {}

    def step(name: str) -> None:
        steps[name] = monotonic() - since - sum(steps.values())

    await asyncio.to_thread(shutil.copytree, vault / "adapters", cell.adapters, dirs_exist_ok=True)
    await cell.run("restore", str(vault / "newest"))
    step("restore")
    if not warm:
        await cell.start_engine()
        step("engine")
    await cell.serve()
    step("gateway and Redis")
    traffic.cell = cell
    steps["first answer"] = await traffic.answered(cell) - since - sum(steps.values())
    return steps


async def _examine(
    rehearsal: Rehearsal,
    cell: LocalCell,
    known: RehearsalBaseline,
    traffic: Traffic,
    steps: dict[str, float],
    times: tuple[float, float, float],
) -> RehearsalReport:
    """Compare the cell that took over with what was acknowledged.

    Args:
        times: of the last backup's begin and end, and of the loss.
    """
    began, ended, lost = times
    changes = [change for change in traffic.changes if change.cell is not cell]
    turns = [turn for turn in traffic.turns if turn.cell is not cell]
    names = {tenant["name"] for tenant in msgspec.json.decode(await cell.run("tenant", "list", "--json"))}
    missing = [change for change in changes if change.name not in names]
    kept = await _turns_kept(cell, len(traffic.turns) - len(turns))
    settled = sum(turn.at < began - FLUSH_SECONDS for turn in turns)
    checks = [
        *await _check_access(cell, known),
        await _check_command(cell, "the audit log is whole and continues", "audit", "verify", "--expect", known.mark),
        await _check_command(cell, "sums of usage agree with single turns", "usage", "verify"),
        RehearsalCheck("changes from before the backup are there, in order", gap(changes, missing, began)),
        RehearsalCheck(
            "turns from before the backup are charged", "" if kept >= settled else f"{kept} of at least {settled}"
        ),
    ]
    return RehearsalReport(
        rehearsal=rehearsal,
        backup_seconds=ended - began,
        backup_age=lost - began,
        recovery_point=lost - missing[0].at if missing else 0.0,
        recovery_time=sum(steps.values()),
        steps=steps,
        changes=len(changes),
        changes_lost=len(missing),
        turns=len(turns),
        turns_lost=len(turns) - kept,
        checks=checks,
    )


def gap(changes: Sequence[Acknowledged], missing: Sequence[Acknowledged], backup: float) -> str:
    """Return which of the changes is missing that may not be, or nothing.

    Args:
        changes: in the order in which they were made.
        backup: when the last one began.
    """
    if missing and missing[0].at < backup:
        return f"{missing[0].name} is missing, acknowledged {backup - missing[0].at:.1f} s before the backup"
    if list(changes[len(changes) - len(missing) :]) != list(missing):
        return f"{missing[0].name} is missing, although later changes are there"
    return ""


async def _turns_kept(cell: LocalCell, own: int) -> int:
    """Return how many turns of the lost cell are in the usage report, once the cell's own turns are."""
    total = -1
    while (now := (await cell.admin("GET", "/tenants/acme/usage"))["total"]["turns"]) != total or now < own:
        total = now
        await asyncio.sleep(FLUSH_SECONDS)
    return int(total - own)


async def _check_access(cell: LocalCell, known: RehearsalBaseline) -> list[RehearsalCheck]:
    async with httpx2.AsyncClient(verify=False, timeout=60) as http:
        found: dict[str, Any] = {
            "a revoked key is refused": (await ask(http, cell, known.revoked, QUESTION))[1],
            "a spent budget is spent": (await ask(http, cell, known.spent, QUESTION))[1],
        }
        expected = {"a revoked key is refused": "invalid_api_key", "a spent budget is spent": "insufficient_quota"}
        for model, answer in known.answers.items():
            what = f"a key is valid, and {model} answers as before"
            expected[what] = answer
            found[what] = (await _patiently(http, cell, known.key, model))[1]
    return [
        RehearsalCheck(what, "" if found[what] == wanted else f"{found[what]!r} instead of {wanted!r}")
        for what, wanted in expected.items()
    ]


async def _check_command(cell: LocalCell, what: str, *words: str) -> RehearsalCheck:
    try:
        await cell.run(*words)
    except CellFailed as failure:
        return RehearsalCheck(what, str(failure))
    return RehearsalCheck(what)


def shown(report: RehearsalReport) -> str:
    """Return a report as text."""
    steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.steps.items())
    lines = [
        f"recovery point  {report.recovery_point:.1f} s (at most {report.backup_age:.1f}: the age of the last backup, "
        f"which took {report.backup_seconds:.1f})",
        f"recovery time   {report.recovery_time:.1f} s ({steps})",
        f"changes         {report.changes_lost} of {report.changes} lost",
        f"turns           {report.turns_lost} of {report.turns} not in the usage report",
        *(f"{'FAILED' if check.problem else 'ok':<8}{check.what}  {check.problem}".rstrip() for check in report.checks),
    ]
    return "\n".join(lines)


@click.command()
@click.option("--interval", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds between backups.")
@click.option("--backups", type=click.IntRange(1), default=3, show_default=True, help="Backups before the loss.")
@click.option("--clients", type=click.IntRange(1), default=8, show_default=True, help="Clients that ask all the time.")
@click.option("--cold", is_flag=True, help="Start the other cell's engine after the loss only.")
@click.option("--rpo", type=float, metavar="SECONDS", help="Fail if the recovery point is older.")
@click.option("--rto", type=float, metavar="SECONDS", help="Fail if the recovery takes longer.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to a file.")
def main(
    interval: float, backups: int, clients: int, cold: bool, rpo: float | None, rto: float | None, file: Path | None
) -> None:
    """Lose a cell under load on this machine, and recover in another one; exit status 1 if that fails."""
    rehearsal = Rehearsal(interval=interval, backups=backups, clients=clients, standby=not cold)
    with tempfile.TemporaryDirectory(prefix="rh-recovery-") as folder:
        report = asyncio.run(run_rehearsal(rehearsal, Path(folder), lambda line: click.echo(line, err=True)))
    click.echo(shown(report))
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    late = [
        f"{name} is above {limit} s"
        for name, found, limit in (("RPO", report.recovery_point, rpo), ("RTO", report.recovery_time, rto))
        if limit is not None and found > limit
    ]
    for problem in late:
        click.echo(problem)
    if late or any(check.problem for check in report.checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
