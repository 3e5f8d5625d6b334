"""The command line: `roundhouse load`, or `python -m load`.

Exit status: 0 the objectives are met, 1 they are missed, 2 the options are wrong, 3 nothing could be measured.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console

from load.objectives import Objectives, parse_objectives
from load.plan import PROTOCOLS, Share, TrafficPlan
from load.traces import TraceError, TracePoint, read_trace

if TYPE_CHECKING:
    from load.session import LoadTarget

KEYS_VARIABLE = "ROUNDHOUSE_API_KEY"
MISSED, UNMEASURED = 1, 3
_SPARE_FILES = 64
_SECRET_LENGTH = 8
"""Characters from which on a header's value is taken out of what servers say: shorter ones occur by chance."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_share = click.FloatRange(0, 1)
_positive = click.FloatRange(0, min_open=True)


def _weighted(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Share[str], ...]:
    shares = []
    for value in values:
        name, _, weight = value.rpartition("=") if re.search(r"=[0-9.]+$", value) else (value, "", "1")
        if float(weight) <= 0:
            raise click.BadParameter(f"{value}: the weight must be above 0")
        if parameter.name == "protocols" and name not in PROTOCOLS:
            raise click.BadParameter(f"{name}: choose from {', '.join(PROTOCOLS)}")
        shares.append((name, float(weight)))
    return tuple(shares)


