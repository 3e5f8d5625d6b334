"""The configuration: sources, precedence, and errors that name the field."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.config.settings import DEMO_KEY, Settings, SettingsError, demo_settings, load
from gateway.models.catalogue import catalogue


def write(folder: Path, text: str) -> Path:
    file = folder / "roundhouse.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_anything_the_embedded_default_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(environ={})
    assert settings.tenants == demo_settings().tenants
    assert not settings.semantic_cache.enabled
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert [pool.tier for pool in settings.pools] == ["small", "medium", "large"]


@pytest.mark.parametrize(
    ("section", "field", "value", "instead"),
    [
        ("semantic_cache", "delta", "0.01", "set semantic_cache.max_wrong_hits"),
        ("router", "escalate", "true", "turn router.quality up"),
        ("router", "escalate_hold", "5", "turn router.quality up"),
        ("router", "escalate_logprob", "-1.5", "turn router.quality up"),
    ],
)
def test_a_setting_that_is_gone_is_refused_with_what_to_do(
    tmp_path: Path, section: str, field: str, value: str, instead: str
) -> None:
    """In the file and in the environment."""
    variable = f"ROUNDHOUSE_{section}_{field}".upper()
    with pytest.raises(SettingsError, match=f"{section}.{field}: there is no such setting any more.*{instead}"):
        load(write(tmp_path, f"[{section}]\n{field} = {value}\n"), environ={})
    with pytest.raises(SettingsError, match=f"{variable}: there is no such setting any more.*{instead}"):
        load(write(tmp_path, ""), environ={variable: value})


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ('pool = "wise"\n', "judge.pool: no pool is named 'wise'; name one of tiny"),
        ('pool = "tiny"\n[router]\nlog_entries = 0\n', "judge.pool: with router.log_entries = 0 nothing is learnt"),
    ],
)
def test_a_judge_that_there_cannot_be_is_refused(tmp_path: Path, judge: str, message: str) -> None:
    pool = '[[pools]]\ntier = "small"\nname = "tiny"\nmodel = "m"\n'
    file = write(tmp_path, f"{pool}[judge]\n{judge}")
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(file, environ={})


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
MESSAGES = POOL + 'dialect = "openai"\nengines = ["http://h:1"]\ncontext = 9\n'


def test_own_pools_without_tenants_have_no_tenant(tmp_path: Path) -> None:
    """Not that of the demo, whose key everybody knows."""
    assert load(write(tmp_path, POOL), environ={}).tenants == []


def test_own_tenants_may_have_the_demos_pools(tmp_path: Path) -> None:
    settings = load(write(tmp_path, '[[tenants]]\nname = "acme"\n'), environ={})
    assert [tenant.name for tenant in settings.tenants] == ["acme"]
    assert settings.pools == load(environ={}).pools


def test_without_pools_the_catalogues_models_are_served(tmp_path: Path) -> None:
    """From the store, and held to the catalogue's digests."""
    pools = load(environ={"ROUNDHOUSE_MODELS_STORE": str(tmp_path)}).pools
    assert [(pool.tier, pool.name) for pool in pools] == [(model.tier, model.name) for model in catalogue()]
    for pool, model in zip(pools, catalogue(), strict=True):
        assert pool.model == str(tmp_path / "models" / model.name / model.file)
        assert (pool.sha256, pool.cost) == (model.sha256, model.cost)
    assert sorted(pools, key=lambda pool: pool.cost) == pools


@pytest.mark.parametrize(
    ("served", "tiers"),
    [("small", ["small"]), ("large,small", ["small", "large"])],
)
def test_some_of_the_catalogues_models_may_do(served: str, tiers: list[str]) -> None:
    assert [pool.tier for pool in load(environ={"ROUNDHOUSE_MODELS_SERVE": served}).pools] == tiers
    chosen = load(environ={}, options={"models": {"serve": served.split(",")}})
    assert [pool.tier for pool in chosen.pools] == tiers


def test_with_none_of_them_the_model_of_this_repository_is_served() -> None:
    settings = load(environ={"ROUNDHOUSE_MODELS_SERVE": ""})
    assert settings.pools == demo_settings().pools
    assert [pool.tier for pool in settings.pools] == ["small"]
    assert settings.tenants == demo_settings().tenants


def test_pools_and_models_to_serve_are_not_named_together(tmp_path: Path) -> None:
    file = write(tmp_path, POOL)
    with pytest.raises(SettingsError, match=r"models\.serve: the configuration names pools"):
        load(file, environ={}, options={"models": {"serve": ["small"]}})
    assert [pool.name for pool in load(file, environ={}, options={"models": {"serve": []}}).pools] == ["a"]


def test_a_catalogue_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[[models]]\nname = 3")
    with pytest.raises(SettingsError, match=r"models\.catalogue: .*mine\.toml: .*name"):
        load(environ={"ROUNDHOUSE_MODELS_CATALOGUE": str(tmp_path / "mine.toml")})
    (tmp_path / "mine.toml").write_text("models = []")
    with pytest.raises(SettingsError, match=r"models\.serve: the catalogue has no model of the small tier"):
        load(environ={"ROUNDHOUSE_MODELS_CATALOGUE": str(tmp_path / "mine.toml")})


