"""`roundhouse audit`: what was changed, by whom, and whether the log is whole."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from gateway.access.directory.audit import AuditRecord, ChainPosition, SealedAuditRecord, verify_export
from gateway.access.directory.change import Caps
from gateway.access.directory.store import Directory
from gateway.cli.connection import config_option, json_option, load_settings
from gateway.cli.directory import print_table, with_directory

_READ_AT_ONCE = 1000


@click.group()
def audit() -> None:
    """The audit log of every change of tenants, users, keys, prices, routes and adapters.

    \b
    Show the last changes, and check whether anything was tampered with:
        roundhouse audit list
        roundhouse audit verify
    Keep a copy elsewhere, and check it there:
        roundhouse audit export audit.jsonl
        roundhouse audit verify --file audit.jsonl
    """


@audit.command("list")
@config_option
@click.option("--tenant", help="Show only changes that concern this tenant.")
@click.option("--count", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Most changes to show.")
@json_option
def audit_list(config: str | None, tenant: str | None, count: int, as_json: bool) -> None:
    """List the last changes, newest first: who changed what, when, and from which value to which."""

    async def read(directory: Directory, _: bytes) -> list[AuditRecord]:
        entries: list[AuditRecord] = []
        before: int | None = None
        while len(entries) < count and (page := await directory.audit.read_back(before, _READ_AT_ONCE)):
            read = [logged.read() for logged in page]
            before = read[-1].sequence
            entries += [entry for entry in read if tenant in (None, entry.tenant)]
        return entries[:count]

    try:
        entries = with_directory(config, read)
    except ValueError as error:
        raise click.ClickException(f"an entry cannot be read ({error}); see: roundhouse audit verify") from error
    if as_json:
        click.echo(msgspec.json.encode(entries).decode())
        return
    if not entries:
        click.echo(
            "nothing has been changed yet" if tenant is None else f"nothing of the tenant {tenant!r} was changed"
        )
        return
    rows = [
        (
            str(entry.sequence),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at / 1000)),
            entry.actor,
            entry.action,
            entry.subject,
            entry.tenant or "",
            _told(entry),
        )
        for entry in entries
    ]
    print_table(("number", "when", "who", "what", "of", "tenant", "changes"), rows, numbers=["number"])


@audit.command("verify")
@config_option
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Check this export instead of Redis."
)
@click.option("--expect", metavar="NUMBER:HASH", help="An entry that must be there, as an earlier run printed it.")
def audit_verify(config: str | None, file: Path | None, expect: str | None) -> None:
    """Say whether the log is whole; if not, name the first broken entry and end with status 1.

    Only --expect notices a log that was set back to an earlier state as a whole: note the NUMBER:HASH that is printed.
    """
    from gateway.access.identity.secret import installation_secret

    wanted = _mark(expect) if expect is not None else None
    if file is not None:
        with file.open("rb") as lines:
            verifier, problem = verify_export(lines, installation_secret(load_settings(config)), expect=wanted)
    else:
        verifier, problem = with_directory(config, lambda directory, _: directory.audit.verify(expect=wanted))
    if problem is not None:
        raise click.ClickException(f"entry {problem.sequence}: {problem.why}")
    last = verifier.last
    click.echo(f"the log is whole: {verifier.entries} entries; the last one is {last.sequence}:{last.hash}")
    if file is None and Caps().nearly_full(verifier.entries):
        click.echo(f"the oldest entries go when there are {Caps().audit:,}: export the log", err=True)


@audit.command("export")
@config_option
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@click.option("--after", type=click.IntRange(0), default=0, help="Only entries after this number.")
def audit_export(config: str | None, file: str, after: int) -> None:
    """Write the log to FILE (or standard output), one JSON object a line; `audit verify --file` checks it anywhere."""

    async def export(directory: Directory, _: bytes) -> int:
        count = 0
        head = await directory.audit.head()
        first = max(after, (await directory.audit.checkpoint()).sequence)
        with (
            click.open_file(file, "wb") as out,
            Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress,
        ):
            task = progress.add_task("exporting", total=head.sequence - first)
            async for logged in directory.audit.entries(first, head.sequence):
                out.write(_line(logged))
                progress.advance(task)
                count += 1
        return count

    count = with_directory(config, export)
    click.echo(f"{count} entries", err=True)


def _line(logged: SealedAuditRecord) -> bytes:
    try:
        return logged.line()
    except ValueError as error:
        raise click.ClickException(f"an entry cannot be written ({error}); see: roundhouse audit verify") from error


def _mark(text: str) -> ChainPosition:
    number, colon, digest = text.partition(":")
    if not (number.isdigit() and colon and len(digest) == 64):
        raise click.UsageError("--expect: give the number and the hash of an entry, as `audit verify` prints them")
    return ChainPosition(int(number), digest)


def _told(entry: AuditRecord) -> str:
    parts = []
    for name, change in entry.changes.items():
        if isinstance(change, list) and len(change) == 2:
            before, after = (msgspec.json.encode(value).decode() for value in change)
            parts.append(f"{name}: {after}" if before == "null" else f"{name}: {before} -> {after}")
        else:
            parts.append(f"{name}: {change}")
    return ", ".join(parts)
