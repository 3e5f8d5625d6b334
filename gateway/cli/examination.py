"""Examines an installation: what is there, what is missing, and what to do about it.

Everything is looked at, nothing is changed, and no finding hides another one: what cannot be looked at is a finding
too. What needs torch is examined in a process of its own (`kernels/doctor.py`).
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
from redis.exceptions import RedisError

from engine.adapters.registry import AdapterRegistry, RegistryError
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.manifest import manifest_path
from engine.checkpoint.opening import open_checkpoint
from engine.text.processor import TextProcessor
from gateway import __version__
from gateway.cli.check_result import PATIENCE, CheckResult
from gateway.cli.engine_checks import announced, scaling
from gateway.config import checkpoints
from gateway.config.redis import without_secrets
from gateway.config.settings import NO_TENANTS, PoolSettings, Settings, SettingsError, file_of
from gateway.engines.adapters import registry_url
from gateway.models.store import ModelStore
from gateway.processes import redis_server
from gateway.processes.extras import missing
from gateway.server import PortTaken, listen
from gateway.storage.connect import connect, redis_url
from gateway.upstreams.connecting import connector

_PACKAGES = ("starlette", "uvicorn", "redis", "tokenizers")
_EXAMINATION = 120.0
"""Seconds that loading torch may take on a busy machine."""
_ROOM = 1 << 30
"""Free bytes that a data folder's disk should have."""


async def examine(config: str | None, read: Callable[[], Settings]) -> AsyncIterator[CheckResult]:
    """Yield all findings as they come. `read` gives the settings of the configuration file `config`."""
    for finding in _versions():
        yield finding
    settings: Settings | None = None
    try:
        settings = read()
    except SettingsError as error:
        yield CheckResult(
            "configuration", "settings", str(error), "broken", "correct it; docs/configuration.md has all fields"
        )
    else:
        yield _configuration(settings, file_of(config))
        for finding in _installation(settings):
            yield finding
        async for finding in _services(settings):
            yield finding
    found = await asyncio.to_thread(kernels)
    for finding in found:
        yield finding
    if settings is not None:
        for finding in _devices(settings, found):
            yield finding


