"""`roundhouse adapter`: the registry of LoRA adapters from the command line."""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.cli.connection import config_option, json_option, load_settings
from gateway.config.settings import PoolSettings, Settings

if TYPE_CHECKING:
    from engine.adapters.registry import AdapterRegistry, Manifest, Pointer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SHORT = 12
"""Number of a version's digits that people are shown."""
_SHOW_PROGRESS_BYTES = 32 * 1024 * 1024

_model = click.option(
    "--model", metavar="NAME", help="Public name of the base model; needed where the adapter's config does not name it."
)
_source = click.argument("source", type=click.Path(exists=True, path_type=Path))


class Age(click.ParamType[float]):
    """A number with a unit: 30m, 12h, 7d."""

    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+)([smhdw])", str(value))
        if match is None:
            self.fail(f"{value!r} is no age; give a number and a unit, such as 30m, 12h or 7d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@click.group()
def adapter() -> None:
    """LoRA adapters: check them, register them, give them names.

    An adapter is a folder that peft's save_pretrained wrote, or llama.cpp's GGUF file. It is checked, copied into the
    registry as a version, and clients reach it by a name that points to that version. Running gateways see changes
    within a second.

    \b
    See whether an adapter can be served:
        roundhouse adapter check runs/pirate
    Register it; clients then send "model": "pirate":
        roundhouse adapter add pirate runs/pirate --model llama-8b
    Point the name to a newer version, and back to the one that `swap` printed:
        roundhouse adapter swap pirate runs/pirate-2
        roundhouse adapter swap pirate 1f2e3d4c
    """


@adapter.command("check")
@config_option
@_source
@_model
def check(config: str | None, source: Path, model: str | None) -> None:
    """Say whether the adapter in SOURCE can be served, and what is in it; `adapter add` then stores it."""
    from engine.adapters.format import check_adapter
    from engine.adapters.gguf import as_folder

    pool = _base(load_settings(config), source, model)
    base = Path(pool.model)
    with _explained(source), as_folder(source, base) as folder, _progress(source, 1) as advance:
        manifest = check_adapter(folder, base, progress=advance)
    _print_manifest(manifest)
    click.echo(f"{source} can be served on {pool.name}")


@adapter.command("add")
@config_option
@click.argument("name")
@_source
@_model
@click.option("--tenant", "tenants", multiple=True, help="Tenant that may use it; may be repeated. Without: all.")
@click.option("--description", default="", help="Text for people, shown by /v1/models.")
@click.option("--pin", is_flag=True, help="Make engines keep it loaded.")
def add(
    config: str | None,
    name: str,
    source: Path,
    model: str | None,
    tenants: tuple[str, ...],
    description: str,
    pin: bool,
) -> None:
    """Check the adapter in SOURCE, register it as a version and point NAME to it: clients send NAME as `model`."""
    settings = load_settings(config)
    _refuse_unknown_tenants(config, settings, tenants)
    if name in {pool.name for pool in settings.pools}:
        raise click.ClickException(f"{name!r} is the name of a model; choose another one")
    with _explained(source):
        registry = _registry(settings)
        if name in registry.names():
            raise click.ClickException(
                f"{name!r} exists; have it lead to this adapter with: roundhouse adapter swap {name} {source}"
            )
        pool = _base(settings, source, model)
        with _progress(source, 2) as advance:
            manifest = registry.add(source, Path(pool.model), progress=advance)
        registry.point(
            name, manifest.version, model=pool.name, tenants=tenants or None, pinned=pin, description=description
        )
    _print_manifest(manifest)
    click.echo(f'"model": "{name}" now answers with this adapter on {pool.name}')


@adapter.command("swap")
@config_option
@click.argument("name")
@click.argument("source")
def swap(config: str | None, name: str, source: str) -> None:
    """Point NAME to SOURCE: an adapter, which is checked and registered, or the beginning of a version.

    Running turns keep the version that they began with; tenants, pin and description stay. The command that goes back
    is printed. Example: roundhouse adapter swap pirate runs/pirate-2
    """
    from engine.checkpoint.opening import open_checkpoint

    settings = load_settings(config)
    with _explained(source):
        registry = _registry(settings)
        pool = _pool(settings, registry.resolve(name).model)
        if Path(source).exists():
            with _progress(Path(source), 2) as advance:
                version = registry.add(Path(source), Path(pool.model), progress=advance).version
        else:
            version = registry.find(source)
            if open_checkpoint(pool.model).revision not in registry.manifest(version).bases:
                raise click.ClickException(
                    f"version {version[:_SHORT]} was checked against another {pool.name} than is served now; give its "
                    "folder instead, so that it is checked again"
                )
        before = registry.swap(name, version).version
    if before == version:
        click.echo(f"{name} leads to {version[:_SHORT]} already")
    else:
        click.echo(f"{name} leads to {version[:_SHORT]} now; back: roundhouse adapter swap {name} {before[:_SHORT]}")


@adapter.command("list")
@config_option
@json_option
def list_names(config: str | None, as_json: bool) -> None:
    """List all names with model, version and tenants, and count versions without a name."""
    settings = load_settings(config)
    with _explained():
        registry = _registry(settings)
        names, versions = registry.names(), registry.versions()
    if as_json:
        click.echo(msgspec.json.encode(names, order="sorted").decode())
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "model", "version", "tenants", "pinned", "updated", "description"):
        # A version is there to be copied.
        table.add_column(column, no_wrap=column == "version", overflow="fold")
    for name, pointer in sorted(names.items()):
        table.add_row(name, *_pointer_cells(pointer))
    Console().print(table if table.rows else f"no adapter has a name in {registry.url} yet; see: adapter add --help")
    unnamed = len(versions.keys() - {pointer.version for pointer in names.values()})
    if unnamed:
        click.echo(f"versions without a name: {unnamed}; delete old ones with: roundhouse adapter prune")


