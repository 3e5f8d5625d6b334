"""What docs/tenants.md shows works, in its order."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from msgspec.structs import fields

from gateway.access.directory.change import Caps
from gateway.cli.root import main
from gateway.records.quota import Quota

PAGE = Path("docs/tenants.md").read_text("utf-8")


def run(*words: str) -> str:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, (words, result.output)
    return result.stdout


def test_the_commands_work(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `roundhouse` line of a block, on one Redis."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("ROUNDHOUSE_REDIS_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    lines = [line for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("roundhouse ")]
    assert len(commands) >= 15
    identity: dict[str, Any] = {}
    for command in commands:
        words = shlex.split(command)[1:]
        if "$ID" in words and not identity:
            (identity,) = json.loads(run("key", "list", "--tenant", "acme", "--json"))
        run(*(identity["id"] if word == "$ID" else word for word in words))
    run("tenant", "remove", "acme", "--force")


def test_limits_and_caps_are_named() -> None:
    """All fields of a quota; the numbers."""
    table = PAGE.split("| limit |")[1].split("\n\n")[0]
    assert {field.name for field in fields(Quota)} <= set(re.findall(r"`(\w+)`", table))
    caps = Caps()
    assert f"holds {caps.audit:,} entries; then the oldest {caps.audit // 10:,} go" in PAGE
    assert f"{caps.tenants:,} tenants and prices, {caps.routes:,} routes" in PAGE
    assert f"{caps.users_per_tenant:,} users and {caps.keys_per_tenant:,} keys, and {caps.routes_per_tenant}" in PAGE
