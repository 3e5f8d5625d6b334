"""Tenants and keys from the command line, beside a running `roundhouse serve` with its own Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Installation

TENANT = "e2e-tenant"


@pytest.fixture
def run(roundhouse: Installation) -> Iterator[object]:
    """A command as an operator types it; afterwards its tenant is gone."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "REDIS_"))}

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "gateway.cli", *words],
            env={**clean, "ROUNDHOUSE_REDIS_DATA": str(roundhouse.folder / "data")},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    yield run
    run("tenant", "remove", TENANT, "--force")


def status(url: str, key: str) -> int:
    """Of a request with this key, asked again while Redis answers too slowly for it to be looked up."""
    while (found := _status(url, key)) == 503:
        time.sleep(0.1)
    return found


def _status(url: str, key: str) -> int:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_key_works_until_it_is_revoked(roundhouse: Installation, run: object) -> None:
    """Without a restart of anything. The command line finds the Redis and the secret of `serve` by the data folder."""
    assert callable(run)
    run("tenant", "add", TENANT)
    made = json.loads(run("key", "add", TENANT, "--json"))
    (key,) = json.loads(run("key", "list", "--tenant", TENANT, "--json"))
    assert key["id"] == made["id"]
    url = f"{roundhouse.api}/models"
    assert status(url, made["key"]) == 200
    run("key", "revoke", made["id"])
    deadline = time.monotonic() + 30
    while status(url, made["key"]) != 401:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "the log is whole" in run("audit", "verify")