@adapter.command("show")
@config_option
@click.argument("what", metavar="NAME|VERSION")
@json_option
def show(config: str | None, what: str, as_json: bool) -> None:
    """Show what an adapter contains: modules, ranks, scaling and size. Example: roundhouse adapter show pirate"""
    with _explained():
        registry = _registry(load_settings(config))
        pointer = registry.names().get(what)
        manifest = registry.manifest(pointer.version if pointer else registry.find(what))
    if as_json:
        click.echo(msgspec.json.encode(manifest).decode())
        return
    _print_manifest(manifest)
    if pointer is not None:
        model, _, tenants, pinned, updated, description = _pointer_cells(pointer)
        click.echo(f"{what}, on {model}: tenants {tenants}, pinned {pinned or 'no'}, updated {updated}; {description}")


@adapter.command("pin")
@config_option
@click.argument("name")
def pin(config: str | None, name: str) -> None:
    """Make engines keep NAME loaded while there is room, so that its requests do not wait for a load."""
    with _explained():
        _registry(load_settings(config)).pin(name)
    click.echo(f"{name} is kept loaded")


@adapter.command("unpin")
@config_option
@click.argument("name")
def unpin(config: str | None, name: str) -> None:
    """Undo `pin`: engines may unload NAME when they need its place."""
    with _explained():
        _registry(load_settings(config)).pin(name, False)
    click.echo(f"{name} is loaded while it is used")


@adapter.command("remove")
@config_option
@click.argument("name")
def remove(config: str | None, name: str) -> None:
    """Delete NAME. Running turns finish; its version stays until `roundhouse adapter prune` deletes it."""
    with _explained():
        registry = _registry(load_settings(config))
        version = registry.resolve(name).version
        registry.remove(name)
    click.echo(f"{name} is forgotten; its version {version[:_SHORT]} stays until `roundhouse adapter prune`")


@adapter.command("prune")
@config_option
@click.option("--older-than", type=Age(), default="7d", show_default=True, help="Least age, as 30m or 12h.")
def prune(config: str | None, older_than: float) -> None:
    """Delete versions that no name points to. Example: roundhouse adapter prune --older-than 30d"""
    with _explained():
        deleted = _registry(load_settings(config)).prune(older_than=older_than)
    for version in deleted:
        click.echo(f"deleted {version[:_SHORT]}")
    click.echo(f"deleted versions: {len(deleted)}")


def _registry(settings: Settings) -> AdapterRegistry:
    from engine.adapters.registry import AdapterRegistry
    from gateway.engines.adapters import registry_url

    return AdapterRegistry(registry_url(settings))


def _pool(settings: Settings, name: str) -> PoolSettings:
    for pool in settings.pools:
        if pool.name == name:
            return pool
    known = ", ".join(pool.name for pool in settings.pools)
    raise click.ClickException(f"no model is named {name!r} in the configuration; there are: {known}")


