"""The configuration: sources, precedence, and errors that name the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, demo_settings, load


def write(folder: Path, text: str) -> Path:
    file = folder / "roundhouse.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_anything_the_embedded_default_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(environ={})
    assert settings == demo_settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert [pool.tier for pool in settings.pools] == ["small", "medium", "large"]


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nport = 9000\nmax_connections = 5\n")
    settings = load(file, environ={"ROUNDHOUSE_SERVER_PORT": "9001"})
    assert (settings.server.port, settings.server.max_connections) == (9001, 5)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "[cache]\nenabled = false\n")
    assert not load(environ={"ROUNDHOUSE_CONFIG": str(file)}).cache.enabled


def test_values_of_the_environment_become_what_the_field_wants() -> None:
    settings = load(
        environ={
            "ROUNDHOUSE_CACHE_ENABLED": "false",
            "ROUNDHOUSE_ROUTER_LARGE_FROM": "0.75",
            "ROUNDHOUSE_SERVER_ALLOWED_ORIGINS": "https://a.example, https://b.example",
        }
    )
    assert settings.cache.enabled is False
    assert settings.router.large_from == 0.75
    assert settings.server.allowed_origins == ["https://a.example", "https://b.example"]


def test_redis_url_is_read_unless_the_file_names_one(tmp_path: Path) -> None:
    environ = {"REDIS_URL": "redis://elsewhere"}
    assert load(environ=environ).redis.url == "redis://elsewhere"
    assert load(write(tmp_path, '[redis]\nurl = "redis://here"\n'), environ=environ).redis.url == "redis://here"


POOL = '[[pools]]\ntier = "small"\nname = "a"\nmodel = "/m"\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[server]\nprot = 1\n", "prot"),
        ("[server]\nport = 70000\n", "server.port"),
        ("[servers]\n", "servers"),
        ('[redis]\ntimeout = "fast"\n', "redis.timeout"),
        ("[server\n", "not valid TOML"),
        ('[[tenants]]\nname = "a b"\n', r"tenants"),
        ('[[tenants]]\nname = "a"\n[[tenants]]\nname = "a"\n', "two tenants"),
        (POOL + POOL, "two pools serve the same tier"),
        (POOL + "step_tokens = 8\n", "step_tokens"),
        (POOL + 'quantize = "int8"\n', 'quantize .* needs dtype = "bfloat16"'),
        ('[[tenants]]\nname = "a"\nweight = 0\n', "weight"),
        ('[[tenants]]\nname = "a"\nservice = "gold"\n', "service"),
        ("pools = []\n", "at least one pool"),
        ("[router]\nmedium_from = 0.9\nlarge_from = 0.1\n", "router.medium_from"),
        ("[limits]\nrequests_per_minute = 0\n", "limits.requests_per_minute"),
        ('[[tenants]]\nname="a"\nkeys=[{id="k", sha256="short"}]\n', "sha256"),
    ],
)
def test_an_error_names_the_field(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(write(tmp_path, text), environ={})


def test_a_named_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such"):
        load(tmp_path / "missing.toml", environ={})


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="ROUNDHOUSE_SERVER_PORT"):
        load(environ={"ROUNDHOUSE_SERVER_PORT": "many"})


def test_two_keys_must_differ(tmp_path: Path) -> None:
    key = f'keys = [{{ id = "k", sha256 = "{"0" * 64}" }}]\n'
    text = f'[[tenants]]\nname = "a"\n{key}[[tenants]]\nname = "b"\n{key}'
    with pytest.raises(SettingsError, match="same sha256"):
        load(write(tmp_path, text), environ={})


def test_settings_cannot_be_changed_by_accident() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]
