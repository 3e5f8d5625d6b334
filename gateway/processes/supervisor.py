"""`roundhouse serve`: starts Redis, the engines and the gateway, keeps them running, and ends them in order.

The gateway runs in this process, the others are children. Everything starts at the same time; `/readyz` turns 200 when
the first answer can be given, and then the one URL is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Protocol

import msgspec
from starlette.applications import Starlette

from engine.adapters.registry import AdapterRegistry, RegistryError
from gateway import __version__
from gateway.app import create_app
from gateway.background import BackgroundTasks
from gateway.config import checkpoints
from gateway.config.configuration import Configuration
from gateway.config.settings import NO_TENANTS, EmbedderSettings, PoolSettings, Section, Settings, SettingsError
from gateway.engines.adapters import registry_url
from gateway.processes import redis_server
from gateway.processes.child import Child, ChildFailed
from gateway.processes.control import listening
from gateway.processes.demo import register_adapters
from gateway.processes.extras import missing
from gateway.server import GatewayServer, listen, url
from gateway.storage.connect import embedded_url, redis_url, socket_path

log = logging.getLogger("roundhouse.supervisor")


_PATIENCE = 60.0
"""Seconds after which the embedder is started even if the chat is not ready yet."""


class _Readiness(msgspec.Struct):
    status: str
    problems: list[str]


class Say(Protocol):
    """Prints a message to the operator, one line at a time."""

    def __call__(self, line: str) -> None: ...


class Failed(Exception):
    """The installation cannot run; the message says why and what to do."""


async def serve(settings: Settings, say: Say, read: Callable[[], Settings], file: Path) -> None:
    """Run until SIGTERM or SIGINT, then drain and stop. SIGHUP and `roundhouse reload` read the configuration again.

    Args:
        read: reads it, as `settings` were read.
        file: where it is, to be watched if it says so.

    Raises:
        Failed: something cannot run as configured.
        PortTaken, SettingsError: before anything was started.
    """
    began = monotonic()
    _check_engines(settings)
    lacking = missing("embedder") if _wants_embedder(settings) else None
    await asyncio.to_thread(checkpoints.check, settings.pools, settings.models.open())
    data = Path(settings.redis.data)
    with _claim(data), listen(settings) as bound:
        bound.listen(2048)
        try:
            await asyncio.to_thread(register_adapters, settings, AdapterRegistry(registry_url(settings)))
        except RegistryError as error:
            raise Failed(f"adapters: {error}") from error
        children, embedder = _children(settings), _embedder(settings)
        configuration = Configuration(settings, read, _filled, file)
        settings = configuration.settings
        say(f"Roundhouse {__version__}")
        if lacking is not None:
            say(f"  without embeddings: {lacking}")
        for child, description in children:
            say(f"  starting {child.name}: {description}")
        app = create_app(configuration)
        server = GatewayServer(app, settings)
        tasks = [asyncio.create_task(child.run(), name=child.name) for child, _ in children]
        gateway = asyncio.create_task(server.serve(sockets=[bound]), name="gateway")
        helping = BackgroundTasks("supervisor")
        announced = helping.begin(_announce(url(settings, bound), say, began, app))
        embedding = helping.begin(_embed_later(embedder, announced, say))
        try:
            async with listening(configuration):
                done, _ = await asyncio.wait([gateway, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if gateway not in done:
                # A child gave up: what its clients are doing ends as on any other stop.
                server.stop()
                await gateway
            for task in done:
                task.result()
            if not server.started:
                raise Failed("the gateway could not start (see its message above)")
            say("stopped")
        except ChildFailed as error:
            raise Failed(str(error)) from error
        finally:
            for task in (embedding, announced):
                task.cancel()
            # Engines first: Redis is what everything else still writes to.
            for child, _ in reversed(children):
                await child.stop()
            await asyncio.gather(*tasks, embedding, announced, return_exceptions=True)


def _check_engines(settings: Settings) -> None:
    """
    Raises:
        Failed: engines are to be started where there are none.
    """
    own = [pool.name for pool in settings.pools if not pool.engines]
    if own and (install := missing("engine")):
        raise Failed(
            f"pools: this host has a gateway only, and {', '.join(own)} is to be served here: {install}, or name "
            "engines that run elsewhere (`engines`)"
        )


def _wants_embedder(settings: Settings) -> bool:
    return settings.embedder.enabled and settings.embedder.address is None


def _children(settings: Settings) -> list[tuple[Child, str]]:
    """Return the processes to start here, with a word on each."""
    children: list[tuple[Child, str]] = []
    if settings.redis.url is None:
        command = redis_server.command(settings)
        address = embedded_url(settings)
        children.append((Child("redis", command), f"{command[0]}, redis-cli -s {address.removeprefix('unix://')}"))
    store = settings.models.open()
    for pool in settings.pools:
        if not pool.engines:
            # The engine compares it again whenever it is started, also after a crash.
            pool = msgspec.structs.replace(pool, sha256=checkpoints.expected_digest(pool, store))
            address = _engine_address(settings, pool)
            environment = {"OMP_NUM_THREADS": str(pool.threads), "OMP_WAIT_POLICY": "PASSIVE"}
            child = Child(f"engine-{pool.tier}", engine_command(pool, address, registry_url(settings)), environment)
            children.append((child, f"{pool.name} on {pool.device}"))
    return children


def _filled(settings: Settings) -> Settings:
    """Return the settings with the addresses of what is started here."""
    replace = msgspec.structs.replace
    url = redis_url(settings)
    pools = [
        pool if pool.engines else replace(pool, engines=[_engine_address(settings, pool)]) for pool in settings.pools
    ]
    embedder = settings.embedder
    if _wants_embedder(settings):
        here = missing("embedder") is None
        embedder = replace(embedder, address=_embedder_address(settings)) if here else replace(embedder, enabled=False)
    return replace(settings, redis=replace(settings.redis, url=url), pools=pools, embedder=embedder)


def _embedder(settings: Settings) -> Child | None:
    """Return the embedder, if it is to be started here."""
    embedder = settings.embedder
    if not _wants_embedder(settings) or missing("embedder"):
        return None
    environment = {"OMP_NUM_THREADS": str(embedder.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    return Child("embedder", embedder_command(embedder, _embedder_address(settings)), environment)


async def _embed_later(embedder: Child | None, announced: asyncio.Task[None], say: Say) -> None:
    """Run the embedder once the chat is ready: loading it takes a core for seconds that the first answer needs more.

    Without it the chat goes on; `/v1/embeddings` says that it is away.
    """
    if embedder is None:
        return
    await asyncio.wait([announced], timeout=_PATIENCE)
    try:
        await embedder.run()
    except ChildFailed as error:
        log.error("no embeddings", extra={"error": str(error)})
        say(f"  without embeddings: {error}")


def _engine_address(settings: Settings, pool: PoolSettings) -> str:
    return f"unix://{socket_path(settings, f'engine-{pool.tier}')}"


def _embedder_address(settings: Settings) -> str:
    return f"unix://{socket_path(settings, 'embedder')}"


def embedder_command(embedder: EmbedderSettings, address: str) -> list[str]:
    """Command line of the embedder."""
    options = _options(embedder, "model", "name", "device", "threads", "queue")
    return [sys.executable, "-m", "cache.embedder", "--listen", address, *options]


def engine_command(pool: PoolSettings, address: str, adapters: str) -> list[str]:
    """Command line of a pool's engine; `adapters` is the address of their registry."""
    names = (
        "model",
        "sha256",
        "name",
        "device",
        "dtype",
        "quantize",
        "kv_dtype",
        "threads",
        "kv_tokens",
        "kv_host_bytes",
    )
    more = ("max_running", "step_tokens", "policy", "speculate", "draft_model")
    own = ("--listen", address, "--adapters", adapters, "--log-level", "warning")
    return [sys.executable, "-m", "engine.server", *own, *_options(pool, *names, *more)]


