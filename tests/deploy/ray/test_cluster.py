"""Engines on real Ray clusters of this machine: where they run, what a lost node costs, growth and shrinkage.

The nodes are processes with addresses of their own; the head's state is in a Redis, so that it survives its death.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.deploy.ray.clusters import HEAD
from tests.deploy.ray.fleet import Fleet, fleet
from tests.e2e.test_failures import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not find_spec("ray"), reason="needs Ray: pip install 'roundhouse[ray]'"),
    pytest.mark.timeout(900),
]

SECOND, THIRD = "127.0.0.3", "127.0.0.4"
AUTOSCALER = {
    "cluster_name": "roundhouse",
    "max_workers": 1,
    "idle_timeout_minutes": 0.05,
    "upscaling_speed": 1.0,
    "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "spot": {
            "resources": {"CPU": 1, "object_store_memory": 80_000_000},
            "labels": {"ray.io/market-type": "spot"},
            "node_config": {},
            "max_workers": 1,
        },
    },
    **{name: {} for name in ("auth", "docker", "file_mounts")},
    **{
        name: []
        for name in (
            "cluster_synced_files",
            "initialization_commands",
            "setup_commands",
            "head_setup_commands",
            "worker_setup_commands",
            "head_start_ray_commands",
            "worker_start_ray_commands",
        )
    },
}
"""Ray's fake provider of nodes: processes of this machine, with the address of the machine."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Fleet]:
    """Two nodes with an engine each, shared by tests that run in their order."""
    with fleet(low=2) as it:
        it.cluster.head()
        it.cluster.node(SECOND)
        it.up(2)
        yield it


def test_an_engine_on_a_cluster_answers_and_ends() -> None:
    """The short way through: one node, one engine."""
    with fleet(low=1) as it:
        it.cluster.head()
        assert list(it.up(1).values()) == [HEAD]
        assert it.it.ask()
        assert "no engine is left" in it.ray("down")
        assert it.status() == {"problem": "nobody decides: roundhouse ray up", "replicas": []}
        assert not it.cluster.running("engine.server")


@pytest.mark.deep
def test_an_engine_that_is_to_stay_waits_for_a_node_that_is_no_spot_machine() -> None:
    with fleet(low=1, on_demand=1) as it:
        it.cluster.head(labels="ray.io/market-type=spot")
        it.ray("up")
        eventually(lambda: [each["reason"] for each in it.status()["replicas"]] == ["waits for a node with room"], 60)
        it.cluster.node(SECOND)
        assert list(it.wait_ready(1).values()) == [SECOND]
        assert all(name.endswith("-stays") for name in it.names())


@pytest.mark.deep
async def test_each_node_has_the_engine_that_there_is_room_for(pair: Fleet) -> None:
    assert sorted(pair.placed().values()) == [HEAD, SECOND]
    assert await pair.under_load(lambda: None) > 0


@pytest.mark.deep
async def test_a_node_that_is_killed_costs_no_turn_and_its_replica_comes_back(pair: Fleet) -> None:
    names = pair.names()
    [lost] = [id for id, node in pair.placed().items() if node == SECOND]
    moves = pair.moves()
    turns = await pair.under_load(lambda: pair.cluster.kill(SECOND))
    assert turns > 0 and lost not in pair.connected()
    assert pair.moves() > moves
    eventually(lambda: any(each["node"] == "" for each in pair.status()["replicas"]), 60)
    pair.cluster.node(THIRD)
    assert sorted(pair.wait_ready(2).values()) == [HEAD, THIRD]
    assert pair.names() == names


@pytest.mark.deep
async def test_a_head_node_that_is_killed_costs_no_turn_and_comes_back(pair: Fleet) -> None:
    """Its own engine dies with it; the other one goes on, without a head."""
    names, before = pair.names(), {id for id, node in pair.placed().items() if node == THIRD}
    assert await pair.under_load(lambda: pair.cluster.kill(HEAD)) > 0
    pair.cluster.head()
    after = pair.wait_ready(2)
    assert sorted(after.values()) == [HEAD, THIRD]
    assert before <= after.keys()
    assert pair.status()["problem"] is None
    assert pair.names() == names


@pytest.mark.deep
async def test_an_actor_that_is_killed_takes_its_engine_along_and_both_come_back(pair: Fleet) -> None:
    """The engine drains, as after any SIGTERM."""
    ids = pair.placed().keys()
    actor = pair.cluster.running("ray::ReplicaActor")[0]
    assert await pair.under_load(lambda: os.kill(actor, signal.SIGKILL)) > 0
    after = pair.wait_ready(2)
    assert len(after.keys() & ids) == 1


@pytest.mark.deep
async def test_a_node_that_is_drained_first_costs_no_turn_and_its_engine_starts_elsewhere(pair: Fleet) -> None:
    before, told = pair.placed(), []
    [going] = set(before.values()) - {HEAD}
    coming = SECOND if going == THIRD else THIRD

    def take_away() -> None:
        told.append(pair.ray("drain", "--node", going, configured=False))
        pair.cluster.kill(going)

    assert await pair.under_load(take_away) > 0
    assert told == [f"1 engines on {going} have ended\n"]
    pair.cluster.node(coming)
    after = pair.wait_ready(2)
    assert sorted(after.values()) == sorted([HEAD, coming])
    assert {id for id, node in before.items() if node == HEAD} < after.keys()


@pytest.mark.deep
async def test_a_pool_grows_onto_a_fresh_node_and_gives_it_back() -> None:
    """An operator allows more, then fewer; turns of the engine that goes end there or elsewhere."""
    with fleet(low=1) as it:
        provider = {"type": "fake_multinode", "gcs_address": it.cluster.address, "use_node_id_as_ip": True}
        it.cluster.head(autoscaler={**AUTOSCALER, "provider": provider})
        assert list(it.up(1).values()) == [HEAD]
        it.roundhouse("scale", "set", "small", "--min", "2")
        grown = it.wait_ready(2)
        [fresh] = [id for id, node in grown.items() if node != HEAD]
        assert await it.under_load(lambda: it.roundhouse("scale", "set", "small", "--min", "1", "--max", "1")) > 0
        assert list(it.wait_ready(1).values()) == [HEAD]
        assert fresh not in it.connected()
        eventually(lambda: len(it.cluster.running("raylet_socket_name")) == 1, 60)