def _range(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(value)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most:
        raise click.BadParameter(f"{value!r}: write a number such as 64, or a range such as 32-128")
    return least, most


def _objectives(context: click.Context, parameter: click.Parameter, value: str) -> Objectives:
    try:
        return parse_objectives(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _body(context: click.Context, parameter: click.Parameter, value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"no JSON object: {error}") from None


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if not re.fullmatch(r"[\w-]+: ?[\x20-\x7e\xa0-\xff]+", value):
            raise click.BadParameter(f"{value!r}: write 'Name: value'")
    return dict(re.split(": ?", value, maxsplit=1) for value in values)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("url")
@click.option("--rate", type=_positive, help="Turns per second; default 1, or as the trace was recorded.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="How turns arrive at that rate.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Arrivals and lengths of a file: Azure's CSV or Mooncake's JSON lines, gzipped or not.",
)
@click.option("--scale", type=_positive, default=1.0, help="Multiply the trace's lengths by this.")
@click.option("--duration", type=_positive, default=30.0, show_default=True, help="Seconds during which turns arrive.")
@click.option("--requests", type=click.IntRange(1), default=10_000, show_default=True, help="Most turns of a run.")
@click.option("--sockets", type=click.IntRange(1), default=256, show_default=True, help="Most connections at a time.")
@click.option(
    "--timeout", type=_positive, default=60.0, show_default=True, help="Seconds after which a turn is given up."
)
@click.option(
    "--protocol",
    "protocols",
    metavar="NAME[=WEIGHT]",
    multiple=True,
    default=["chat"],
    callback=_weighted,
    help="chat (the default), responses (over WebSocket) or responses-http; repeat it to mix them.",
)
@click.option(
    "--model",
    "models",
    metavar="NAME[=WEIGHT]",
    multiple=True,
    callback=_weighted,
    help="Model or adapter; repeat it to mix them. Default: the first that the server lists.",
)
@click.option(
    "--keys",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"File with an API key per line, each of a tenant of its own; default: {KEYS_VARIABLE}, separated by commas.",
)
@click.option("--header", "headers", multiple=True, callback=_headers, help="'Name: value' of every request.")
@click.option("--input-tokens", default="64", show_default=True, callback=_range, help="About so many, or MIN-MAX.")
@click.option("--output-tokens", default="64", show_default=True, callback=_range, help="At most so many, or MIN-MAX.")
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a prompt per line, instead of random words.",
)
@click.option("--body", default="{}", callback=_body, help="JSON object whose fields every request has; null: without.")
@click.option("--cancel", type=_share, default=0.0, help="Share of turns that are cancelled midway.")
@click.option("--drop", type=_share, default=0.0, help="Share of turns whose socket is cut, and that are resumed.")
@click.option(
    "--repeat", type=_share, default=0.0, help="Share of turns asked twice with a seed: same text, or missed."
)
@click.option(
    "--slo", default="", callback=_objectives, help="Bounds of a good turn: ttft=1,tpot=50ms,e2e=30 (any of them)."
)
@click.option("--attainment", type=_share, default=0.99, show_default=True, help="Share of turns that must be good.")
@click.option("--search", is_flag=True, help="Look for the highest rate that keeps the objectives, from --rate on.")
@click.option("--max-rate", type=_positive, default=1000.0, show_default=True, help="Highest rate of a search.")
@click.option("--precision", type=_positive, default=0.1, show_default=True, help="Of the rate that a search finds.")
@click.option("--seed", type=click.IntRange(0), help="Of arrivals, prompts and mixes; default: a new one, reported.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for the report's files.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, for programs.")
def command(url: str, **options: Any) -> None:
    """Put a load on an OpenAI-compatible server and say whether it keeps your objectives.

    Turns begin when they are due, whether or not the server keeps up, and every time counts from that moment. Answers
    are checked too: characters that are lost or doubled, and texts that differ under the same seed, miss the
    objectives. See docs/load-testing.md.

    \b
    Two turns per second for a minute; 99 % must have their first text within a second:
      roundhouse load http://127.0.0.1:8080 --rate 2 --duration 60 --slo ttft=1
    Over WebSockets, some of which break, with a report to look at:
      roundhouse load http://127.0.0.1:8080 --protocol responses --drop 0.2 --cancel 0.1 --output report
    The highest rate that keeps an objective:
      roundhouse load http://127.0.0.1:8080 --search --slo ttft=1,tpot=50ms
    A recorded load, lengths divided by 16, five turns per second:
      roundhouse load http://127.0.0.1:8080 --trace conversation_trace.jsonl --scale 0.0625 --rate 5
    Three tenants, two adapters beside their model:
      roundhouse load http://127.0.0.1:8080 --keys keys.txt --model llama --model pirate=2 --model poet

    \b
    Exit status: 0 objectives met, 1 missed, 2 wrong options, 3 nothing could be measured.
    """
    import uvloop

    from load.session import Unmeasurable

    console = Console(stderr=True, highlight=False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            met = runner.run(_load(url, options, console))
        except Unmeasurable as error:
            console.print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
            sys.exit(UNMEASURED)
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.exit(UNMEASURED)
    sys.exit(0 if met else MISSED)


async def _load(url: str, options: dict[str, Any], console: Console) -> bool:
    """Run the test, show and write what came of it; return whether the objectives are met."""
    from load.progress import ProgressLine
    from load.report.document import make_report
    from load.report.files import write_report
    from load.report.table import show
    from load.session import LoadSession, Schedule, look

    target = _target(url, options)
    trace = _trace(options["trace"], options["scale"])
    models = options["models"] or tuple((name, 1.0) for name in (await look(target))[:1])
    if not models:
        raise click.UsageError(f"{target.address} lists no models: name one with --model")
    seed = options["seed"] if options["seed"] is not None else random.randrange(10**6)
    plan = _plan(options, tuple(target.headers), models, seed)
    schedule = Schedule(**{name: options[name] for name in ("arrivals", "duration", "requests", "scale")})
    objectives = msgspec.structs.replace(options["slo"], attainment=options["attainment"])
    session = LoadSession(target, plan, schedule, objectives, trace, ProgressLine(console).watch)
    if options["search"]:
        runs, turns = await session.search(options["rate"] or 1.0, options["max_rate"], options["precision"])
    else:
        run, turns = await session.measure(options["rate"] or (None if trace else 1.0))
        runs = [run]
    told = {name: value for name, value in options.items() if name not in ("headers", "as_json", "output")}
    told |= {"seed": seed, "models": models, "slo": str(objectives)}
    report = make_report(runs, turns, objectives, str(target.address), _plain(told), searched=options["search"])
    if options["output"] is not None:
        write_report(report, turns, options["output"])
        console.print(f"written: {options['output'] / 'report.html'}", markup=False, soft_wrap=True)
    if options["as_json"]:
        click.echo(msgspec.json.encode(report).decode())
    else:
        show(report, Console(highlight=False))
    return report.verdict.met


def _target(url: str, options: dict[str, Any]) -> LoadTarget:
    from load.connections.address import Address
    from load.session import LoadTarget

    try:
        address = Address.parse(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="URL") from None
    keys = _keys(options["keys"], os.environ)
    common = {"User-Agent": "roundhouse-load"} | options["headers"]
    headers = {
        f"tenant-{number}": common | {"Authorization": f"Bearer {key}"} for number, key in enumerate(keys, 1)
    } or {"nobody": common}
    _allow_files(options["sockets"])
    secrets = (*keys, *(value for value in options["headers"].values() if len(value) >= _SECRET_LENGTH))
    return LoadTarget(address, headers, secrets, options["sockets"], options["timeout"])


def _plan(options: dict[str, Any], tenants: tuple[str, ...], models: tuple[Share[str], ...], seed: int) -> TrafficPlan:
    return TrafficPlan(
        models=models,
        protocols=options["protocols"],
        tenants=tenants,
        input_tokens=options["input_tokens"],
        output_tokens=options["output_tokens"],
        prompts=_prompts(options["prompts"]),
        cancelled=options["cancel"],
        dropped=options["drop"],
        repeated=options["repeat"],
        body=options["body"],
        seed=seed,
    )


def _keys(file: Path | None, environment: Mapping[str, str]) -> list[str]:
    text = file.read_text("utf-8") if file is not None else environment.get(KEYS_VARIABLE, "").replace(",", "\n")
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if any(not key.isascii() or not key.isprintable() for key in keys):
        raise click.UsageError("a key has characters that no header can carry")
    return keys


def _prompts(file: Path | None) -> tuple[str, ...]:
    return () if file is None else tuple(filter(None, map(str.strip, file.read_text("utf-8").splitlines())))


def _trace(file: Path | None, scale: float) -> list[TracePoint]:
    if file is None:
        return []
    try:
        return read_trace(file, scale)
    except (TraceError, OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--trace") from None


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as plain data, those with a value only."""
    return {
        name: str(value) if isinstance(value, Path) else msgspec.to_builtins(value)
        for name, value in options.items()
        if value not in (None, False, 0.0, {}, ())
    }


def _allow_files(sockets: int) -> None:
    """Let this process open as many sockets as it may need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