def _options(section: Section, *names: str) -> list[str]:
    """Fields of a section as options of the same names; those that are not set are left out."""
    values = {name: value for name in names if (value := getattr(section, name)) is not None}
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@contextlib.contextmanager
def _claim(data: Path) -> Iterator[None]:
    """Hold the data folder, so that two installations do not write to the same Redis.

    Raises:
        SettingsError: another one holds it, or it cannot be made.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "lock").open("w")
    except OSError as error:
        raise SettingsError(f"redis.data: {data.resolve()} cannot be used ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingsError(
                f"another Roundhouse uses the data folder {data.resolve()}; stop it, or give this one its own: "
                "ROUNDHOUSE_REDIS_DATA=/tmp/roundhouse-2"
            ) from None
        yield


async def _announce(address: str, say: Say, began: float, app: Starlette) -> None:
    """Print the URL when the first answer can be given, and until then what is being waited for."""
    said: list[str] = []
    while True:
        await asyncio.sleep(0.1)
        ready, problems = await asyncio.to_thread(_readiness, address)
        if ready:
            say(f"ready after {monotonic() - began:.1f} s: open {address} (Ctrl-C stops)")
            if not app.state.gateway.view.tenants():
                say(f"  nobody may send requests yet: {NO_TENANTS}")
            return
        if problems != said and monotonic() - began > 5:
            said = problems
            for problem in problems:
                say(f"  waiting: {problem}")


def _readiness(address: str) -> tuple[bool, list[str]]:
    """What `/readyz` says; here everything is started, so that a gateway that is degraded is not ready yet."""
    try:
        answer = urllib.request.urlopen(f"{address}/readyz", timeout=2)
    except urllib.error.HTTPError as error:
        answer = error
    except OSError:
        return False, []
    with answer:
        said = msgspec.json.decode(answer.read(), type=_Readiness)
    return said.status == "ready", said.problems
