"""`roundhouse plan`: how many replicas a load needs on which hardware, how fast they are and what they cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.opening import open_checkpoint
from engine.step_times import TimedEngine
from gateway.cli.connection import config_option, json_option, load_settings
from gateway.processes.extras import missing
from scale.decimals import plain
from scale.planning.bounds import LatencyAims, parse_aims
from scale.planning.devices import known_devices
from scale.planning.kinds import STEP_TOKENS, ProbedEngine, ReplicaChoices, ReplicaKind, variants
from scale.planning.plan import CapacityPlan, cheapest
from scale.planning.plan import plan as plan_replicas
from scale.planning.shape import KV_TYPES, WEIGHT_TYPES, ModelShape, known_shapes
from scale.planning.traffic import Length, PlannedTraffic, parse_traffic, read_trace, summarise

_COMPARED = 6
"""Other types of numbers that are shown, the cheapest first."""
_PROBE_SECONDS = 45.0
"""Seconds that steps are timed, beside loading the model."""


@click.group(invoke_without_command=True)
@click.pass_context
@config_option
@click.option("--model", metavar="NAME|PATH", help="A checkpoint, a model of the store, or a shape (see --list).")
@click.option("--hardware", metavar="DEVICE|FILE", help="A device (see --list), or the file that `plan probe` wrote.")
@click.option("--traffic", metavar="NAME=NUMBER,...", help="rate or daily, input, output; shared, spread, peak.")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV with Azure's columns.")
@click.option("--slo", default="ttft=2,itl=0.1,share=0.95", show_default=True, help="Aims: seconds, share of requests.")
@click.option("--weights", type=click.Choice(WEIGHT_TYPES), default="bf16", show_default=True, help="Type of weights.")
@click.option("--kv", type=click.Choice(KV_TYPES), default="bf16", show_default=True, help="Type of keys and values.")
@click.option("--devices", type=click.IntRange(1, 64), default=1, show_default=True, help="Devices of one replica.")
@click.option(
    "--step-tokens", type=click.IntRange(16), default=STEP_TOKENS, show_default=True, help="As of the engine."
)
@click.option("--max-running", type=click.IntRange(1), help="As of the engine; 256 unless given.")
@click.option("--price", type=click.FloatRange(0), help="Money per replica and hour, instead of an assumption.")
@click.option("--spare", type=click.IntRange(0), default=1, show_default=True, help="Replicas beyond what is needed.")
@click.option("--simulate/--bounds-only", default=True, help="Whether the load also runs through the scheduler.")
@click.option("--list", "listed", is_flag=True, help="List the devices and shapes that are known, and end.")
@json_option
def plan(context: click.Context, /, config: str | None, listed: bool, as_json: bool, **options: Any) -> None:
    """Plan replicas for a load: memory, batch, latencies, number and money, each figure with its reason.

    Lengths are in tokens, times in seconds. `shared` is the share of a prompt that many begin with, `spread` how much
    lengths differ, `peak` the busiest hour's rate over the mean. Devices are planned by their peak figures, engines of
    your own by steps that `roundhouse plan probe` has timed. See docs/planning.md.

    \b
    Examples:
      roundhouse plan --model llama-3.1-8b --hardware h100 --traffic rate=20,input=1200,output=250 --slo ttft=1,itl=0.05
      roundhouse plan --model /models/qwen --hardware l4 --weights int4 --traffic daily=1e6,peak=3,input=800,output=200
      roundhouse plan probe --output cpu.json --model smollm2-135m --threads 2
      roundhouse plan --hardware cpu.json --traffic rate=0.5,input=200,output=60 --price 0.10
    """
    if context.invoked_subcommand is not None:
        return
    if listed:
        _list()
        return
    spare, simulate, choices = options["spare"], options["simulate"], msgspec.convert(options, ReplicaChoices)
    try:
        trace, traffic = _load(options["trace"], options["traffic"])
        aims = parse_aims(options["slo"])
        kind, others = _kinds(config, options["model"], options["hardware"], choices)
        made = plan_replicas(kind, traffic, aims, spare=spare, trace=trace, simulated=simulate)
        alternatives = cheapest(others, traffic, aims, spare=spare)
    except (ValueError, CheckpointError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        found = {"plan": made, "alternatives": alternatives}
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    _show(made, traffic, aims)
    _compare(alternatives)


@plan.command("probe", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@config_option
@click.option("--model", required=True, metavar="NAME|PATH", help="A model of the store, or a checkpoint.")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--seconds", type=click.FloatRange(1), default=_PROBE_SECONDS, show_default=True, help="Time to take.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def probe(config: str | None, model: str, output: Path, seconds: float, options: tuple[str, ...]) -> None:
    """Time the steps of an engine of this machine, and fit a cost to them for `plan --hardware FILE`.

    The engine gets the other options; docs/engine-options.md lists them. Nothing else should run meanwhile.

    \b
    Example:
      roundhouse plan probe --model /models/llama-8b --output llama-8b.json --device cuda --kv-tokens 400000
    """
    if install := missing("engine"):
        raise click.ClickException(f"this host has a gateway only: {install}")
    # In a process of its own: an engine needs torch, which nothing else here may import.
    path = str(_checkpoint(config, model) or model)
    command = [sys.executable, "-m", "engine.server.timing", "--model", path, "--seconds", f"{seconds:g}", *options]
    timed = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if timed.returncode:
        raise click.ClickException("the engine could not be timed; its message stands above")
    try:
        probed = ProbedEngine.of(msgspec.json.decode(timed.stdout, type=TimedEngine))
        output.write_bytes(msgspec.json.encode(probed) + b"\n")
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{output}: {probed.model}, median distance from the timed steps {probed.cost.error:.1%}")


def _load(trace: Path | None, traffic: str | None) -> tuple[list[Length], PlannedTraffic]:
    """
    Raises:
        ValueError: neither or both are given, or what is given cannot be read.
    """
    if (trace is None) == (traffic is None):
        raise ValueError("give --traffic or --trace, and not both")
    if traffic is not None:
        return [], parse_traffic(traffic)
    assert trace is not None
    with trace.open(encoding="utf-8") as lines:
        lengths = read_trace(lines)
    return lengths, summarise(lengths)


def _kinds(
    config: str | None, model: str | None, hardware: str | None, choices: ReplicaChoices
) -> tuple[ReplicaKind, Sequence[Callable[[], ReplicaKind]]]:
    """Return the replica that is asked for, and makers of others: the same device with other types of numbers.

    Raises:
        ValueError: the hardware or the model is not known, or they do not go together.
    """
    if hardware is None:
        raise ValueError("name --hardware: a device of `roundhouse plan --list`, or a file of `roundhouse plan probe`")
    device = known_devices().get(hardware)
    if device is None:
        file = Path(hardware)
        if not file.is_file():
            raise ValueError(f"{hardware} is no known device and no file; see: roundhouse plan --list")
        try:
            probed = msgspec.json.decode(file.read_bytes(), type=ProbedEngine)
        except msgspec.DecodeError as error:
            raise ValueError(
                f"{hardware} is not what this version's `roundhouse plan probe` writes ({error}); run it again"
            ) from None
        return probed.kind(choices.price), []
    if model is None:
        raise ValueError("name --model: a checkpoint, a model of the store, or a shape of `roundhouse plan --list`")
    return variants(_shape(config, model), device, choices)


def _shape(config: str | None, model: str) -> ModelShape:
    """
    Raises:
        ValueError: there is no such model.
        CheckpointError: it cannot be served.
    """
    if shape := known_shapes().get(model):
        return shape
    path = _checkpoint(config, model)
    if path is None:
        raise ValueError(f"{model} is no checkpoint, no model of the store (roundhouse models list) and no known shape")
    return ModelShape.of(path.name, open_checkpoint(path).config)


def _checkpoint(config: str | None, model: str) -> Path | None:
    """Return the path of a checkpoint, or of a model of the store; None if there is none."""
    if Path(model).exists():
        return Path(model)
    store = load_settings(config).models.open()
    stored = None if "/" in model else store.model(model)
    return None if stored is None else store.path(stored)


def _show(made: CapacityPlan, traffic: PlannedTraffic, aims: LatencyAims) -> None:
    console = Console(highlight=False)
    load = f"{plain(traffic.rate, 3)} requests/s of {traffic.input:.0f} tokens in, {traffic.output:.0f} out"
    console.print(f"{made.model} on {made.hardware}\n{load}, {traffic.shared:.0%} of prompts shared", markup=False)
    console.print(f"aims: TTFT {plain(aims.ttft)} s, {plain(aims.itl)} s per token, of {aims.share:.0%}", markup=False)
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("unit")
    table.add_column("why")
    for figure in made.figures:
        table.add_row(
            figure.name,
            plain(figure.value, 4) if figure.value < 1e4 else f"{figure.value:,.0f}",
            figure.unit,
            figure.why,
        )
    console.print(table)
    console.print(f"{made.replicas} replicas. What binds one: {made.binds}.", markup=False)


def _compare(alternatives: Sequence[CapacityPlan]) -> None:
    if not alternatives:
        return
    table = Table(box=box.SIMPLE, pad_edge=False, title="the same device with other types, by bounds alone")
    for column in ("hardware", "replicas", "requests/s each", "per hour", "per million tokens", "what binds"):
        table.add_column(column, justify="left" if column in ("hardware", "what binds") else "right")
    for each in alternatives[:_COMPARED]:
        table.add_row(
            each.hardware.removesuffix(" (peak figures)"),
            str(each.replicas),
            plain(each.value("most_rate"), 3),
            f"{each.value('per_hour'):,.2f}",
            f"{each.value('per_million'):.3f}",
            each.binds,
        )
    Console(highlight=False).print(table)


def _list() -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("device", "memory GB", "TB/s", "bf16 TFLOPS", "price an hour", "origin"):
        table.add_column(column, justify="left" if column in ("device", "origin") else "right")
    for device in known_devices().values():
        sizes = (device.memory / 1e9, device.bandwidth / 1e12, device.bf16 / 1e12, device.price)
        table.add_row(device.name, *(f"{size:g}" for size in sizes), device.origin)
    console = Console(highlight=False)
    console.print(table)
    names = ", ".join(f"{shape.name} ({shape.parameters / 1e9:.1f} B)" for shape in known_shapes().values())
    console.print(f"shapes: {names}", markup=False)