def _base(settings: Settings, source: Path, model: str | None) -> PoolSettings:
    """Return the pool that was named, or whose model the adapter's config names, or the only one; its model is here."""
    from gateway.config import checkpoints

    pool = _pool(settings, model) if model is not None else _fitting(settings, source)
    if pool.takes_messages:
        raise click.ClickException(f"{pool.name} is a model of {pool.dialect} servers, which take no adapters")
    for awaited, wanted in checkpoints.awaited(settings):
        if awaited.name == pool.name:
            raise click.ClickException(f"{pool.name} is not here yet; fetch it: roundhouse models pull {wanted.name}")
    return pool


def _fitting(settings: Settings, source: Path) -> PoolSettings:
    try:
        config = msgspec.json.decode((source / "adapter_config.json").read_bytes())
        trained_on = str(config.get("base_model_name_or_path") or "")
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        trained_on = ""  # the check says what is wrong with it
    for pool in settings.pools:
        if trained_on and (trained_on == pool.name or Path(trained_on).absolute() == Path(pool.model).absolute()):
            return pool
    if len(settings.pools) == 1:
        return settings.pools[0]
    known = ", ".join(pool.name for pool in settings.pools)
    hint = f" (its config names {trained_on!r}, which is none of them)" if trained_on else ""
    raise click.UsageError(f"say which model it is for with --model: {known}{hint}")


def _refuse_unknown_tenants(config: str | None, settings: Settings, tenants: Sequence[str]) -> None:
    known = {tenant.name for tenant in settings.tenants}
    if missing := sorted(set(tenants) - known):
        # Only Redis knows the others; this command needs it for nothing else.
        from gateway.cli.directory import everything
        from gateway.records.directory import Tenant

        try:
            known |= {tenant.name for tenant in everything(config, Tenant)}
        except click.ClickException as error:
            raise click.ClickException(
                f"no tenant is named {missing[0]!r} in the configuration; others cannot be looked up: {error.message}"
            ) from error
    for tenant in tenants:
        if tenant not in known:
            raise click.ClickException(f"no tenant is named {tenant!r}; there are: {', '.join(sorted(known))}")


@contextmanager
def _explained(subject: object = None) -> Iterator[None]:
    """Turn errors of the registry and of adapters into messages of this command."""
    from engine.adapters.registry import AdapterError, RegistryError
    from engine.checkpoint.errors import CheckpointError

    try:
        yield
    except AdapterError as error:
        raise click.ClickException(f"{subject}: {error}" if subject else str(error)) from error
    except CheckpointError as error:
        raise click.ClickException(f"the base model cannot be used: {error}") from error
    except (RegistryError, OSError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _progress(source: Path, passes: int) -> Iterator[Callable[[int], object] | None]:
    """Show a bar on a terminal while a large file is copied and hashed."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    weights = source / "adapter_model.safetensors" if source.is_dir() else source
    size = weights.stat().st_size if weights.is_file() else 0
    if size < _SHOW_PROGRESS_BYTES or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=passes * size)
        yield lambda count: progress.advance(task, count)


def _print_manifest(manifest: Manifest) -> None:
    groups: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for target in manifest.targets:
        kind = [word for word, used in (("DoRA", target.magnitude), ("LoRA bias", target.b_bias)) if used]
        key = (target.module, str(target.rank), f"{target.scaling:.6g}", ", ".join(kind))
        groups[key] += [] if target.layer is None else [target.layer]
    for bias in manifest.base_biases:
        groups[bias.module, "", "", "replaces the base's bias"] += [] if bias.layer is None else [bias.layer]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("module", "layers", "rank", "scaling", "kind"):
        table.add_column(column)
    for (module, rank, scaling, note), layers in groups.items():
        table.add_row(module, _ranges(layers), rank, scaling, note)
    Console().print(table)
    dtypes = ", ".join(manifest.dtypes)
    click.echo(f"version {manifest.version[:_SHORT]}, {manifest.size:,} bytes, {dtypes}, for {manifest.architecture}")


def _ranges(numbers: Sequence[int]) -> str:
    """Shorten runs of numbers: [0, 1, 2, 5] to "0-2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _pointer_cells(pointer: Pointer) -> tuple[str, str, str, str, str, str]:
    tenants = "all" if pointer.tenants is None else ", ".join(pointer.tenants)
    updated = time.strftime("%Y-%m-%d %H:%M", time.localtime(pointer.updated))
    pinned = "yes" if pointer.pinned else ""
    return pointer.model, pointer.version[:_SHORT], tenants, pinned, updated, pointer.description
