"""Addresses of Redis: what each says, and that no message shows a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.redis import RedisSettings, check_redis, parse, without_secrets
from gateway.config.settings import SettingsError

SENTINEL = "sentinel://anna:a%2Fb%40c@one,two:5,[::1]:6/main?tls=true&db=3&sentinel_username=s&sentinel_password=hush"


def test_a_sentinel_address_names_sentinels_server_and_both_logins() -> None:
    address = parse(SENTINEL)
    assert (address.kind, address.tls, address.service) == ("sentinel", True, "main")
    assert address.hosts == (("one", 26379), ("two", 5), ("::1", 6))
    assert address.options == {"username": "anna", "password": "a/b@c", "db": 3}
    assert address.sentinel_options == {"username": "s", "password": "hush"}


def test_a_cluster_address_names_some_nodes() -> None:
    address = parse("cluster://anna:pw@one:7000,two")
    assert (address.kind, address.tls, address.hosts) == ("cluster", False, (("one", 7000), ("two", 6379)))
    assert address.options == {"username": "anna", "password": "pw"}


@pytest.mark.parametrize(
    "url",
    [
        "one:6379",
        "http://:hush@one",
        "redis://:hu/sh@one:1",
        "redis://:hush@one:x",
        "sentinel://:hush@one",
        "sentinel://:hu?sh@one/main",
        "sentinel://:hush@one two/main",
        "sentinel://:hush@one/main?tls=perhaps",
        "sentinel://:hush@one/main?db=x",
        "cluster://:hush@one/1",
        "cluster://:hush@one?db=1",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^redis\.url: ") as refused:
        check_redis(RedisSettings(url=url))
    assert "hu" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://one:1/2", "redis://one:1/2"),
        ("redis://anna:hu/sh@one:1", "redis://one:1"),
        ("unix:///run/redis.sock?password=hush&db=1", "unix:///run/redis.sock?password=***&db=1"),
        (SENTINEL, "sentinel://one,two:5,[::1]:6/main?tls=true&db=3&sentinel_username=s&sentinel_password=***"),
        ("cluster://:hush@one,two?tls=true", "cluster://one,two?tls=true"),
    ],
)
def test_what_is_shown_of_an_address_has_no_secrets(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_replicas_are_waited_for_where_there_are_some() -> None:
    assert RedisSettings(url=SENTINEL).replicas == 1
    assert RedisSettings(url="cluster://one").replicas == 1
    assert RedisSettings(url="redis://one").replicas == RedisSettings().replicas == 0
    assert RedisSettings(url="redis://one", wait_replicas=2).replicas == 2


def test_certificates_belong_to_an_address_with_tls(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="need an address with TLS"):
        check_redis(RedisSettings(url="redis://one", ca="ca.pem"))
    with pytest.raises(SettingsError, match="no certificates can be read"):
        check_redis(RedisSettings(url="rediss://one", ca=str(tmp_path / "ca.pem")))
    with pytest.raises(SettingsError, match="belong together"):
        check_redis(RedisSettings(url="cluster://one?tls=true", cert="cert.pem"))
