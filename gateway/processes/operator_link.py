"""Makes the one-time addresses of `gateway.access.sign_in_links`: `serve` prints one, and gives more when asked."""

from __future__ import annotations

from urllib.parse import urlencode

from gateway.access.sign_in_links import PATH, SignInLinks
from gateway.config.origin import LOOPBACK
from gateway.config.settings import Settings, SettingsError
from gateway.errors import Unavailable
from gateway.processes.engines import Say
from gateway.storage.connect import connect

_PATIENCE = 5.0
"""Seconds that Redis may take."""


class OperatorLink:
    """Makes addresses that sign in as operator, each once."""

    def __init__(self, settings: Settings, url: str) -> None:
        """Args: url: of the gateway, for browsers of this machine."""
        self.url = url
        self._settings = settings

    async def make(self) -> str:
        """Make an address.

        Raises:
            SettingsError: no browser can reach the admin API.
            Unavailable: Redis does not answer.
        """
        url, listen = self.url, self._settings.admin.listen
        if listen is not None:
            if listen.startswith("unix:"):
                raise SettingsError("admin.listen: no browser can open a unix socket; name a host and a port")
            host, _, port = listen.rpartition(":")
            url = f"http://{host if host.strip('[]') in LOOPBACK else '127.0.0.1'}:{port}"
        async with connect(self._settings, timeout=_PATIENCE) as redis:
            secret = await SignInLinks(redis).make()
        return f"{url}{PATH}?{urlencode({'secret': secret})}"

    async def offer(self, say: Say) -> None:
        """Print an address, unless others can reach the gateway, or the configuration names an operator."""
        settings = self._settings
        keys = any(key.operator for tenant in settings.tenants for key in tenant.keys)
        people = any(issuer.operators for issuer in settings.identity.issuers)
        if settings.server.host in LOOPBACK and settings.admin.listen is None and not (keys or people):
            try:
                say(f"  administer it in a browser of this machine, once, within ten minutes: {await self.make()}")
            except Unavailable as error:
                say(f"  {error.message}")
