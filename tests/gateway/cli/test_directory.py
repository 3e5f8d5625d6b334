"""`roundhouse tenant`, `user`, `key` and `audit`, on a real Redis."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from gateway.access.identity.last_used import LAST_USED_KEY
from gateway.access.identity.secret import installation_secret
from gateway.cli.root import main
from gateway.config.settings import load
from gateway.records.api_keys import digest, well_formed
from gateway.turns.comments import KEY as COMMENTS_KEY
from gateway.turns.prompts import KEY as PROMPTS_KEY


@pytest.fixture
def roundhouse(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command on an empty Redis; it must succeed unless `fails`."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("ROUNDHOUSE_REDIS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str, fails: bool = False) -> Result:
        result = CliRunner().invoke(main, words, catch_exceptions=False)
        assert (result.exit_code != 0) is fails, result.output
        assert "Traceback" not in result.output
        return result

    return run


def listed(result: Result) -> list[dict[str, Any]]:
    """What `--json` printed."""
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_tenant_is_added_changed_shown_and_removed(roundhouse: Any) -> None:
    """Its limits one by one."""
    roundhouse(
        "tenant", "add", "acme", "--quota", "requests_per_minute=5", "--quota", "spend_per_day=7", "--weight", "2"
    )
    roundhouse("tenant", "set", "acme", "--quota", "requests_per_minute=9", "--quota", "spend_per_day=", "--disable")
    roundhouse("tenant", "set", "acme", "--model", "small", "--model", "pirate", "--allow-service", "batch")
    (tenant,) = (one for one in listed(roundhouse("tenant", "list", "--json")) if one["name"] == "acme")
    assert (tenant["quota"], tenant["weight"], tenant["disabled"]) == ({"requests_per_minute": 9}, 2.0, True)
    assert (tenant["models"], tenant["services"]) == (["small", "pirate"], ["batch"])
    assert json.loads(roundhouse("tenant", "show", "acme").stdout) == tenant
    roundhouse("tenant", "set", "acme", "--model", "all", "--quota", "requests_per_minute=", "--enable")
    tenant = json.loads(roundhouse("tenant", "show", "acme").stdout)
    assert (tenant["models"], tenant["quota"], tenant["disabled"]) == (None, None, False)
    table = roundhouse("tenant", "list").stdout
    assert re.search(r"acme +active +2 +standard +all +directory", table)
    assert re.search(r"demo +active +1 +standard +all +configuration file", table)
    roundhouse("tenant", "remove", "acme")
    assert "no tenant 'acme'" in roundhouse("tenant", "show", "acme", fails=True).output


def test_limits_of_single_models_and_adapters(roundhouse: Any) -> None:
    """Beside the tenant's own."""
    roundhouse("tenant", "add", "acme", "--model-quota", "org/m:7b:requests_per_minute=5")
    roundhouse("tenant", "set", "acme", "--model-quota", "org/m:7b:concurrent_turns=1")
    roundhouse("tenant", "set", "acme", "--adapter-quota", "pirate:spend_per_day=9")
    tenant = json.loads(roundhouse("tenant", "show", "acme").stdout)
    assert tenant["model_quotas"] == {"org/m:7b": {"requests_per_minute": 5, "concurrent_turns": 1}}
    assert tenant["adapter_quotas"] == {"pirate": {"spend_per_day": 9}}
    roundhouse("tenant", "set", "acme", "--adapter-quota", "pirate:spend_per_day=")
    assert json.loads(roundhouse("tenant", "show", "acme").stdout)["adapter_quotas"] == {}


def test_a_key_is_shown_once(roundhouse: Any) -> None:
    """Alone on standard output; Redis and lists have its digest or nothing."""
    roundhouse("tenant", "add", "acme")
    added = roundhouse("key", "add", "acme", "--scope", "chat", "--expires", "90d", "--description", "ci")
    text = added.stdout.strip()
    assert well_formed(text)
    (key,) = (one for one in listed(roundhouse("key", "list", "--json", "--tenant", "acme")))
    assert f"{key['id']} of acme" in added.stderr
    assert (key["scopes"], key["description"], key["operator"]) == (["chat"], "ci", False)
    assert key["expires_at"] - key["created_at"] == pytest.approx(90 * 86400, abs=60)
    assert "digest" not in key
    shown = roundhouse("key", "show", key["id"]).output + roundhouse("audit", "list").output
    assert text not in shown
    assert digest(text, installation_secret(load())) not in shown


