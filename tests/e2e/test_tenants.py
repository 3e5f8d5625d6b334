"""Tenants and keys from the command line, beside a running `roundhouse serve` with its own Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.conftest import Installation

TENANT = "e2e-tenant"
Run = Callable[..., str]


@pytest.fixture
def run(roundhouse: Installation) -> Iterator[Run]:
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


def test_the_command_line_finds_the_redis_and_the_secret_of_serve(run: Run) -> None:
    """By the data folder alone; keys are digested and the log is sealed with the gateways' secret."""
    run("tenant", "add", TENANT)
    made = json.loads(run("key", "add", TENANT, "--json"))
    (key,) = json.loads(run("key", "list", "--tenant", TENANT, "--json"))
    assert key["id"] == made["id"]
    assert "the log is whole" in run("audit", "verify")
