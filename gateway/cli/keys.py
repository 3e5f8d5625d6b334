"""`roundhouse key`: API keys, of which only keyed digests are stored."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from gateway.access.directory.change import Put
from gateway.access.directory.store import Directory
from gateway.access.identity.last_used import last_used
from gateway.cli.adapters import Age
from gateway.cli.connection import actor, config_option, json_option
from gateway.cli.directory import (
    change,
    changed,
    description_option,
    disabled_option,
    every,
    found,
    limits,
    plain,
    print_list,
    quota_option,
    scope_option,
    show_plain,
    source,
    tenant_option,
    with_directory,
)
from gateway.records.directory import Key, Scope, new_id


def _lasting(context: click.Context, option: click.Parameter, age: float | None) -> float | None:
    if age == 0:
        raise click.BadParameter("a key that has expired already is of no use; give a longer time")
    return age


_expires = click.option(
    "--expires",
    type=Age(),
    metavar="AGE",
    callback=_lasting,
    help="Time until the key expires, such as 12h or 90d; without it, it never does.",
)


@click.group()
def key() -> None:
    """Make, change, list and revoke API keys. A key is shown once, when it is made; gateways accept it at once.

    \b
    Make a key for a tenant that expires in 90 days:
        roundhouse key add acme --description ci --expires 90d
    Replace it by a new one, while the old one works for another day:
        roundhouse key rotate key_3f9c2a7b10d4e586 --overlap 1d
    """


@key.command("add")
@config_option
@click.argument("tenant")
@description_option
@click.option("--user", metavar="ID", help="User that the key belongs to; see `roundhouse user list`.")
@scope_option
@click.option("--operator", is_flag=True, help="Let its admin scopes reach every tenant.")
@_expires
@quota_option
@json_option
def key_add(
    config: str | None,
    tenant: str,
    user: str | None,
    scopes: tuple[Scope, ...],
    operator: bool,
    expires: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a key for a TENANT and print it, this once. Without --scope it has chat, models and adapters."""
    from gateway.records.api_keys import new_key

    async def add(directory: Directory, secret: bytes) -> tuple[str, Key]:
        text, digest = new_key(secret)
        record = Key(
            id=new_id("key"), tenant=tenant, user=user, digest=digest, operator=operator, expires_at=_after(expires)
        )
        record = changed({**options, "scopes": scopes or record.scopes}, record)
        return text, await directory.write(record, actor=actor(), expected=0)

    _tell(*with_directory(config, add), as_json)


@key.command("rotate")
@config_option
@click.argument("id")
@click.option(
    "--overlap", type=Age(), default="1d", show_default=True, help="Time that the old key still works; 0s: none."
)
@_expires
@json_option
def key_rotate(config: str | None, id: str, overlap: float, expires: float | None, as_json: bool) -> None:
    """Replace the key ID by a new key with the same rights, and print that, this once.

    Limits count both together while both work. Example: roundhouse key rotate key_3f9c2a7b10d4e586 --overlap 1h
    """
    from gateway.records.api_keys import new_key

    async def rotate(directory: Directory, secret: bytes) -> tuple[str, Key]:
        old = await found(directory, Key, id)
        text, digest = new_key(secret)
        fresh, ending = old.replaced_by(
            new_id("key"), digest, expires_at=_after(expires), ends=int(time.time() + overlap)
        )
        await directory.apply([Put(ending, old.revision), Put(fresh, 0)], actor=actor())
        if old.expires_at is not None and expires is None:
            click.echo(f"{id} was to expire; {fresh.id} never does (--expires)", err=True)
        return text, fresh

    _tell(*with_directory(config, rotate), as_json)
    click.echo(f"{id} works for another {overlap:,.0f} s" if overlap else f"{id} works no more", err=True)


@key.command("set")
@config_option
@click.argument("id")
@description_option
@scope_option
@quota_option
@disabled_option
def key_set(config: str | None, id: str, **options: Any) -> None:
    """Change the given properties of the key ID; the others stay. Example: roundhouse key set ID --disable"""
    change(config, Key, id, lambda before: changed(options, before))
    click.echo(f"{id} is changed")


@key.command("list")
@config_option
@tenant_option
@json_option
def key_list(config: str | None, tenant: str | None, as_json: bool) -> None:
    """List all keys with state, last use and limits, those of the configuration file included."""
    now = time.time()

    async def read(directory: Directory, _: bytes) -> tuple[list[Key], dict[str, int]]:
        keys = await every(directory, Key, tenant)
        return keys, await _last_used(directory, keys)

    keys, used = with_directory(config, read)
    if as_json:
        click.echo(msgspec.json.encode([_plain(one, used) for one in keys]).decode())
        return
    print_list(
        keys,
        False,
        {
            "id": lambda one: one.id,
            "tenant": lambda one: one.tenant,
            "user": lambda one: one.user or "",
            "state": lambda one: _state(one, now),
            "expires": lambda one: _date(one.expires_at),
            "last used": lambda one: _date(used.get(one.id)),
            "scopes": lambda one: ", ".join(one.scopes) + (" (operator)" if one.operator else ""),
            "limits": lambda one: limits(one.quota),
            "set in": source,
            "description": lambda one: one.description if one.revision else "",
        },
        "there are no keys yet; make one with: roundhouse key add TENANT",
    )


@key.command("show")
@config_option
@click.argument("id")
def key_show(config: str | None, id: str) -> None:
    """Show what is stored of the key ID as JSON; the key itself is not."""

    async def read(directory: Directory, _: bytes) -> dict[str, Any]:
        one = await found(directory, Key, id)
        return _plain(one, await _last_used(directory, [one]))

    show_plain(with_directory(config, read))


@key.command("revoke")
@config_option
@click.argument("id")
def key_revoke(config: str | None, id: str) -> None:
    """Delete the key ID; gateways refuse it within a second. The audit log keeps its history."""
    with_directory(config, lambda directory, _: directory.delete(Key, id, actor=actor()))
    click.echo(f"{id} is revoked")


async def _last_used(directory: Directory, keys: list[Key]) -> dict[str, int]:
    """Return when keys were last used, by id, in seconds since 1970; keys that never were are missing."""
    used: dict[str, int] = {}
    for tenant in {key.tenant for key in keys}:
        used |= await last_used(directory.redis, tenant, [key.id for key in keys if key.tenant == tenant])
    return used


def _plain(key: Key, used: dict[str, int]) -> dict[str, Any]:
    return {**plain(key), "last_used_at": used.get(key.id)}


def _after(age: float | None) -> int | None:
    return int(time.time() + age) if age is not None else None


def _state(key: Key, now: float) -> str:
    if key.disabled:
        return "disabled"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "active"


def _date(timestamp: int | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp)) if timestamp is not None else "never"


def _tell(text: str, key: Key, as_json: bool) -> None:
    """Print the key on standard output, so that it can be piped, and what to know of it on standard error."""
    if as_json:
        click.echo(msgspec.json.encode({"id": key.id, "tenant": key.tenant, "key": text}).decode())
        return
    click.echo(text)
    click.echo(f"{key.id} of {key.tenant}; keep it now, it is not shown again", err=True)