def test_a_key_is_rotated_and_revoked(roundhouse: Any) -> None:
    """The new one has the old one's rights; the old one ends after the overlap."""
    roundhouse("tenant", "add", "acme")
    old = json.loads(roundhouse("key", "add", "acme", "--operator", "--scope", "admin:read", "--json").stdout)
    new = json.loads(roundhouse("key", "rotate", old["id"], "--overlap", "1h", "--json").stdout)
    assert new["key"] != old["key"]
    keys = {one["id"]: one for one in listed(roundhouse("key", "list", "--json", "--tenant", "acme"))}
    assert keys[new["id"]]["replaces"] == old["id"]
    assert (keys[new["id"]]["scopes"], keys[new["id"]]["operator"]) == (["admin:read"], True)
    assert keys[new["id"]]["counts_as"] == old["id"]
    assert keys[old["id"]]["expires_at"] - keys[new["id"]]["created_at"] == pytest.approx(3600, abs=60)
    roundhouse("key", "set", old["id"], "--disable")
    assert re.search(rf"{old['id']} +acme +disabled", roundhouse("key", "list").stdout)
    roundhouse("key", "revoke", old["id"])
    assert [one["id"] for one in listed(roundhouse("key", "list", "--json", "--tenant", "acme"))] == [new["id"]]


def test_a_key_that_expires_is_not_replaced_unseen_by_one_that_does_not(roundhouse: Any) -> None:
    """It is told, unless a time is given."""
    roundhouse("tenant", "add", "acme")
    old = json.loads(roundhouse("key", "add", "acme", "--expires", "90d", "--json").stdout)["id"]
    assert re.search(f"{old} was to expire; key_[0-9a-f]+ never does", roundhouse("key", "rotate", old).stderr)
    assert "never" not in roundhouse("key", "rotate", old, "--expires", "90d").stderr


def test_the_last_use_of_keys_is_shown(roundhouse: Any, redis_url: str) -> None:
    """As gateways have written it down."""
    roundhouse("tenant", "add", "acme")
    key = json.loads(roundhouse("key", "add", "acme", "--json").stdout)["id"]
    assert json.loads(roundhouse("key", "show", key).stdout)["last_used_at"] is None
    with redis.Redis.from_url(redis_url) as client:
        client.zadd(LAST_USED_KEY.format(tenant="acme"), {key: 1_700_000_000})
    assert json.loads(roundhouse("key", "show", key).stdout)["last_used_at"] == 1_700_000_000
    used = {one["id"]: one["last_used_at"] for one in listed(roundhouse("key", "list", "--json"))}
    assert used == {key: 1_700_000_000, "demo": None}
    assert re.search(rf"{key} .* never +2023-11-1\d \d\d:\d\d ", roundhouse("key", "list").stdout)


def test_users(roundhouse: Any) -> None:
    """An e-mail address is nowhere in clear."""
    roundhouse("tenant", "add", "acme")
    user = roundhouse("user", "add", "acme", "anna", "--email", "Anna@Example.org", "--scope", "chat").stdout.strip()
    roundhouse("key", "add", "acme", "--user", user)
    roundhouse("user", "set", user, "--description", "ops", "--disable")
    assert re.search(rf"{user} +acme +anna +disabled +chat +ops", roundhouse("user", "list").stdout)
    assert "xample" not in roundhouse("user", "show", user).output + roundhouse("audit", "list").output
    assert "still has keys (1)" in roundhouse("user", "remove", user, fails=True).output
    roundhouse("user", "remove", user, "--force")
    assert listed(roundhouse("key", "list", "--json", "--tenant", "acme")) == []