DEMO_TENANT = f'[[tenants]]\nname = "a"\nkeys = [{{ id = "k", sha256 = "{sha256(DEMO_KEY.encode()).hexdigest()}" }}]\n'


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.0.7", "chat.example"])
@pytest.mark.parametrize("text", ["", DEMO_TENANT, POOL + DEMO_TENANT])
def test_the_demos_key_is_refused_where_other_machines_can_use_it(tmp_path: Path, host: str, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SettingsError, match=r"server\.host: .* keys of your own, or listen on 127\.0\.0\.1"):
        load(file, environ={"ROUNDHOUSE_SERVER_HOST": host})
    with pytest.raises(SettingsError, match=r"server\.host"):
        load(file, environ={}, options={"server": {"host": host}})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_demo_may_listen_on_any_loopback_address(tmp_path: Path, host: str) -> None:
    assert load(write(tmp_path, ""), environ={}, options={"server": {"host": host}}).server.host == host


@pytest.mark.parametrize(
    ("listen", "scopes", "fine"),
    [
        ("0.0.0.0:9000", '["admin:read"]', False),
        ("[::]:9000", '["chat", "admin:write"]', False),
        (":9000", '["admin:read"]', False),
        ("0.0.0.0:9000", '["chat"]', True),
        ("127.0.0.1:9000", '["admin:read"]', True),
        ("[::1]:9000", '["admin:read"]', True),
        ("unix:/run/admin", '["admin:read"]', True),
    ],
)
def test_the_demos_key_is_refused_where_other_machines_can_administer_with_it(
    tmp_path: Path, listen: str, scopes: str, fine: bool
) -> None:
    """The admin API's own listener is another way in."""
    tenant = DEMO_TENANT.replace("sha256 =", f"scopes = {scopes}, sha256 =")
    file = write(tmp_path, f'[admin]\nlisten = "{listen}"\n{tenant}')
    if fine:
        assert load(file, environ={}).admin.listen == listen
    else:
        with pytest.raises(SettingsError, match=r"admin\.listen: .* keys of your own, or listen on 127\.0\.0\.1"):
            load(file, environ={})


def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not valid TOML: nested too deep"):
        load(write(tmp_path, "a = " + "[" * 10_000 + "]" * 10_000), environ={})


def test_an_own_key_may_be_used_from_anywhere(tmp_path: Path) -> None:
    text = DEMO_TENANT.replace(sha256(DEMO_KEY.encode()).hexdigest(), "0" * 64)
    assert load(write(tmp_path, text), environ={}, options={"server": {"host": "0.0.0.0"}}).server.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[server]\nprot = 1\n", "prot"),
        ("[server]\nport = 70000\n", "server.port"),
        ("[servers]\n", "servers"),
        ('server = "x"\n', r"server: it is no table; write \[server\]"),
        ('[redis]\ntimeout = "fast"\n', "redis.timeout"),
        ("[server\n", "not valid TOML"),
        ('[[tenants]]\nname = "a b"\n', r"tenants"),
        ('[[tenants]]\nname = "a"\n[[tenants]]\nname = "a"\n', "two tenants"),
        (POOL + POOL, "2 pools are named"),
        (POOL + "step_tokens = 8\n", "step_tokens"),
        (POOL + 'engines = ["http://h:1"]\n', "'http://h:1' is no address; use ws"),
        (POOL + 'dialect = "vllm"\n', "small pool is of vllm servers, which `serve` does not start"),
        (POOL + 'dialect = "vllm"\nengines = ["ws://h:1"]\n', "'ws://h:1' is no address; use http"),
        (POOL + 'dialect = "vllm"\nengines = ["http://me:pw@h:1"]\n', "'http://h:1' is no address"),
        (POOL + 'dialect = "vllm"\nengines = ["http://h:x"]\n', "'http://h:x' is no address"),
        (POOL + 'dialect = "vllm"\nengines = ["https://"]\n', "'https://' is no address"),
        (POOL + 'dialect = "vllm"\nengines = ["http://h/v1/"]\n', "'http://h/v1/': leave out /v1"),
        (POOL + 'api_key_file = "key"\n', "api_key_file of the small pool needs another dialect"),
        (POOL + 'dialect = "openai"\nengines = ["http://h:1"]\n', "context of the small pool: say how many tokens"),
        (POOL + 'dialect = "vllm"\nengines = ["http://h:1"]\ncontext = 9\n', "context of the small pool: its model"),
        (POOL + 'dialect = "tensorrt-llm"\nengines = ["http://h:1"]\n', "context of the small pool: say how many"),
        (MESSAGES + 'adapter_folder = "/a"\n', "adapter_folder of the small pool needs another dialect"),
        (
            POOL + 'dialect = "llama.cpp"\nengines = ["http://h:1"]\nadapter_folder = "/a"\n',
            "adapter_folder of the small pool needs another dialect",
        ),
        (MESSAGES + f'sha256 = "{"0" * 64}"\n', "sha256 of the small pool: its servers have its checkpoint"),
        (MESSAGES + '[judge]\npool = "a"\n', "judge.pool: a takes messages only"),
        (POOL + 'dialect = "vllm"\nengines = ["http://h:1"]\napi_key_file = "/no"\n', "api_key_file: /no cannot be"),
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


@pytest.mark.parametrize(
    ("id", "digit", "message"), [("other", "0", "same sha256"), ("k", "1", "two keys have the id 'k'")]
)
def test_two_keys_must_differ(tmp_path: Path, id: str, digit: str, message: str) -> None:
    """Of whatever tenants: one of two with the same id could not be used."""
    first, second = (f'keys = [{{ id = "{i}", sha256 = "{d * 64}" }}]\n' for i, d in (("k", "0"), (id, digit)))
    text = f'[[tenants]]\nname = "a"\n{first}[[tenants]]\nname = "b"\n{second}'
    with pytest.raises(SettingsError, match=message):
        load(write(tmp_path, text), environ={})


def test_settings_cannot_be_changed_by_accident() -> None:
    with pytest.raises(AttributeError):
        Settings().server.port = 1  # type: ignore[misc]
