"""Clients that others wrote, unchanged but for address, key and model; `make test-clients` runs all there are."""

from __future__ import annotations

import pytest

from tests.clients.client import clients
from tests.clients.environments import UnavailableError, environment
from tests.clients.running import Server, run
from tests.e2e.conftest import KEY, NAMES, Installation


@pytest.mark.timeout(900)  # a first run installs the client
@pytest.mark.parametrize("name", [name for name, client in clients().items() if client.in_make_test])
def test_an_unchanged_client_works(name: str, roundhouse: Installation) -> None:
    client = clients()[name]
    try:
        place = environment(name, client)
    except UnavailableError as error:
        pytest.skip(f"not tested with {name}: {error}")
    outcome = run(client, place, Server(roundhouse.url, KEY, NAMES["small"]))
    assert outcome.surprises(client) == []
