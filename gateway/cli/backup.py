"""`roundhouse backup` and `roundhouse restore`: what Redis holds and nobody can compute again, in one file."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import redis
from redis.asyncio import Redis
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from engine.adapters.registry import AdapterRegistry, RegistryError
from gateway.access.directory.store import Directory
from gateway.access.identity.secret import derive, installation_secret
from gateway.cli import backup_keys
from gateway.cli.backup_file import (
    BackupHeader,
    BackupWriter,
    DamagedBackup,
    EndFrame,
    KeyFrame,
    PartFrame,
    read,
)
from gateway.cli.connection import config_option, load_settings, with_redis
from gateway.config.settings import Settings, SettingsError
from gateway.engines.adapters import registry_url
from gateway.storage import presence
from gateway.storage.backups import note_backup

_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_PATIENCE = 30.0


@click.command()
@_file
@config_option
@click.option("--all", "everything", is_flag=True, help="Also stored responses, conversations, files and batches.")
def backup(file: Path, config: str | None, everything: bool) -> None:
    """Write tenants, users, keys, prices, routes, the audit log, spend and usage to FILE, which must not exist.

    Gateways may run meanwhile. What they have not yet written to Redis, the installation's secret and adapters are not
    in it; see docs/operating.md. Whoever has FILE and the secret can read everything.
    """
    settings = load_settings(config)
    families = [*backup_keys.FAMILIES, *(backup_keys.MORE if everything else ())]

    async def write(client: Redis, out: BackupWriter) -> tuple[int, int]:
        seconds, micro = await client.time()
        with _progress(TextColumn("{task.completed} keys")) as progress:
            out.write(
                BackupHeader(
                    created=seconds * 1000 + micro // 1000,
                    fingerprint=_fingerprint(settings),
                    families=families,
                    adapters=_adapters(settings),
                )
            )
            tasks = {family: progress.add_task(family, total=None) for family in families}
            await backup_keys.copy_all(client, out, families, lambda family: progress.advance(tasks[family]))
            size = out.end()
            with contextlib.suppress(redis.RedisError):  # a replica takes no writes
                await note_backup(client, seconds)
            return out.keys, size

    try:
        with BackupWriter(file) as out, _server(settings):
            count, size = with_redis(settings, lambda client: write(client, out))
    except FileExistsError:
        raise click.ClickException(f"{file} exists; it is not overwritten") from None
    except backup_keys.DirectoryChanges:
        raise click.ClickException("the directory changes all the time; try again when it is quieter") from None
    except (OSError, SettingsError) as error:
        raise click.ClickException(f"{file}: {error}") from error
    click.echo(f"{file}: {count} keys, {size / 1e6:.1f} MB; keep the installation's secret and the adapters with it")


@click.command()
@_file
@config_option
@click.option("--force", is_flag=True, help="Delete what this Redis holds of the same kinds first.")
@click.option("--with-gateways", is_flag=True, help="With --force, also while gateways run; restart each afterwards.")
def restore(file: Path, config: str | None, force: bool, with_gateways: bool) -> None:
    """Write what `roundhouse backup` has written to FILE into an empty Redis, and verify the audit log.

    Stop all gateways first: while one runs, nothing is deleted. The file is checked as a whole before anything is
    written. Where `serve` starts Redis, this command starts it for as long as it runs.
    """
    settings = load_settings(config)
    try:
        with _server(settings):
            header = _checked(file, settings)
            if force and not with_gateways:
                with_redis(settings, _check_gateways)
            kept, last = with_redis(settings, lambda redis: _restore(redis, file, header, settings, force))
    except DamagedBackup as error:
        raise click.ClickException(f"{file}: {error}") from error
    except (OSError, SettingsError) as error:
        raise click.ClickException(f"{file}: {error}") from error
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(header.created / 1000))
    click.echo(f"{kept} keys of {when} are restored; the audit log is whole and ends at entry {last}")
    if missing := sorted(header.adapters.keys() - _adapters(settings).keys()):
        click.echo(f"these adapters have to be registered again: {', '.join(missing)}", err=True)


async def _check_gateways(redis: Redis) -> None:
    """
    Raises:
        ClickException: gateways use this Redis, or did within the last ten seconds.
    """
    if living := sorted(await presence.read(redis)):
        raise click.ClickException(
            f"{len(living)} gateways use this Redis ({', '.join(living[:3])}{', ...' if living[3:] else ''}); stop all "
            "of them, wait ten seconds and try again, or restore all the same --with-gateways, and restart them"
        )


def _checked(file: Path, settings: Settings) -> BackupHeader:
    """Read a backup to its end, and return its header.

    Raises:
        DamagedBackup: it cannot be restored here.
    """
    header: BackupHeader | None = None
    for _, frame in read(file):
        if isinstance(frame, BackupHeader):
            header = frame
    assert header is not None
    if header.fingerprint != _fingerprint(settings):
        raise DamagedBackup(
            "it belongs to an installation with another secret; copy that installation's file `secret` to "
            f"{settings.redis.data}, or set the same ROUNDHOUSE_SECRET"
        )
    return header


async def _restore(redis: Redis, file: Path, header: BackupHeader, settings: Settings, force: bool) -> tuple[int, int]:
    """Write a backup that was checked to Redis; return the number of keys that have not expired, and that of the audit
    log's last entry."""
    if force:
        await backup_keys.clear(redis, header.families)
    elif any([await node.dbsize() for node in await backup_keys.nodes(redis)]):
        raise click.ClickException(
            "this Redis is not empty; stop the gateways that use it, and choose an empty one, or let --force delete "
            "what it holds of the same kinds"
        )
    seconds, _ = await redis.time()
    size = file.stat().st_size  # noqa: ASYNC240  nothing else runs
    kept, current = 0, KeyFrame(b"", "string", 0)
    with _progress(BarColumn(), DownloadColumn()) as progress:
        task = progress.add_task("restoring", total=size)
        for offset, frame in read(file):
            progress.update(task, completed=offset)
            if isinstance(frame, KeyFrame):
                current = frame
                kept += not 0 < frame.expires <= 1000 * seconds
            elif isinstance(frame, PartFrame) and not 0 < current.expires <= 1000 * seconds:
                await backup_keys.restore(redis, current, frame)
            elif isinstance(frame, EndFrame):
                break
    verifier, problem = await Directory(redis, secret=installation_secret(settings)).audit.verify()
    if problem is not None:
        raise click.ClickException(f"the audit log is not whole: entry {problem.sequence}: {problem.why}")
    return kept, verifier.last.sequence


