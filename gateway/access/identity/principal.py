"""Principals: on whose behalf something is done, and what they may do."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway.errors import Forbidden
from gateway.records.directory import Scope
from gateway.records.quota import Quota

SCOPES: Final[frozenset[Scope]] = frozenset({"chat", "models", "adapters", "admin:read", "admin:write"})

USE: Final[frozenset[Scope]] = frozenset({"chat", "models", "adapters"})
"""Scopes of a key that names none."""

ADMIN: Final[frozenset[Scope]] = frozenset({"admin:read", "admin:write"})
"""Scopes of an operator who acts for no tenant."""

LINK: Final = "link:operator"
"""What stands for the key of an operator who has signed in by a one-time address; ids of keys have no colon."""


class Principal(Struct, frozen=True):
    """The caller on whose behalf something is done."""

    tenant: str
    """Empty for an operator who has signed in by a one-time address where no tenant is."""
    key: str
    """Id of the API key, or of the issuer of a token, for logs."""
    user: str | None = None
    """Person or service within the tenant, where one is known: the id of a key's user, the subject of a token."""
    scopes: frozenset[Scope] = USE
    operator: bool = False
    """Whether its admin scopes reach every tenant, not only its own."""
    quota: Quota | None = None
    """Quota of its API key, which counts beside the tenant's quota."""
    counts_as: str | None = None
    """Id of the key that its API key has replaced and whose counters it shares, if there is one."""
    expires_at: float | None = None
    """When the token or session behind it expires, in seconds since 1970; None for keys, whose record says it."""
    session: str | None = None
    """Digest of the browser session by which the caller is known; None: a key or token was sent."""
    user_id: str | None = None
    """Id of the user in the directory, the same for keys and tokens; None: the directory does not know who calls."""

    @property
    def actor(self) -> str:
        """The caller, as the audit log names it."""
        who = f"user:{self.user}" if self.user else f"key:{self.key}"
        return f"{self.tenant}/{who}" if self.tenant else who

    def require(self, scope: Scope) -> None:
        """
        Raises:
            Forbidden: the caller lacks the scope.
        """
        if scope not in self.scopes:
            raise Forbidden(
                f"this key or token lacks the scope '{scope}'; use one that has it", code="insufficient_scope"
            )
