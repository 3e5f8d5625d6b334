"""Keeps an engine's lease in Redis while the engine serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from engine.redis_address import parse
from engine.registration import INDEX_KEY, INDEX_LIFETIME, KEY_BYTES, LEASE_KEY, LIFETIME, Lease, sealed
from engine.tls import Certificate, client_context

logger = logging.getLogger(__name__)

RENEWAL_SECONDS = 1.0
INDEX_SECONDS = 5.0
"""Seconds between entries in the index, which loses those whose lease has ended."""
_REDIS_TIMEOUT = 1.0


class Announcer:
    """Writes the lease of one engine every second, and its id into the index of its pool."""

    def __init__(self, url: str, key: bytes, tls: Certificate | None = None) -> None:
        """
        Args:
            url: of the Redis that the gateways use.
            tls: files for TLS to it, to its sentinels, or to all nodes of its cluster; None: the machine's authorities.

        Raises:
            ValueError: it is no such address, or a file cannot be used; the message holds no part of a password.
        """
        try:
            self._redis = _client(url, tls)
        except ValueError as error:
            raise ValueError(f"--register: {error}") from None
        self._key = key
        self._written: Lease | None = None
        self._ending = asyncio.Event()

    @contextlib.asynccontextmanager
    async def announced(self, lease: Callable[[], Lease]) -> AsyncIterator[None]:
        """Keep the lease while the body runs, as this function returns it each time that it is renewed.

        Without Redis the engine goes on to serve those that know it already.
        """
        renewing = asyncio.create_task(self._renew(lease), name="lease")
        try:
            yield
        finally:
            self._ending.set()
            await renewing
            await self._withdraw()

    async def _renew(self, lease: Callable[[], Lease]) -> None:
        loop = asyncio.get_running_loop()
        indexed, away = -math.inf, False
        while not self._ending.is_set():
            now = loop.time()
            due = now - indexed >= INDEX_SECONDS
            try:
                await self._write(lease(), indexed=due)
            except Exception as error:  # whatever it was, the next renewal may succeed
                if not away:
                    logger.warning("not announced: %s", _reason(error))
                indexed, away = -math.inf, True
            else:
                if away:
                    logger.warning("announced again")
                indexed, away = now if due else indexed, False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL_SECONDS):
                    await self._ending.wait()

    async def _withdraw(self) -> None:
        """Delete the lease, which would also end by itself."""
        try:
            if self._written is not None:
                async with self._redis.pipeline(transaction=False) as pipeline:
                    pipeline.delete(LEASE_KEY.format(pool=self._written.pool, id=self._written.id))
                    pipeline.zrem(INDEX_KEY.format(pool=self._written.pool), self._written.id)
                    await pipeline.execute()
        except Exception as error:  # the engine ends all the same
            logger.warning("not withdrawn: %s", _reason(error))
        finally:
            await self._redis.aclose()
            pool = getattr(self._redis, "connection_pool", None)
            if isinstance(pool, SentinelConnectionPool):  # it leaves its connections to the sentinels open
                await pool.sentinel_manager.aclose()

    async def _write(self, lease: Lease, *, indexed: bool) -> None:
        self._written = lease
        async with self._redis.pipeline(transaction=False) as pipeline:
            value = sealed(lease, self._key)
            pipeline.set(LEASE_KEY.format(pool=lease.pool, id=lease.id), value, px=int(1000 * LIFETIME))
            if indexed:
                index = INDEX_KEY.format(pool=lease.pool)
                pipeline.zadd(index, {lease.id: lease.time})
                pipeline.expire(index, int(INDEX_LIFETIME))
            await pipeline.execute()


def _client(url: str, files: Certificate | None) -> Redis | RedisCluster:
    """Make a client of the server that has the gateways' keys, whichever it is at the time.

    Raises:
        ValueError: see `parse`; or the files cannot be used.
    """
    address = parse(url)
    options: dict[str, Any] = {"socket_timeout": _REDIS_TIMEOUT, "socket_connect_timeout": _REDIS_TIMEOUT}
    options["retry"] = Retry(NoBackoff(), 0)
    tls: dict[str, Any] = {"ssl": True} if address.tls else {}
    if files is not None:
        if not address.tls:
            raise ValueError("certificates need an address with TLS: rediss://, or sentinel://...?tls=true")
        client_context(files)  # refused here, by name, not with the first connection
        options |= {
            "ssl_ca_certs": files.authority,
            "ssl_certfile": files.certificate,
            "ssl_keyfile": files.key,
        }
    match address.kind:
        case "server":
            return Redis.from_url(url, **options)
        case "sentinel":
            asked = {**options, **tls, **address.sentinel_options}
            sentinel = Sentinel(address.hosts, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
            return cast(Redis, sentinel.master_for(address.service, **address.options, **options, **tls))
        case "cluster":
            nodes = [ClusterNode(host, port) for host, port in address.hosts]
            return RedisCluster(startup_nodes=nodes, **address.options, **options, **tls)


def _reason(error: Exception) -> str:
    """Return what to tell of an error; never its message, which may hold a part of the address."""
    name = type(error).__name__
    return f"Redis does not answer ({name})" if isinstance(error, RedisError | OSError) else name


def read_key(path: Path) -> bytes:
    """Read the key of the installation's leases, as `roundhouse engine key` prints it.

    Raises:
        ValueError: it is none; the message names the file.
    """
    try:
        key = bytes.fromhex(path.read_text("ascii").strip())
    except (OSError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path}: must hold {2 * KEY_BYTES} hex digits, as `roundhouse engine key` prints them")
    return key
