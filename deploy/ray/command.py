"""`roundhouse ray`: engines on a Ray cluster that exists already."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec
import ray
from msgspec import Struct
from ray.exceptions import RayError

from deploy.ray import cluster
from deploy.ray.actuator import drain
from deploy.ray.controller import ControllerActor
from deploy.ray.engine import bundle, pools_of
from gateway.cli.connection import config_option, json_option, load_settings
from gateway.cli.directory import print_table
from gateway.config.ray import RaySettings
from gateway.config.settings import Settings, SettingsError, file_of

_PATIENCE = 120.0
"""Seconds in which an actor must answer, or end."""
_LONGEST_DRAIN = 3600.0
"""Seconds for which `drain` waits: far longer than engines have, and than whoever takes the node away lets it."""
_LOOK_SECONDS = 0.5

address_option = click.option(
    "--address", default="auto", show_default=True, envvar="RAY_ADDRESS", help="HOST:PORT of the cluster's head node."
)


class PlacedReplica(Struct, frozen=True):
    """What `roundhouse ray status` tells of a replica."""

    pool: str
    name: str
    state: str
    engine: str
    """Id of its engine's process; empty before it has answered."""
    node: str
    """Address of its node; empty: it waits for one."""
    since: float
    reason: str


class RayStatus(Struct, frozen=True):
    """What `roundhouse ray status` tells."""

    problem: str | None
    """Why nothing is decided; None while all is well."""
    replicas: list[PlacedReplica]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Have a Ray cluster run the engines of pools with registered = true and max_replicas, see docs/ray.md.

    These commands and the head node read the same configuration at the same path; nodes have the models and the key of
    the engines.

    \b
    Examples:
      roundhouse ray up --config /etc/roundhouse/roundhouse.toml
      roundhouse ray status
      roundhouse ray drain --node 192.0.2.3
      roundhouse ray down
    """


@main.command()
@config_option
@address_option
def up(config: str | None, address: str) -> None:
    """Decide on the cluster how many engines pools have, and start them; returns once that is so.

    Where it runs already, it reads the configuration again: engines that run keep theirs.
    """
    settings = _joined(config, address)
    _end_controller()
    file = file_of(config).absolute()
    # On the head node, where the secret is. Its own death costs nothing, so that it is started again for ever.
    actor = ray.remote(ControllerActor).options(
        name=cluster.CONTROLLER,
        lifetime="detached",
        num_cpus=0,
        resources=cluster.HEAD,
        max_restarts=-1,
        max_task_retries=0,
    )
    controller = actor.remote(str(file))
    _until(lambda: _problem(controller) is None, lambda: f"nothing is decided: {_problem(controller)}")
    for pool in pools_of(settings):
        needs = ", ".join(f"{amount:g} {name}" for name, amount in bundle(pool, settings).items())
        click.echo(f"the {pool.tier} pool gets {pool.min_replicas} to {pool.max_replicas} engines of {needs} each")
    if os.environ.get("RAY_AUTH_MODE") != "token":
        click.echo("whoever reaches the ports of this cluster can run code on it: set RAY_AUTH_MODE=token", err=True)


@main.command()
@config_option
@address_option
@json_option
def status(config: str | None, address: str, as_json: bool) -> None:
    """Show the engines on the cluster, where they are, and whether anything waits for a node."""
    _joined(config, address)
    controller = cluster.find(cluster.CONTROLLER)
    problem = "nobody decides: roundhouse ray up" if controller is None else _problem(controller)
    found = RayStatus(problem, [_row(name, replica) for name, replica in cluster.look().items()])
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    if problem is not None:
        click.echo(f"nothing is decided: {problem}")
    columns = ("pool", "replica", "state", "engine", "node", "for", "why")
    print_table(columns, [_cells(each) for each in found.replicas])


@main.command("drain")
@address_option
@click.option("--node", required=True, metavar="ADDRESS", help="Address of the node, as `status` shows it.")
@click.option("--namespace", default=RaySettings().namespace, show_default=True, help="As `ray.namespace` of `up`.")
def drain_node(address: str, node: str, namespace: str) -> None:
    """End the engines on a node that is about to go; returns once they have ended. Others start where there is room.

    Requests have `scaling.drain_timeout` seconds to end; the rest goes on in engines elsewhere. No configuration is
    read: the node itself can do this.
    """
    _join(address, namespace)

    def there() -> set[str]:
        """Names of the replicas on the node whose engines have not ended."""
        return {name for name, replica in cluster.look().items() if replica.node == node and replica.told is not None}

    told = there()
    for name in told:
        drain(name)
    _until(lambda: told.isdisjoint(there()), lambda: f"engines still run on {node}", _LONGEST_DRAIN)
    click.echo(f"{len(told)} engines on {node} have ended")


@main.command()
@config_option
@address_option
def down(config: str | None, address: str) -> None:
    """End all engines on the cluster, and what decides how many there are; returns once they have ended.

    Requests have `scaling.drain_timeout` seconds to end; the rest goes on in engines elsewhere, if there are any.
    """
    settings = _joined(config, address)
    _end_controller()
    for name in cluster.look():
        drain(name)

    def ended() -> bool:
        for name, replica in (found := cluster.look()).items():
            if replica.told is None:
                cluster.end(name)
        return not found

    _until(ended, lambda: f"still there: {', '.join(cluster.look())}", settings.scaling.drain_timeout + _PATIENCE)
    click.echo("no engine is left on the cluster")


def _joined(config: str | None, address: str) -> Settings:
    """Check the configuration and connect to the cluster; a problem becomes an error message."""
    settings = load_settings(config)
    try:
        pools_of(settings)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    _join(address, settings.ray.namespace)
    return settings


def _join(address: str, namespace: str) -> None:
    try:
        cluster.join(address, namespace)
    except cluster.NoCluster as error:
        raise click.ClickException(str(error)) from error


def _end_controller() -> None:
    if (controller := cluster.find(cluster.CONTROLLER)) is not None:
        ray.kill(controller)
        _until(lambda: cluster.find(cluster.CONTROLLER) is None, lambda: "the old controller does not end")


def _problem(controller: Any) -> str | None:
    try:
        problem: str | None = ray.get(controller.problem.remote(), timeout=10)
    except RayError as error:
        return f"its controller does not answer: {cluster.first_line(error)}"
    return problem


def _until(true: Callable[[], bool], problem: Callable[[], str], seconds: float = _PATIENCE) -> None:
    """
    Raises:
        click.ClickException: it did not come true in time.
    """
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise click.ClickException(problem())
        time.sleep(_LOOK_SECONDS)


def _row(name: str, replica: cluster.RayReplica) -> PlacedReplica:
    told = replica.told
    if told is None:
        return PlacedReplica(name.partition("-")[0], name, "ended", "", replica.node, time.time(), "")
    reason = told.reason if replica.node or told.reason else "waits for a node with room"
    return PlacedReplica(told.pool, name, told.state, told.id, replica.node, told.since, reason)


def _cells(row: PlacedReplica) -> list[str]:
    age = f"{max(0.0, time.time() - row.since):.0f} s"
    return [row.pool, row.name, row.state, row.engine, row.node, age, row.reason]
