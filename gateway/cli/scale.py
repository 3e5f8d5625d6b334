"""`roundhouse scale`: how many engines each pool has and why, and who decides it."""

from __future__ import annotations

import time

import click
import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.access.directory.store import Directory
from gateway.cli.connection import actor, config_option, json_option, load_settings, run, with_redis
from gateway.cli.directory import print_table, with_directory
from gateway.config.settings import TIERS, SettingsError
from gateway.records.directory import PoolControl
from gateway.scaling.bounds import effective
from gateway.scaling.records import PoolLeader, PoolRecords, PoolSize


class ScaleStatus(Struct, frozen=True):
    """What `roundhouse scale status` tells."""

    leader: PoolLeader | None
    pools: list[PoolSize]


@click.group()
def scale() -> None:
    """Show and set how many engines pools have that name `max_replicas`, or decide it.

    `roundhouse serve` decides for engines that it starts itself. Where engines come from elsewhere, such as Kubernetes,
    run `roundhouse scale run`, and have its metric `roundhouse_pool_desired_replicas` followed.

    \b
    Examples:
      roundhouse scale status
      roundhouse scale set small --min 2 --max 6
      roundhouse scale run --listen 0.0.0.0:9110
    """


@scale.command("run")
@config_option
@click.option("--listen", metavar="HOST:PORT", help="Address of /metrics, /healthz and /readyz; else scaling.listen.")
def scale_run(config: str | None, listen: str | None) -> None:
    """Decide how many engines pools have, and publish it as metrics and in Redis, until SIGTERM.

    Several may run: one leads, and another one takes over within `scaling.lease` seconds after it has died.
    """
    from gateway.processes import scaling
    from gateway.telemetry import logs

    settings = load_settings(config)
    logs.configure(settings.log)
    try:
        run(scaling.run(settings, listen))
    except SettingsError as error:
        raise click.ClickException(str(error)) from error


@scale.command("status")
@config_option
@json_option
def scale_status(config: str | None, as_json: bool) -> None:
    """Show for each pool how many engines it is to have, has, and why."""

    async def read(redis: Redis) -> ScaleStatus:
        records = PoolRecords(redis)
        found = {tier: await records.read(tier) for tier in TIERS}
        sizes = [PoolSize.of(tier, record) for tier, record in found.items() if record is not None]
        return ScaleStatus(await records.leader(), sizes)

    status = with_redis(load_settings(config), read)
    if as_json:
        click.echo(msgspec.json.encode(status).decode())
        return
    if not status.pools:
        click.echo("no pool was looked at yet: set max_replicas of a pool (docs/operating.md)")
        return
    columns = ("pool", "desired", "ready", "starting", "draining", "min", "max", "since", "why")
    print_table(columns, [_row(each) for each in status.pools], numbers=columns[1:7])
    leader = status.leader
    if leader is None or leader.seconds <= 0:
        click.echo("nobody decides now: start `roundhouse serve` or `roundhouse scale run`")
    else:
        click.echo(f"controller {leader.id} decides, under the number {leader.fence}")


@scale.command("set")
@config_option
@click.argument("pool", type=click.Choice(TIERS))
@click.option("--min", "low", type=click.IntRange(0, 1000), help="Fewest engines instead of min_replicas.")
@click.option("--max", "high", type=click.IntRange(1, 1000), help="Most engines instead of max_replicas.")
@click.option("--reset", is_flag=True, help="Take back what was set: the configuration's numbers apply.")
def scale_set(config: str | None, pool: str, low: int | None, high: int | None, reset: bool) -> None:
    """Set how many engines the POOL may have, from the next look on; the audit log says who did.

    The configuration stays as it is. A pool may only be set to 0 if its configuration has `min_replicas = 0`.
    """
    if reset == (low is not None or high is not None):
        raise click.UsageError("give --min, --max or both, or --reset")
    settings = load_settings(config)
    configured = next((each for each in settings.pools if each.tier == pool and each.scaled), None)
    if configured is None:
        raise click.ClickException(f"the configuration has no {pool} pool with max_replicas")

    async def write(directory: Directory, _: bytes) -> PoolControl:
        before = await directory.get(PoolControl, pool) or PoolControl(name=pool)
        kept_low, kept_high = (None, None) if reset else (before.min_replicas, before.max_replicas)
        changed = msgspec.structs.replace(
            before,
            min_replicas=kept_low if low is None else low,
            max_replicas=kept_high if high is None else high,
        )
        effective(configured, changed)
        return await directory.write(changed, actor=actor(), expected=before.revision)

    try:
        bounds = effective(configured, with_directory(config, write))
    except ValueError as error:
        raise click.ClickException(f"the {pool} pool: {error}") from error
    click.echo(f"the {pool} pool may have {bounds.min_replicas} to {bounds.max_replicas} engines")


def _row(size: PoolSize) -> list[str]:
    numbers = (size.desired, size.ready, size.starting, size.draining, size.min_replicas, size.max_replicas)
    return [size.pool, *map(str, numbers), _ago(time.time() - size.since), "; ".join(size.reasons)]


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
