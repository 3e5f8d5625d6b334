"""How people sign in in a browser: at an identity provider, or as operator by a one-time address."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis

from gateway.access.identity.browser_sessions import BrowserSessions
from gateway.access.identity.code_flow import CodeFlow
from gateway.access.identity.issuers import Issuers
from gateway.access.identity.secret import derive
from gateway.access.sign_in_links import SignInLinks
from gateway.config.identity import IdentitySettings
from gateway.storage.seal import Seal


@dataclass(frozen=True)
class SignIn:
    """The ways to sign in, and the sessions that they begin."""

    sessions: BrowserSessions
    links: SignInLinks
    code_flow: CodeFlow

    @classmethod
    def over(cls, redis: Redis, secret: bytes, settings: IdentitySettings, issuers: Issuers) -> SignIn:
        """Make the parts. Args: secret: the installation's."""
        seal = Seal(derive(secret, "sessions"))
        return cls(BrowserSessions(redis, seal, settings), SignInLinks(redis), CodeFlow(issuers, seal))

    async def start(self) -> None:
        """Begin to follow sessions."""
        await self.sessions.start()

    async def aclose(self) -> None:
        """Stop that."""
        await self.sessions.aclose()
