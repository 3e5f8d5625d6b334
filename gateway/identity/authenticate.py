"""Who is calling: API keys, of which the configuration holds digests only.

Keys are long and random, so a plain SHA-256 is the right digest: there is nothing to guess that a slow hash would
protect, and a wrong key costs the same single hash as a right one.
"""

from __future__ import annotations

import hashlib
import re

from gateway.errors import Unauthorized
from gateway.identity.principal import Principal
from gateway.settings import Settings

_BEARER = re.compile(r"^[Bb]earer +([\x21-\x7e]{1,512})$")


class Identity:
    """Checks API keys."""

    def __init__(self, settings: Settings) -> None:
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Take over the keys of a new configuration."""
        # Looked up by digest: how long that takes says nothing about a key, as nobody can steer what a key hashes to.
        self._principals = {
            key.sha256: Principal(tenant.name, key.id, scopes=frozenset(key.scopes), operator=key.operator)
            for tenant in settings.tenants
            for key in tenant.keys
        }

    async def authenticate(self, authorization: str | None) -> Principal:
        """The principal of an `Authorization` header.

        Raises:
            Unauthorized: no header, not a bearer token, or an unknown key.
        """
        if not authorization:
            raise Unauthorized("no API key; send the header 'Authorization: Bearer <key>'", code="missing_api_key")
        match = _BEARER.match(authorization)
        if not match:
            raise Unauthorized("the Authorization header must read 'Bearer <key>'")
        principal = self._principals.get(hashlib.sha256(match[1].encode()).hexdigest())
        if principal is None:
            raise Unauthorized("incorrect API key; keys are set under [[tenants]] in the configuration")
        return principal
