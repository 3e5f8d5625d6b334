"""How the address of a Redis is read: a server, one that sentinels name, or a cluster."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from msgspec import Struct
from redis.asyncio.connection import parse_url

Host = tuple[str, int]

SCHEMES = ("redis", "rediss", "unix", "sentinel", "cluster")
_PORTS = {"sentinel": 26379, "cluster": 6379}
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


def parse(url: str) -> RedisAddress:
    """Read an address.

    Raises:
        ValueError: it is none; the message holds no password.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES or not rest:
        raise ValueError(f"an address begins with {', '.join(f'{name}://' for name in SCHEMES)}")
    if scheme in ("redis", "rediss", "unix"):
        try:
            options = dict(parse_url(url))
        except ValueError:  # whose message may hold a part of the password
            raise ValueError("it is no address; / ? # and @ of a password are %2F %3F %23 %40") from None
        return RedisAddress("server", scheme == "rediss", options=options)
    place, _, query = rest.partition("?")
    login, _, place = place.rpartition("@")
    hosts, _, path = place.partition("/")
    asked = dict(parse_qsl(query, keep_blank_values=True))
    if not asked.keys() <= _OPTIONS[scheme]:
        raise ValueError(f"options of {scheme}:// are {', '.join(sorted(_OPTIONS[scheme]))}")
    if scheme == "sentinel" and not path:
        raise ValueError("sentinel:// needs the server's name: sentinel://HOST,HOST,HOST/NAME")
    if scheme == "cluster" and path:
        raise ValueError("cluster:// has no database; leave out the path")
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
        raise ValueError("hosts are HOST or HOST:PORT, separated by commas; a ? of a password is %3F")
    return matched[1].strip("[]"), int(matched[2] or port)


def _number(text: str, name: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{name} is a number")
    return int(text)


def _switch(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueError("tls is true or false")
    return text.lower() in _TRUE