@contextlib.contextmanager
def _server(settings: Settings) -> Iterator[None]:
    """Have the Redis that `serve` would start run in the block, unless another one is configured, or it runs.

    Raises:
        SettingsError: the data folder cannot be used, or is in use although its Redis does not answer.
    """
    from gateway.processes import redis_server
    from gateway.storage.connect import embedded_url

    if settings.redis.url is not None or _answers(embedded_url(settings)):
        yield
        return
    with contextlib.ExitStack() as stack:
        try:  # two servers would write to the same files
            stack.enter_context(redis_server.claim(Path(settings.redis.data)))
        except redis_server.Claimed:
            raise SettingsError("a Roundhouse with this data folder is starting or ending; try again soon") from None
        process = subprocess.Popen(redis_server.command(settings), stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + _PATIENCE
            while not _answers(embedded_url(settings)) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            yield
        finally:
            process.terminate()  # upon which it writes everything to its file
            process.wait()


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _fingerprint(settings: Settings) -> str:
    return derive(installation_secret(settings), "fingerprint").hex()


def _adapters(settings: Settings) -> dict[str, str]:
    try:
        return {name: pointer.version for name, pointer in AdapterRegistry(registry_url(settings)).names().items()}
    except RegistryError as error:
        click.echo(f"the registry of adapters cannot be read: {error}", err=True)
        return {}


def _progress(*columns: TextColumn | BarColumn | DownloadColumn) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
