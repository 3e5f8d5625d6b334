"""`roundhouse doctor`: what this installation runs on, what is wrong with it, and what to do about that."""

from __future__ import annotations

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.check_result import CheckResult
from gateway.cli.connection import config_option, json_option, run
from gateway.cli.examination import examine
from gateway.config.settings import load

_MARKS = {"ok": ("✓", "green"), "note": ("•", "cyan"), "warning": ("!", "yellow"), "broken": ("✗", "red")}


@click.command()
@config_option
@json_option
@click.option("--problems", is_flag=True, help="Show only what needs something to be done.")
def doctor(config: str | None, as_json: bool, problems: bool) -> None:
    """Examine this installation: what it runs on, what is wrong, and what to do about it.

    It looks at versions, the configuration, the data folder, the port, the models, adapters, Redis, engines that the
    configuration names or that announce themselves, the CPU with its instruction set, and CUDA; and says which body of
    the kernels serves each op. It changes nothing, may run beside a `roundhouse serve`, and takes a few seconds,
    because it loads torch once.

    \b
    ✓ as it should be
    • could be better, with what to do
    ! works, but not well
    ✗ broken: exit status 1

    \b
    Examples:
      roundhouse doctor
      roundhouse doctor --config roundhouse.toml --problems
      roundhouse doctor --json | jq '.[] | select(.state == "broken")'
    """
    found = run(_examined(config))
    shown = [finding for finding in found if not problems or finding.state != "ok"]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
    else:
        _show(shown)
        _summarise(found)
    if any(finding.state == "broken" for finding in found):
        raise SystemExit(1)


async def _examined(config: str | None) -> list[CheckResult]:
    return [finding async for finding in examine(config, lambda: load(config))]


def _show(findings: list[CheckResult]) -> None:
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    areas = list(dict.fromkeys(finding.area for finding in findings))
    for area in areas:
        table.add_row("", Text(area, style="bold"), "")
        for finding in findings:
            if finding.area == area:
                mark, colour = _MARKS[finding.state]
                value = Text(finding.value)
                if finding.remedy:
                    value.append(f"\n-> {finding.remedy}", style=colour)
                table.add_row(Text(mark, style=colour), Text(f"  {finding.name}"), value)
    if findings:
        console.print(table)


def _summarise(findings: list[CheckResult]) -> None:
    counts = {state: sum(finding.state == state for finding in findings) for state in ("broken", "warning", "note")}
    said = [
        f"{count} {state}{'s' if count > 1 and state != 'broken' else ''}" for state, count in counts.items() if count
    ]
    click.echo(", ".join(said) if said else "everything is as it should be")