def test_removing_a_tenant_by_force(roundhouse: Any, redis_url: str) -> None:
    """Takes its users, keys, prompts and comments along, and nobody else's."""
    for name in ("acme", "b"):
        roundhouse("tenant", "add", name)
        user = roundhouse("user", "add", name, "anna").stdout.strip()
        roundhouse("key", "add", name, "--user", user)
        with redis.Redis.from_url(redis_url) as client:
            client.hset(PROMPTS_KEY.format(tenant=name), "prompt_1", "sealed")
            client.hset(COMMENTS_KEY.format(tenant=name), "resp_1", "sealed")
    assert "still has users (1)" in roundhouse("tenant", "remove", "acme", fails=True).output
    assert "2 records that belonged to it" in roundhouse("tenant", "remove", "acme", "--force").output
    assert {one["tenant"] for one in listed(roundhouse("key", "list", "--json"))} == {"b", "demo"}
    assert [one["tenant"] for one in listed(roundhouse("user", "list", "--json"))] == ["b"]
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("rh1:prompts:*") == [PROMPTS_KEY.format(tenant="b").encode()]
        assert client.keys("rh1:comments:*") == [COMMENTS_KEY.format(tenant="b").encode()]
        client.hset(PROMPTS_KEY.format(tenant="acme"), "prompt_1", "sealed")  # as if Redis had failed meanwhile
    roundhouse("tenant", "remove", "acme")
    assert "no tenant 'acme'" in roundhouse("tenant", "remove", "acme", fails=True).output
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("rh1:prompts:*") == [PROMPTS_KEY.format(tenant="b").encode()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tenant", "add", "demo"], "set in the configuration file; change it there"),
        (["tenant", "set", "demo", "--weight", "2"], "set in the configuration file; change it there"),
        (["tenant", "add", "a b"], "$.name"),
        (["tenant", "add", "a", "--weight", "1000"], "$.weight"),
        (["tenant", "add", "a", "--quota", "tokens=5"], "give one of requests_per_minute"),
        (["tenant", "add", "a", "--quota", "requests_per_minute=x"], "requests_per_minute: 'x' cannot be its value"),
        (["tenant", "add", "a", "--model-quota", "requests_per_minute=5"], "names no model or adapter"),
        (["tenant", "add", "a", "--quota", "requests_per_minute"], "give a value (requests_per_minute=60)"),
        (["tenant", "set", "nobody", "--weight", "2"], "see: roundhouse tenant list"),
        (["tenant", "set", "demo"], "say what to change"),
        (["key", "set", "demo"], "say what to change"),
        (["key", "list", "--tenant", "nobody"], "no tenant 'nobody'; see: roundhouse tenant list"),
        (["user", "list", "--tenant", "nobody"], "no tenant 'nobody'; see: roundhouse tenant list"),
        (["user", "add", "demo", "anna", "--email", "anna"], "'anna' is no address"),
        (["key", "add", "demo", "--expires", "0s"], "give a longer time"),
        (["key", "add", "nobody"], "no tenant 'nobody'"),
        (["key", "rotate", "key_1"], "see: roundhouse key list"),
        (["key", "revoke", "demo"], "set in the configuration file; change it there"),
        (["audit", "verify", "--expect", "5"], "give the number and the hash"),
    ],
)
def test_refusals(roundhouse: Any, words: list[str], message: str) -> None:
    """One sentence that says what to do."""
    assert message in roundhouse(*words, fails=True).output


