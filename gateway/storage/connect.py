"""Finds the Redis of an installation and makes a client for it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.config.settings import Settings, SettingsError
from gateway.errors import Unavailable
from gateway.storage.redis import BatchingRedis

log = logging.getLogger("roundhouse.storage")

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


def connect(settings: Settings, *, timeout: float | None = None) -> BatchingRedis:
    """Make a client for the gateway's own use. `timeout`: seconds, instead of the configured ones."""
    client = BatchingRedis.from_url(
        redis_url(settings),
        socket_timeout=settings.redis.timeout if timeout is None else timeout,
        # A connection is made once and used long; making it may take longer than a command.
        socket_connect_timeout=max(1.0, settings.redis.timeout),
        max_connections=256,
        # Nothing is sent twice: whether a pipeline was carried out before its connection broke is not known. One that
        # Redis has closed while nothing was asked is opened again all the same.
        retry=Retry(NoBackoff(), 0),
    )
    assert isinstance(client, BatchingRedis)
    return client


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
