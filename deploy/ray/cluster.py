"""What a cluster holds of an installation: a placement group for each replica, and an actor of the same name in it.

Both outlive whoever made them, and nothing else is remembered: whoever looks finds the replicas again. Names are
`<tier>-<time of the start in hex>`, and end in `-stays` for a replica that is not to be on a spot machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ray
from msgspec import Struct
from msgspec.structs import replace
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deploy.ray.engine import EngineStart
from gateway.scaling.actuator import StartedReplica

PATIENCE = 2.0
"""Seconds that all replicas together have to tell their states."""
RESTARTS = 3
"""Actors that may die, with their node or without, before a replica has failed."""
CONTROLLER = "controller"
"""Name of the actor that decides how many replicas there are."""
HEAD = {"node:__internal_head__": 0.001}
"""A resource that only the head node has: the installation's secret need not be on others."""

STAYS = "-stays"
_NOT_SPOT = {"ray.io/market-type": "!spot"}
_NAME = re.compile(rf"(?P<tier>[a-z]+)-(?P<start>[0-9a-f]{{16}})(?:{STAYS})?")


class NoCluster(Exception):
    """There is no Ray cluster at an address."""


class RayReplica(Struct, frozen=True, kw_only=True):
    """A replica that was found."""

    told: StartedReplica | None
    """What it tells; None: its engine has ended, as it was told to."""
    node: str = ""
    """Address of its node; empty: it waits for one."""


def join(address: str, namespace: str) -> None:
    """Connect this process to a cluster.

    Raises:
        NoCluster: none answers there.
    """
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="error")
    except (ConnectionError, RayError, RuntimeError) as error:
        raise NoCluster(str(error)) from error


def first_line(error: RayError) -> str:
    """Return what an error says; the traces of other processes come after it."""
    return str(error).partition("\n")[0]


def find(name: str) -> Any:
    """Return the actor of this name, or None."""
    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def begin(actor: type, name: str, bundle: Mapping[str, float], start: EngineStart) -> None:
    """Reserve resources on one node and have an actor start there; where there is no room, both wait for a node."""
    group = placement_group(
        [dict(bundle)],
        strategy="STRICT_PACK",
        name=_group(name),
        lifetime="detached",
        bundle_label_selector=[_NOT_SPOT] if name.endswith(STAYS) else None,
    )
    ray.remote(actor).options(
        name=name,
        lifetime="detached",
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        max_restarts=RESTARTS,
        # Ray would repeat a call that ends its actor until all restarts are used up.
        max_task_retries=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
    ).remote(start, name)


def end(name: str) -> None:
    """Give back the resources of a replica; Ray kills its actor, and with it the engine if that still runs."""
    try:
        remove_placement_group(get_placement_group(_group(name)))
    except ValueError:  # it is gone already
        return


def look(before: Mapping[str, StartedReplica] = MappingProxyType({})) -> dict[str, RayReplica]:
    """Return all replicas of this process' namespace, by name, the oldest first.

    Args:
        before: what they told the last time. One that does not answer keeps the id of its engine, so that it is not
            taken for another one while the lease of that lasts.

    Raises:
        RayError: the cluster does not answer.
    """
    rows = {row["name"]: row for row in placement_group_table().values() if row["state"] != "REMOVED"}
    names = sorted(name for name in map(_replica, rows) if name)
    placed = {name: rows[_group(name)]["state"] == "CREATED" for name in names}
    actors = {name: find(name) for name in names}
    calls = {name: actors[name].state.remote() for name in names if placed[name] and actors[name] is not None}
    if calls:
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=PATIENCE)
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    found = {}
    for name in names:
        if actors[name] is None:
            told: StartedReplica | None = _unheard(name, "its actor has ended; the logs of Ray say why")
        else:
            told = _answer(calls.get(name), before.get(name, _unheard(name)))
        told = told and replace(told, stays=name.endswith(STAYS))
        nodes = rows[_group(name)]["bundles_to_node_id"].values() if placed[name] else ()
        found[name] = RayReplica(told=told, node=next((addresses.get(node, "") for node in nodes), ""))
    return found


def _answer(call: Any, last: StartedReplica) -> StartedReplica | None:
    """Return what a replica tells. Args: call: None if it has no node; last: what it told before."""
    away = last if last.state != "ready" else replace(last, state="starting", since=time.time())
    try:
        told: StartedReplica | None = away if call is None else ray.get(call, timeout=0)
    except GetTimeoutError:
        return last
    except ActorUnavailableError:  # it starts again
        return away
    except RayError as error:
        return replace(last, state="failed", reason=first_line(error))
    return told


def _unheard(name: str, reason: str = "") -> StartedReplica:
    """Return a replica that tells nothing: it starts, or has failed for this reason."""
    parts = _NAME.fullmatch(name)
    assert parts is not None
    return StartedReplica(
        name=name,
        pool=parts["tier"],
        state="failed" if reason else "starting",
        since=int(parts["start"], 16) / 1e9,
        reason=reason,
    )


def _group(name: str) -> str:
    """Return the name of a replica's placement group: the table of all does not tell namespaces."""
    return f"{ray.get_runtime_context().namespace}:{name}"


def _replica(group: str) -> str | None:
    namespace, _, name = group.rpartition(":")
    return name if namespace == ray.get_runtime_context().namespace and _NAME.fullmatch(name) else None
