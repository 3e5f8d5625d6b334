"""`roundhouse safety`: lists of blocked phrases, trying rules on a text, what rules have found."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec
from redis.asyncio import Redis

from gateway.access.identity.secret import derive, installation_secret
from gateway.cli.connection import config_option, load_settings, with_redis
from gateway.config.settings import SettingsError


@click.group()
def safety() -> None:
    """See what safety rules found, and make lists of blocked phrases; docs/safety.md says how to switch rules on.

    \b
    roundhouse safety findings --tenant acme
    roundhouse safety digest < phrases.txt > blocked.digests
    """


@safety.command("digest")
@config_option
def safety_digest(config: str | None) -> None:
    """Turn phrases on standard input, one a line, into a list for `safety.blocked`.

    The digests are keyed with the installation's secret, so that the list discloses nothing and works nowhere else.
    """
    from gateway.recognisers.blocked import line
    from gateway.safety.guard import PHRASES

    try:
        key = derive(installation_secret(load_settings(config)), PHRASES)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    for number, phrase in enumerate(sys.stdin, 1):
        if phrase.strip():
            try:
                click.echo(line(phrase, key))
            except ValueError as error:
                raise click.ClickException(f"line {number}: {error}") from None


@safety.command("findings")
@config_option
@click.option("--tenant", required=True, help="Tenant whose findings are listed.")
@click.option("--count", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Most findings to show.")
def safety_findings(config: str | None, tenant: str, count: int) -> None:
    """List what rules have found for a tenant, newest first, one JSON object a line. Texts are shown as digests."""
    from gateway.safety.violations import KEY

    async def read(redis: Redis) -> Any:
        return await redis.xrevrange(KEY.format(tenant=tenant), count=count)

    entries = msgspec.convert(with_redis(load_settings(config), read), list[tuple[bytes, dict[bytes, bytes]]])
    for id, fields in entries:
        finding = {name.decode(): text.decode() for name, text in fields.items()}
        click.echo(msgspec.json.encode({"time": id.decode().partition("-")[0], **finding}).decode())
