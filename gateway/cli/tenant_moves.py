"""`roundhouse tenant export` and `import`: a tenant in a file, with users, keys and spend, for another cell."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import click
import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from engine.adapters.registry import AdapterRegistry, RegistryError
from gateway.access.directory.change import Idempotency, Put
from gateway.access.directory.store import Directory
from gateway.access.identity.secret import derive
from gateway.cli.backup_keys import spend_only
from gateway.cli.connection import actor, config_option, load_settings
from gateway.cli.directory import every, found, with_directory
from gateway.engines.adapters import registry_url
from gateway.limits.idle import TENANTS_KEY
from gateway.limits.script import STATE_KEY
from gateway.records.directory import Key, Record, Route, Tenant, User

_AT_ONCE = 100
"""Records that one change of the directory writes."""

_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


class ExportedTenant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: what a cell knows of a tenant and nobody can compute again."""

    format: Literal["roundhouse-tenant-1"] = "roundhouse-tenant-1"
    fingerprint: str
    """Of the secret that the digests of keys are made with."""
    tenant: Tenant
    users: list[User]
    keys: list[Key]
    spent: dict[str, str]
    """Counters by subject as `rh1:limit:{<tenant>}` has them: what was spent this day and month, and nothing else."""
    adapters: list[str]
    """Names of adapters that are for this tenant."""
    routes: list[Route] = []
    """Those that belong to it."""
    prompts: dict[str, bytes] = {}
    """Those that it shares, by id, sealed as they are in Redis."""

    @property
    def batches(self) -> Iterator[Sequence[Record]]:
        """What is written at once, each record in a later batch than those that it refers to."""
        yield [self.tenant]
        lists: tuple[Sequence[Record], ...] = (self.users, self.keys, self.routes)
        for records in lists:
            for begin in range(0, len(records), _AT_ONCE):
                yield records[begin : begin + _AT_ONCE]


@click.command("export")
@config_option
@click.argument("name")
@_file
def tenant_export(config: str | None, name: str, file: Path) -> None:
    """Write the tenant NAME, its users, keys, routes, prompts and what it has spent to FILE, which must not exist.

    `roundhouse tenant import` brings it into another cell with the same secret; docs/disaster-recovery.md has all
    steps. Of keys only keyed digests are in it. Usage, conversations and stored responses stay where they are.
    """
    from gateway.turns.prompts import sealed_prompts

    adapters = _adapters_of(config, name)

    async def collect(directory: Directory, secret: bytes) -> ExportedTenant:
        tenant = await found(directory, Tenant, name)
        if not tenant.revision:
            raise click.ClickException(f"{name!r} is set in the configuration file; copy its [[tenants]] table")
        return ExportedTenant(
            fingerprint=_fingerprint(secret),
            tenant=tenant,
            users=await every(directory, User, name),
            keys=[key async for key in directory.every(Key, tenant=name, stored_only=True)],
            routes=await every(directory, Route, name),
            spent=await _spent(directory.redis, name),
            adapters=adapters,
            prompts=await sealed_prompts(directory.redis, name),
        )

    exported = with_directory(config, collect)
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(exported)) + b"\n")
    except FileExistsError:
        raise click.ClickException(f"{file} exists; it is not overwritten") from None
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror or error}") from error
    click.echo(f"{file}: {name} with {len(exported.users)} users and {len(exported.keys)} keys")


@click.command("import")
@config_option
@_file
def tenant_import(config: str | None, file: Path) -> None:
    """Make the tenant of FILE here, with its users, keys, routes and prompts, and count what it has spent elsewhere.

    Keys are valid at once. A tenant that is here already is refused; an import that was cut off may be run again within
    a day.
    """
    try:
        document = file.read_bytes()
        imported = msgspec.json.decode(document, type=ExportedTenant)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise click.ClickException(f"{file} is no exported tenant: {error}") from error

    from gateway.turns.prompts import restore_prompts

    async def write(directory: Directory, secret: bytes) -> None:
        if _fingerprint(secret) != imported.fingerprint:
            raise click.ClickException(
                "it comes from an installation with another secret, so that its keys would not be valid here: set the "
                "same ROUNDHOUSE_SECRET"
            )
        if await directory.get(Tenant, imported.tenant.name) is None:  # not again: what was deleted here stays so
            await restore_prompts(directory.redis, imported.tenant.name, imported.prompts)
        digest = hashlib.sha256(document).hexdigest()
        for number, records in enumerate(imported.batches):
            # Once: run again, it must not bring back a key that was revoked here.
            once = Idempotency(f"import:{digest}:{number}", digest)
            await directory.apply([Put(record, 0) for record in records], actor=actor(), once=once)
        await _count_spent(directory.redis, imported.tenant.name, imported.spent)

    with_directory(config, write)
    name = imported.tenant.name
    click.echo(f"{name} is here with {len(imported.users)} users and {len(imported.keys)} keys")
    if absent := sorted(set(imported.adapters).difference(_adapters_of(config, name))):
        click.echo(f"these adapters have to be registered here: {', '.join(absent)}", err=True)


async def _spent(redis: Redis, tenant: str) -> dict[str, str]:
    counters: dict[bytes, bytes] = await cast(Any, redis.hgetall(STATE_KEY.format(tenant=tenant)))
    kept = {subject.decode(): spend_only(subject, value) for subject, value in counters.items()}
    return {subject: value.decode() for subject, value in kept.items() if value is not None}


async def _count_spent(redis: Redis, tenant: str, spent: Mapping[str, str]) -> None:
    """Write counters of subjects that have none here."""
    if spent:
        async with redis.pipeline(transaction=False) as pipeline:
            for subject, counters in spent.items():
                pipeline.hsetnx(STATE_KEY.format(tenant=tenant), subject, counters)
            pipeline.zadd(TENANTS_KEY, {tenant: time.time()})
            await pipeline.execute()


def _adapters_of(config: str | None, tenant: str) -> list[str]:
    """Return the names of adapters that are for this tenant, and not for all."""
    try:
        names = AdapterRegistry(registry_url(load_settings(config))).names()
    except RegistryError as error:
        click.echo(f"the registry of adapters cannot be read: {error}", err=True)
        return []
    return sorted(name for name, pointer in names.items() if tenant in (pointer.tenants or ()))


def _fingerprint(secret: bytes) -> str:
    return derive(secret, "fingerprint").hex()
