"""Finds the Redis of an installation and makes a client for it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError

from engine.redis_address import RedisAddress
from gateway.config.redis import parse
from gateway.config.settings import Settings, SettingsError
from gateway.errors import Unavailable
from gateway.storage.cluster import ClusterRedis
from gateway.storage.redis import CONNECT_TIMEOUT, BatchingRedis
from gateway.storage.replicas import Replicas

log = logging.getLogger("roundhouse.storage")

SENTINEL_TIMEOUT = 0.25
"""Seconds that a sentinel has to take a connection, and to answer."""
_DRIVER = DriverInfo()
"""What connections say of the library. Made once, as each would look for the files of the installed package."""
_LONGEST_SOCKET_PATH = 100
"""Most bytes of a unix socket's path; the kernel's limit is 108 on Linux and 104 elsewhere."""


def socket_path(settings: Settings, name: str) -> Path:
    """Path of the unix socket on which a child process of this installation listens.

    Raises:
        SettingsError: the data folder's path is too long for unix sockets.
    """
    path = Path(settings.redis.data).resolve() / f"{name}.sock"
    if len(bytes(path)) > _LONGEST_SOCKET_PATH:
        raise SettingsError(
            f"redis.data: the path {path.parent} is too long for unix sockets; choose a shorter one, for example "
            "ROUNDHOUSE_REDIS_DATA=/tmp/roundhouse"
        )
    return path


def embedded_url(settings: Settings) -> str:
    """Address of the embedded Redis of this installation, whether or not it runs."""
    return f"unix://{socket_path(settings, 'redis')}"


def redis_url(settings: Settings) -> str:
    """Address of the Redis to use: the configured one, else the embedded one."""
    return settings.redis.url or embedded_url(settings)


class _SentinelPool(SentinelConnectionPool):
    """Connections to the server that sentinels name; those to the sentinels are closed with them."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self.sentinel_manager.aclose()


def connect(settings: Settings, *, timeout: float | None = None) -> BatchingRedis:
    """Make a client for the gateway's own use. `timeout`: seconds, instead of the configured ones."""
    seconds = settings.redis.timeout if timeout is None else timeout
    address = parse(redis_url(settings))
    options: dict[str, Any] = {
        "socket_timeout": seconds,
        # A connection is made once and used long; making it may take longer than a command.
        "socket_connect_timeout": max(CONNECT_TIMEOUT, settings.redis.timeout),
        "max_connections": 256,
        "driver_info": _DRIVER,
        # Nothing is sent twice: whether a pipeline was carried out before its connection broke is not known. One that
        # Redis has closed while nothing was asked is opened again all the same.
        "retry": Retry(NoBackoff(), 0),
    }
    tls = settings.redis.tls_options() if address.tls else {}
    match address.kind:
        case "server":
            client = BatchingRedis.from_url(redis_url(settings), **options, **tls)
        case "sentinel":
            client = _by_sentinel(address, options, {"ssl": True, **tls} if tls else {})
        case "cluster":
            client = cast(BatchingRedis, _cluster(address, options, {"ssl": True, **tls} if tls else {}))
    return cast(BatchingRedis, client)


def _by_sentinel(address: RedisAddress, options: dict[str, Any], tls: dict[str, Any]) -> BatchingRedis:
    """Make a client of the server that sentinels name; it asks them again for every new connection."""
    seconds = options["socket_connect_timeout"]
    # One sentinel that is away must not use up the time in which others could answer.
    patience = {"socket_timeout": SENTINEL_TIMEOUT, "socket_connect_timeout": SENTINEL_TIMEOUT, **tls}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        address.hosts,
        sentinel_kwargs={**patience, "retry": options["retry"], **address.sentinel_options},
    )
    options["socket_connect_timeout"] = seconds + SENTINEL_TIMEOUT * len(address.hosts)
    return sentinel.master_for(  # type: ignore[no-any-return]
        address.service,
        redis_class=BatchingRedis,
        connection_pool_class=_SentinelPool,
        **address.options,
        **options,
        **tls,
    )


def _cluster(address: RedisAddress, options: dict[str, Any], tls: dict[str, Any]) -> ClusterRedis:
    seconds = options["socket_connect_timeout"]
    topology = RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        retry=Retry(NoBackoff(), 0),
        **address.options,
        **tls,
    )

    def make(host: str, port: int) -> BatchingRedis:
        return BatchingRedis(host=host, port=port, **address.options, **options, **tls)

    return ClusterRedis(topology, make, timeout=seconds * (1 + len(address.hosts)))


def replicas(settings: Settings) -> Replicas:
    """Return how many replicas must have what may not be lost."""
    return Replicas(settings.redis.replicas, settings.redis.wait_timeout)


@contextlib.contextmanager
def unavailable_without_redis(what: str) -> Iterator[None]:
    """Turn an error of Redis in the body into one for the client, who is told `what`: "tickets cannot be issued".

    Raises:
        Unavailable: Redis does not answer.
    """
    try:
        yield
    except (RedisError, OSError) as error:
        log.debug("no answer from Redis", extra={"refused": what, "error": type(error).__name__})
        raise Unavailable(f"{what} at the moment; try again in a few seconds") from None
