"""Which Redis an installation uses."""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta

from engine import redis_address
from engine.redis_address import RedisAddress
from engine.tls import Certificate, client_context
from gateway.records.section import Seconds, Section, SettingsError

_SECRET = re.compile(r"//.*@|(?<=password=)[^&]*")


class RedisSettings(Section, frozen=True):
    """The Redis that holds limits, caches and statistics, see [operating.md](operating.md#redis)."""

    url: Annotated[
        str | None,
        Meta(
            description="redis://, rediss:// or unix:// address, sentinel://HOST,HOST,.../NAME or cluster://HOST,HOST; "
            "empty: `serve` starts a Redis."
        ),
    ] = None
    timeout: Annotated[
        Seconds,
        Meta(
            description="Seconds one command may take before it counts as failed, and half of what the largest batch "
            "may. What the gateway itself is late by does not count."
        ),
    ] = 0.05
    ca: Annotated[
        str | None, Meta(description="Authorities that sign Redis' certificates (PEM); empty: the machine's.")
    ] = None
    cert: Annotated[str | None, Meta(description="This gateway's certificate for Redis (PEM).")] = None
    key: Annotated[str | None, Meta(description="Private key of that certificate (PEM, without a password).")] = None
    wait_replicas: Annotated[
        Annotated[int, Meta(ge=0, le=10)] | None,
        Meta(
            description="Replicas that must have a change of the directory, or usage, before it counts as written; "
            "empty: 1 for sentinel:// and cluster://, else none.",
        ),
    ] = None
    wait_timeout: Annotated[Seconds, Meta(description="Seconds to wait for these replicas.")] = 1.0
    data: Annotated[str, Meta(description="Folder of the embedded Redis and of other run-time files.")] = ".data"

    @property
    def replicas(self) -> int:
        """Replicas that must have what may not be lost."""
        if self.wait_replicas is not None:
            return self.wait_replicas
        return int(self.url is not None and parse(self.url).kind != "server")

    def tls_options(self) -> dict[str, Any]:
        """Return the certificates as redis-py's arguments.

        Raises:
            SettingsError: a file is missing or cannot be used.
        """
        if (self.cert is None) != (self.key is None):
            raise SettingsError("redis: cert and key belong together")
        if self.ca is None and self.cert is not None:
            raise SettingsError("redis: cert needs ca")
        if self.ca is not None:
            try:
                client_context(Certificate(self.ca, self.cert, self.key))
            except ValueError as error:
                raise SettingsError(f"redis: {error}") from None
        return {"ssl_ca_certs": self.ca, "ssl_certfile": self.cert, "ssl_keyfile": self.key}


def check_redis(settings: RedisSettings) -> None:
    """
    Raises:
        SettingsError: the address cannot be read, or certificates do not fit it.
    """
    tls = settings.url is not None and parse(settings.url).tls
    if tls:
        settings.tls_options()
    elif settings.ca or settings.cert or settings.key:
        raise SettingsError("redis: ca, cert and key need an address with TLS: rediss://, or sentinel://...?tls=true")


def without_secrets(url: str) -> str:
    """Return an address that may be shown."""
    return _SECRET.sub(lambda found: "//" if found[0].startswith("//") else "***", url)


def parse(url: str) -> RedisAddress:
    """Read an address.

    Raises:
        SettingsError: it is none; the message holds no password.
    """
    try:
        return redis_address.parse(url)
    except ValueError as error:
        raise SettingsError(f"redis.url: {error}") from None