def test_another_secret_is_noticed(roundhouse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys made with it would work nowhere."""
    roundhouse("tenant", "add", "acme")
    monkeypatch.setenv("ROUNDHOUSE_SECRET", "ab" * 32)
    assert "set ROUNDHOUSE_SECRET" in roundhouse("key", "add", "acme", fails=True).output


def test_without_redis(roundhouse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is named."""
    monkeypatch.setenv("REDIS_URL", "unix:///nonexistent/redis.sock")
    message = roundhouse("tenant", "list", fails=True).output
    assert "/nonexistent/redis.sock does not answer" in message
    assert "check redis.url" in message


def test_without_a_running_gateway(roundhouse: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the wrong folder, mostly: it is named, and nothing is made there."""
    monkeypatch.delenv("REDIS_URL")
    monkeypatch.setenv("ROUNDHOUSE_REDIS_DATA", str(tmp_path / "elsewhere"))
    message = roundhouse("key", "list", fails=True).output
    assert f"{tmp_path}/elsewhere/redis.sock does not answer" in message
    assert "start `roundhouse serve`" in message
    assert not (tmp_path / "elsewhere").exists()


def test_a_secret_that_others_can_read(roundhouse: Any, tmp_path: Path) -> None:
    """Is refused with the remedy."""
    roundhouse("tenant", "list")
    (tmp_path / "data" / "secret").chmod(0o644)
    assert "run: chmod 600" in roundhouse("tenant", "list", fails=True).output


def test_tables_keep_words_whole(roundhouse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe each row is one line, however narrow the terminal; empty columns are left out."""
    monkeypatch.setenv("COLUMNS", "40")
    roundhouse("tenant", "add", "acme", "--model-quota", "large:requests_per_minute=5", "--quota", "spend_per_day=7")
    table = roundhouse("tenant", "list").stdout
    assert re.search(r"acme .* spend_per_day=7; large: requests_per_minute=5 ", table)
    assert "description" not in table
    assert re.search(r"1 .* tenant.create +acme +acme +name: ", roundhouse("audit", "list").stdout)


def test_adapters_may_be_for_tenants_of_the_directory(roundhouse: Any, tmp_path: Path) -> None:
    """As for those of the configuration."""
    roundhouse("tenant", "add", "acme")
    add = ("adapter", "add", "pirate", str(tmp_path), "--model", "roundhouse-demo-2m")
    known = roundhouse(*add, "--tenant", "acme", fails=True).output
    assert "adapter_config.json" in known
    assert "no tenant is named" not in known
    assert "no tenant is named 'b'; there are: acme, demo" in roundhouse(*add, "--tenant", "b", fails=True).output


class TestAudit:
    """The log of all that."""

    @pytest.fixture(autouse=True)
    def entries(self, roundhouse: Any) -> None:
        """Three of them."""
        roundhouse("tenant", "add", "acme")
        roundhouse("tenant", "set", "acme", "--weight", "2")
        roundhouse("tenant", "add", "b")

    def test_list(self, roundhouse: Any) -> None:
        """Newest first, also of one tenant."""
        table = roundhouse("audit", "list").stdout
        assert re.search(r"2 .* cli:\S+ +tenant.update +acme +acme +weight: 1.0 -> 2.0", table)
        entries = listed(roundhouse("audit", "list", "--json", "--tenant", "acme"))
        assert [(entry["sequence"], entry["action"]) for entry in entries] == [
            (2, "tenant.update"),
            (1, "tenant.create"),
        ]
        assert [entry["sequence"] for entry in listed(roundhouse("audit", "list", "--json", "--count", "1"))] == [3]

    def test_verify(self, roundhouse: Any, redis_url: str) -> None:
        """Tells the last entry, which can be expected later."""
        told = roundhouse("audit", "verify").stdout
        assert "3 entries" in told
        last = told.split()[-1]
        roundhouse("tenant", "add", "c")
        roundhouse("audit", "verify", "--expect", last)
        with redis.Redis.from_url(redis_url) as client:
            client.xdel("rh1:{directory}:audit", "2-0")
        assert "entry 2: it is missing" in roundhouse("audit", "verify", fails=True).output

    def test_a_log_that_was_set_back(self, roundhouse: Any, redis_url: str) -> None:
        """Only who has kept an entry can tell."""
        with redis.Redis.from_url(redis_url) as client:
            before = {name: client.dump(name) for name in client.scan_iter()}
            roundhouse("tenant", "add", "c")
            last = roundhouse("audit", "verify").stdout.split()[-1]
            client.flushall()
            for name, value in before.items():
                client.restore(name, 0, value)
        roundhouse("audit", "verify")
        assert "it was there once" in roundhouse("audit", "verify", "--expect", last, fails=True).output
        roundhouse("tenant", "add", "d")
        assert "not the one that was there" in roundhouse("audit", "verify", "--expect", last, fails=True).output

    def test_export(self, roundhouse: Any, tmp_path: Path) -> None:
        """To a file that can be verified, or to standard output."""
        file = tmp_path / "audit.jsonl"
        assert "3 entries" in roundhouse("audit", "export", str(file)).stderr
        assert roundhouse("audit", "export").stdout_bytes == file.read_bytes()
        assert len(roundhouse("audit", "export", "--after", "2").stdout.splitlines()) == 1
        assert "3 entries" in roundhouse("audit", "verify", "--file", str(file)).stdout
        file.write_bytes(file.read_bytes().replace(b'"weight":[1.0,2.0]', b'"weight":[1.0,3.0]'))
        assert "entry 2: it was edited" in roundhouse("audit", "verify", "--file", str(file), fails=True).output
