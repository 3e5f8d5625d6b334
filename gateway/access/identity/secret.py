"""The installation's secret: 32 bytes that key the digests of API keys and of cached prompts.

All gateways that share a Redis share it. It stands in `ROUNDHOUSE_SECRET` (64 hex digits, or 43 characters of URL-safe
base64), or in the file `secret` in `redis.data`, which is made once. `SecretComparison` compares it with a fingerprint
in Redis, so that a gateway with another secret does not start and then refuse every key.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.background import Periodic
from gateway.config.settings import Settings, SettingsError

log = logging.getLogger("roundhouse.identity")

SIZE = 32
"""Length of the secret in bytes."""

NOTICE = 1.0
"""Seconds after which a start that waits for Redis says so."""

RETRY = 5.0
"""Seconds between two attempts to compare the secret, while Redis does not answer or another secret is in it."""

DIFFERENT = "another gateway uses this Redis with another secret"

FINGERPRINT_KEY = "rh1:{directory}:secret"


def installation_secret(settings: Settings, environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the secret from the environment or its file, which is created if it is missing.

    Raises:
        SettingsError: it has another form, its file can be read by others, or cannot be made.
    """
    if text := environ.get("ROUNDHOUSE_SECRET"):
        return _decode(text)
    path = Path(settings.redis.data) / "secret"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _create(path)
        return _read(path)
    except OSError as error:
        raise SettingsError(f"{path}: cannot make the installation's secret: {error.strerror}") from error


def derive(secret: bytes, purpose: str) -> bytes:
    """Derive a secret for one purpose, of which nothing can be learnt about another's."""
    return hmac.digest(secret, purpose.encode(), hashlib.sha256)


async def check(redis: Redis, secret: bytes) -> bool | None:
    """Whether the gateways of this Redis use this secret; None without an answer. The first sets the fingerprint."""
    fingerprint = derive(secret, "fingerprint").hex().encode()
    try:
        # Looked for first, as a full Redis still reads. Redis before 7.0 refuses SET with both NX and GET.
        found = await redis.get(FINGERPRINT_KEY)
        if found is None:
            if await redis.set(FINGERPRINT_KEY, fingerprint, nx=True):
                return True
            found = await redis.get(FINGERPRINT_KEY)
    except (RedisError, OSError):
        return None
    return isinstance(found, bytes) and hmac.compare_digest(found, fingerprint)


class SecretComparison:
    """Compares a gateway's secret with that of the others: when it starts, or as soon as Redis answers."""

    def __init__(self, redis: Redis, secret: bytes, folder: str) -> None:
        """Args: folder: `redis.data`, for the remedy."""
        self.same: bool | None = None
        """Whether all have the same secret; None while Redis has not answered."""
        self._redis = redis
        self._secret = secret
        self._remedy = f"copy its file 'secret' from its redis.data to {folder}, or set the same ROUNDHOUSE_SECRET"
        self._repeated = Periodic("secret", self._compare_later, RETRY)

    async def start(self) -> None:
        """Compare; without an answer the start goes on.

        Raises:
            SettingsError: the others have another secret.
        """
        notice = asyncio.get_running_loop().call_later(
            NOTICE, log.warning, "the start waits for Redis, to compare the secret with that of other gateways"
        )
        try:
            self.same = await check(self._redis, self._secret)
        finally:
            notice.cancel()
        if self.same is False:
            raise SettingsError(f"{DIFFERENT}: {self._remedy}")
        if self.same is None:
            log.warning("Redis does not answer or is full: the secret is not compared with that of other gateways yet")
            await self._repeated.start()

    async def aclose(self) -> None:
        """Stop trying."""
        await self._repeated.aclose()

    async def _compare_later(self) -> None:
        if not self.same:
            self.same = await check(self._redis, self._secret)
            if self.same is False:
                log.error("%s: %s", DIFFERENT, self._remedy)


def _decode(text: str) -> bytes:
    try:
        secret = (
            bytes.fromhex(text) if len(text) == 2 * SIZE else base64.b64decode(text + "=", altchars="-_", validate=True)
        )
    except (ValueError, binascii.Error):
        secret = b""
    if len(secret) != SIZE:
        raise SettingsError(
            "ROUNDHOUSE_SECRET: must be 32 bytes as 64 hex digits or 43 characters of URL-safe base64; "
            "make one with: openssl rand -hex 32"
        )
    return secret


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise SettingsError(f"{path}: others can read the installation's secret; run: chmod 600 {path}")
        secret = file.read(SIZE + 1)
    if len(secret) != SIZE:
        raise SettingsError(f"{path}: must hold {SIZE} bytes; restore it from a backup, as digests of keys need it")
    return secret


def _create(path: Path) -> None:
    """Create the file whole or not at all, and let one of several processes win."""
    temporary = path.with_name(f".secret.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first; its secret is the one
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
