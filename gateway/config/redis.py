"""Which Redis an installation uses, and how its address is read."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote

from msgspec import Meta, Struct
from redis.asyncio.connection import parse_url

from engine.tls import Certificate, client_context
from gateway.records.section import Seconds, Section, SettingsError

Host = tuple[str, int]

SCHEMES = ("redis", "rediss", "unix", "sentinel", "cluster")
_PORTS = {"sentinel": 26379, "cluster": 6379}
_SECRET = re.compile(r"//.*@|(?<=password=)[^&]*")
_OPTIONS = {
    "sentinel": {"tls", "db", "sentinel_username", "sentinel_password"},
    "cluster": {"tls"},
}
_TRUE, _FALSE = ("true", "yes", "1", ""), ("false", "no", "0")


class RedisAddress(Struct, frozen=True):
    """A parsed address."""

    kind: Literal["server", "sentinel", "cluster"]
    tls: bool
    hosts: tuple[Host, ...] = ()
    """Sentinels, or nodes of the cluster to ask for the others; empty for a single server."""
    service: str = ""
    """Name by which the sentinels know the server."""
    options: dict[str, Any] = {}
    """Arguments of connections to servers: user, password and database; of a single server also its place."""
    sentinel_options: dict[str, Any] = {}
    """Arguments of connections to sentinels."""


class RedisSettings(Section, frozen=True):
    """The Redis that holds limits, caches and statistics, see [operating.md](operating.md#redis)."""

    url: Annotated[
        str | None,
        Meta(
            description="redis://, rediss:// or unix:// address, sentinel://HOST,HOST,.../NAME or cluster://HOST,HOST; "
            "empty: `serve` starts a Redis."
        ),
    ] = None
    timeout: Annotated[Seconds, Meta(description="Seconds one command may take before it counts as failed.")] = 0.05
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
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES or not rest:
        raise SettingsError(f"redis.url: an address begins with {', '.join(f'{name}://' for name in SCHEMES)}")
    if scheme in ("redis", "rediss", "unix"):
        try:
            options = dict(parse_url(url))
        except ValueError:  # whose message may hold a part of the password
            raise SettingsError("redis.url: it is no address; / ? # and @ of a password are %2F %3F %23 %40") from None
        return RedisAddress("server", scheme == "rediss", options=options)
    place, _, query = rest.partition("?")
    login, _, place = place.rpartition("@")
    hosts, _, path = place.partition("/")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    if not asked.keys() <= _OPTIONS[scheme]:
        raise SettingsError(f"redis.url: options of {scheme}:// are {', '.join(sorted(_OPTIONS[scheme]))}")
    if scheme == "sentinel" and not path:
        raise SettingsError("redis.url: sentinel:// needs the server's name: sentinel://HOST,HOST,HOST/NAME")
    if scheme == "cluster" and path:
        raise SettingsError("redis.url: cluster:// has no database; leave out the path")
    options = _login(login)
    if "db" in asked:
        options["db"] = _number(asked["db"], "db")
    return RedisAddress(
        "sentinel" if scheme == "sentinel" else "cluster",
        _switch(asked.get("tls", "false")),
        tuple(_host(host, _PORTS[scheme]) for host in hosts.split(",")),
        unquote(path),
        options,
        {name.removeprefix("sentinel_"): text for name, text in asked.items() if name.startswith("sentinel_")},
    )


def _login(text: str) -> dict[str, Any]:
    user, colon, password = text.partition(":")
    found = {"username": unquote(user), "password": unquote(password) if colon else ""}
    return {name: value for name, value in found.items() if value}


def _host(text: str, port: int) -> Host:
    matched = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/\s]+)(?::(\d{1,5}))?", text)
    if matched is None:
        raise SettingsError("redis.url: hosts are HOST or HOST:PORT, separated by commas; a ? of a password is %3F")
    return matched[1].strip("[]"), int(matched[2] or port)


def _number(text: str, name: str) -> int:
    if not text.isdecimal():
        raise SettingsError(f"redis.url: {name} is a number")
    return int(text)


def _switch(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise SettingsError("redis.url: tls is true or false")
    return text.lower() in _TRUE
