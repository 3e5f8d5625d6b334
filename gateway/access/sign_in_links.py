"""One-time addresses that sign in as operator: `roundhouse serve` prints one, `roundhouse admin link` makes more.

Whoever runs the command line already administers everything; the address takes this to a browser of the same machine.
Its secret is 256 random bits, lives ten minutes and works once. Redis holds its digest, not itself.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from redis.asyncio import Redis

from gateway.access.identity import Principal
from gateway.access.identity.principal import LINK, SCOPES
from gateway.errors import Unauthorized
from gateway.storage.connect import unavailable_without_redis

LIFETIME: Final = 600
"""Seconds for which an address is valid."""
COMMAND: Final = "roundhouse admin link"
"""Command that makes a new address."""
PATH: Final = "/auth/link"

LINK_KEY = "rh1:sign-in-link:{digest}"


class SignInLinks:
    """Makes and redeems one-time secrets."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def make(self) -> str:
        """Make a secret.

        Raises:
            Unavailable: Redis does not answer.
        """
        secret = secrets.token_urlsafe(32)
        with unavailable_without_redis("no address to sign in with can be made"):
            await self._redis.set(_key(secret), b"1", ex=LIFETIME)
        return secret

    async def redeem(self, secret: str, tenant: str) -> Principal:
        """Return the operator that a secret signs in, which can be used only once.

        Args:
            tenant: the tenant on whose behalf the operator chats; empty: none.

        Raises:
            Unauthorized: unknown, older than ten minutes, or used before.
            Unavailable: Redis does not answer.
        """
        with unavailable_without_redis("nobody can sign in"):
            found = await self._redis.getdel(_key(secret))
        if found is None:
            raise Unauthorized(
                "This address was used before, or is older than ten minutes. Run this command on the machine of the "
                f"gateway to get another one: {COMMAND}",
                code="link_spent",
            )
        return Principal(tenant, LINK, scopes=SCOPES, operator=True)


def _key(secret: str) -> str:
    return LINK_KEY.format(digest=hashlib.sha256(secret.encode()).hexdigest())