def _devices(settings: Settings, found: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Find pools whose engines `serve` cannot start for want of a GPU."""
    if any(finding.area == "cuda" and finding.name.startswith("device ") for finding in found):
        return
    for pool in settings.pools:
        if pool.device == "cuda" and pool.own:
            remedy = 'see what is said of the device above, or set device = "cpu" in its pool'
            value = "its engine is to run on CUDA, which is not there"
            yield CheckResult("cuda", f"pool {pool.tier}", value, "broken", remedy)


def _versions() -> Iterator[CheckResult]:
    yield CheckResult("versions", "roundhouse", __version__)
    yield CheckResult("versions", "python", f"{platform.python_version()} on {platform.platform()}")
    for package in _PACKAGES:
        yield CheckResult("versions", package, importlib.metadata.version(package))


def _configuration(settings: Settings, file: Path) -> CheckResult:
    where = str(file.resolve()) if file.is_file() else "the embedded default, as there is no roundhouse.toml"
    value = f"{where}; {len(settings.tenants)} tenants, {len(settings.pools)} pools"
    if not settings.tenants:
        return CheckResult("configuration", "settings", value, "note", f"unless Redis has tenants, {NO_TENANTS}")
    return CheckResult("configuration", "settings", value)


def _installation(settings: Settings) -> Iterator[CheckResult]:
    """Check folder, port, files, models and registry on this machine."""
    yield _data_folder(Path(settings.redis.data))
    yield _port(settings)
    yield _open_files(settings)
    awaited = checkpoints.awaited(settings)
    for pool, model in awaited:
        value = f"{pool.name} is not here yet ({model.bytes / 1e6:,.0f} MB)"
        yield CheckResult("installation", f"model of {pool.tier}", value, "note", "roundhouse serve fetches it")
    for pool in checkpoints.present(settings):
        yield _model(pool, settings.models.open())
    yield _registry(settings)


def _data_folder(folder: Path) -> CheckResult:
    name, folder = "data folder", folder.resolve()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        remedy = "let this user write there, or name another folder: ROUNDHOUSE_REDIS_DATA=/tmp/roundhouse"
        return CheckResult("installation", name, f"{folder} cannot be written", "broken", remedy)
    free = shutil.disk_usage(there).free
    value = f"{folder}, {free / (1 << 30):.1f} GiB free"
    if free < _ROOM:
        return CheckResult(
            "installation", name, value, "warning", "make room: Redis stores conversations and usage there"
        )
    return CheckResult("installation", name, value)


def _port(settings: Settings) -> CheckResult:
    where = f"{settings.server.host}:{settings.server.port}"
    try:
        bound = listen(settings)
    except PortTaken as error:
        taken = error.__cause__
    else:
        with bound:
            return CheckResult("installation", "port", f"{where} is free" if settings.server.port else "any free one")
    if isinstance(taken, OSError) and taken.errno == errno.EADDRINUSE:
        if _is_gateway(where):
            return CheckResult("installation", "port", f"a gateway runs at {where}")
        remedy = "stop what uses it, or choose another port: roundhouse serve --port 9000"
        return CheckResult("installation", "port", f"{where} is in use by something else", "broken", remedy)
    remedy = "set server.host to an address of this machine, and server.port to one that this user may open"
    return CheckResult("installation", "port", f"cannot listen on {where}: {taken}", "broken", remedy)


def _is_gateway(where: str) -> bool:
    """Whether a gateway answers at `host:port`."""
    try:
        with urllib.request.urlopen(f"http://{where}/healthz", timeout=PATIENCE) as answer:
            return bool(msgspec.json.decode(answer.read(4096)) == {"status": "alive"})
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _open_files(settings: Settings) -> CheckResult:
    limit, wanted = resource.getrlimit(resource.RLIMIT_NOFILE)[0], settings.server.max_connections
    if limit == resource.RLIM_INFINITY:
        return CheckResult("installation", "open files", "no limit")
    value = f"at most {limit} for up to {wanted} connections (server.max_connections)"
    if limit < wanted + 256:
        return CheckResult(
            "installation", "open files", value, "note", f"ulimit -n {wanted + 1024} before roundhouse serve"
        )
    return CheckResult("installation", "open files", value)


def _model(pool: PoolSettings, store: ModelStore) -> CheckResult:
    """Check a pool's checkpoint: its digest, the tokenizer for the gateway, the weights for an engine of `serve`."""
    name = f"model of {pool.tier}"
    if pool.takes_messages:
        return CheckResult("installation", name, f"{pool.name} is {pool.model} of its {pool.dialect} servers")
    try:
        checkpoints.check([pool], store, read=True)
        size = open_checkpoint(pool.model).weight_bytes if pool.own else 0
    except (SettingsError, CheckpointError) as error:
        return CheckResult(
            "installation",
            name,
            str(error),
            "broken",
            "set pools.model to a folder in Hugging Face format or a GGUF file",
        )
    verified = checkpoints.expected_digest(pool, store) or manifest_path(Path(pool.model)).exists()
    digest = ", digest verified" if verified else ""
    return CheckResult(
        "installation", name, f"{pool.name} in {pool.model}" + (f", {size / 1e6:.0f} MB" if size else "") + digest
    )


def _registry(settings: Settings) -> CheckResult:
    address = registry_url(settings)
    try:
        count = len(AdapterRegistry(address).names())
    except RegistryError as error:
        return CheckResult(
            "installation", "adapters", str(error), "broken", "correct adapters.registry, or make it readable"
        )
    return CheckResult("installation", "adapters", f"{count} in {address}")


async def _services(settings: Settings) -> AsyncIterator[CheckResult]:
    """Check the services that have to answer."""
    yield await _redis(settings)
    for pool in settings.pools:
        for address in pool.engines:
            yield await _engine(settings, pool, address)
    for check in (announced, scaling):
        async for finding in check(settings):
            yield finding


async def _redis(settings: Settings) -> CheckResult:
    embedded = settings.redis.url is None
    address = settings.redis.url or ""
    try:
        address = redis_url(settings)
        async with connect(settings, timeout=PATIENCE) as redis:
            loop = asyncio.get_running_loop()
            server = await redis.info("server")
            version = f"Valkey {server['valkey_version']}" if "valkey_version" in server else server["redis_version"]
            begun = loop.time()
            await redis.ping()
            took = loop.time() - begun
    except SettingsError as error:
        return CheckResult("services", "redis", str(error), "broken", "choose a shorter path for redis.data")
    except (RedisError, OSError, ValueError) as error:
        if embedded:
            return _redis_binary()
        where = without_secrets(address)
        remedy = "start it, or correct redis.url; without it limits are local, and nothing is cached or stored"
        return CheckResult("services", "redis", f"{where} does not answer: {error}", "broken", remedy)
    value = f"{version} at {without_secrets(address)}, {took * 1000:.1f} ms"
    if took > settings.redis.timeout:
        remedy = (
            f"commands may take {settings.redis.timeout * 1000:g} ms (redis.timeout): move it closer, or wait longer"
        )
        return CheckResult("services", "redis", value, "warning", remedy)
    return CheckResult("services", "redis", value)


def _redis_binary() -> CheckResult:
    """Check the Redis server that `serve` would start."""
    binary = redis_server.binary()
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "apt-get install redis-server, or set redis.url"
        return CheckResult("services", "redis", f"{binary} cannot be run: {error}", "broken", remedy)
    return CheckResult("services", "redis", f"not running; serve starts {binary} ({said.split(' sha=')[0].strip()})")


async def _engine(settings: Settings, pool: PoolSettings, address: str) -> CheckResult:
    name = f"engine of {pool.tier}"
    try:
        tls = settings.engine_tls
        client_of = await asyncio.to_thread(connector, pool, tls, partial(TextProcessor.from_path, pool.model))
    except SettingsError as error:
        return CheckResult("services", name, str(error), "broken", "correct [engine_tls]; the files are PEM")
    except (ValueError, OSError) as error:
        return CheckResult("services", name, str(error), "broken", "correct pools.model")
    client = client_of(address, tls.server_name)
    try:
        async with asyncio.timeout(PATIENCE):
            await client.start()
            await client.wait_connected()
    except TimeoutError:
        how = "roundhouse engine serve --help" if pool.dialect == "roundhouse" else "docs/upstreams.md"
        remedy = f"start it ({how}), or correct pools.engines"
        return CheckResult("services", name, f"{address} does not answer", "broken", remedy)
    finally:
        await client.aclose()
    info = client.info
    assert info is not None
    what = f"{info.dtype} on {info.device}" if info.dtype else info.device
    return CheckResult("services", name, f"{info.name} at {address}, {what}")


def kernels(program: str = "kernels.doctor") -> list[CheckResult]:
    """Return what `python -m kernels.doctor` finds; it needs torch, which the gateway does without."""
    if install := missing("engine"):
        return [CheckResult("kernels", "engines", "not installed: this host has a gateway only", "note", install)]
    command = [sys.executable, "-m", program]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_EXAMINATION)
    except subprocess.TimeoutExpired:
        value = f"no answer within {_EXAMINATION:g} s"
        return [CheckResult("kernels", "engines", value, "broken", f"see what keeps it: {' '.join(command)}")]
    if process.returncode != 0:
        reason = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
        remedy = "engines cannot start like this; set right what it says, or install the package again"
        return [CheckResult("kernels", "engines", reason, "broken", remedy)]
    decoder = msgspec.json.Decoder(CheckResult)
    return [decoder.decode(line) for line in process.stdout.splitlines()]
