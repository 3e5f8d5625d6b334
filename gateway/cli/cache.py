"""`roundhouse cache`: what the caches did, what they hold, and how to forget it; on the gateways' data in Redis."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import click
import msgspec
from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.connection import config_option, json_option, load_settings, with_redis

if TYPE_CHECKING:
    from cache.semantic.evidence import BandReport, Evidence


@click.group()
def cache() -> None:
    """See what the response cache and the semantic cache saved and hold, and delete what they should not give.

    \b
    roundhouse cache stats --hours 24
    roundhouse cache ls acme
    roundhouse cache invalidate acme --tag faq
    """


@cache.command("stats")
@config_option
@click.option("--hours", type=click.IntRange(1, 840), default=24, show_default=True, help="Hours up to this one.")
@click.option("--tenant", help="Show only this tenant.")
@json_option
def stats(config: str | None, hours: int, tenant: str | None, as_json: bool) -> None:
    """Show hits, misses and what they saved, per tenant, with the meaning of each counter; and whether the semantic
    cache gives answers, or why not."""
    from cache import statistics
    from cache.questions.store import read_evidence
    from cache.semantic.evidence import report
    from cache.semantic.model import shipped

    async def read(redis: Redis) -> tuple[dict[str, Counter[str]], dict[str, Evidence]]:
        counted = await statistics.read(redis, hours=hours, tenant=tenant)
        return counted, await read_evidence(redis, list(counted))

    settings = load_settings(config)
    sums, evidence = with_redis(settings, read)
    promises = {name: settings.semantic_cache.promise_of(name) for name in sums}
    bands = {name: report(evidence[name], shipped().bands, promise) for name, promise in promises.items() if promise}
    if as_json:
        measured = {name: {"semantic_cache": bands[name]} for name in bands if evidence[name].bands}
        click.echo(msgspec.json.encode({name: {**sums[name], **measured.get(name, {})} for name in sums}).decode())
        return
    table = Table(title=f"Caches, last {hours} h")
    for column in ("tenant", "counter", "count", "meaning"):
        table.add_column(column, justify="right" if column == "count" else "left")
    for name, counters in sums.items():
        for counter, amount in sorted(counters.items()):
            table.add_row(Text(name), Text(counter), str(amount), statistics.meaning(counter))
    console = Console()
    console.print(table if table.rows else "nothing has been counted yet")
    for name, promise in promises.items():
        console.print(Text(_similar(name, promise, bands.get(name, []))))


@cache.command("ls")
@config_option
@click.argument("tenant")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Most answers to list.")
@json_option
def ls(config: str | None, tenant: str, limit: int, as_json: bool) -> None:
    """List the stored answers of a TENANT, newest first, without texts; `show`, `rm` and `revoke` take the digests."""
    from cache import inspection

    found = with_redis(load_settings(config), lambda redis: inspection.holding(redis, tenant, limit=limit))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    table = Table(title=f"Stored answers of {tenant}: {found.entries}, {found.bytes:,} bytes")
    table.add_column("digest", no_wrap=True, min_width=32)  # whole, however narrow the terminal: other commands take it
    for column in ("model", "scope", "tags", "tokens", "bytes", "made", "valid"):
        table.add_column(column, justify="right" if column in ("tokens", "bytes") else "left")
    for each in found.data:
        table.add_row(
            each.digest,
            Text(each.model),
            each.scope,
            Text(" ".join(each.tags)),
            f"{each.input_tokens} + {each.output_tokens}",
            str(each.bytes),
            _moment(each.created),
            "yes" if each.valid else "no",
        )
    Console().print(table if table.rows else f"nothing is stored of {tenant}")


@cache.command("show")
@config_option
@click.argument("tenant")
@click.argument("digest")
@json_option
def show(config: str | None, tenant: str, digest: str, as_json: bool) -> None:
    """Show one stored answer of a TENANT with its text; `roundhouse cache ls` lists the DIGESTs."""
    from cache import inspection
    from gateway.access.identity.secret import installation_secret
    from gateway.pipeline.sources.response_cache import answer_seal

    settings = load_settings(config)

    async def read(redis: Redis) -> inspection.StoredAnswerInfo | None:
        return await inspection.stored(redis, answer_seal(installation_secret(settings)), tenant, digest)

    found = with_redis(settings, read)
    if found is None:
        raise click.ClickException(f"{tenant} has no stored answer {digest}; see: roundhouse cache ls {tenant}")
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    table = Table(show_header=False)
    for name, value in msgspec.to_builtins(found).items():
        if name != "text":
            table.add_row(name, Text(_moment(value) if name in ("created", "expires") else _plain(value)))
    console = Console()
    console.print(table)
    if found.text is None:
        raise click.ClickException("the answer cannot be opened: it was sealed with another secret, or is damaged")
    console.print(Text(found.text))


@cache.command("rm")
@config_option
@click.argument("tenant")
@click.argument("digests", nargs=-1, required=True)
def rm(config: str | None, tenant: str, digests: tuple[str, ...]) -> None:
    """Delete stored answers of a TENANT by their DIGESTS (see `cache ls`), at once and on every gateway."""
    from cache.response import AnswerRemoval

    settings = load_settings(config)

    async def remove(redis: Redis) -> list[bool]:
        stored = AnswerRemoval(redis)
        return [await stored.remove(tenant, digest) for digest in digests]

    removed = with_redis(settings, remove)
    unknown = [digest for digest, done in zip(digests, removed, strict=True) if not done]
    click.echo(f"{sum(removed)} forgotten")
    if unknown:
        raise click.ClickException(f"{tenant} has no stored answer {', '.join(unknown)}")


@cache.command("revoke")
@config_option
@click.argument("tenant")
@click.argument("answers", nargs=-1, required=True)
def revoke(config: str | None, tenant: str, answers: tuple[str, ...]) -> None:
    """Never give stored ANSWERS of a TENANT to similar questions again; their own questions keep them.

    Name an answer by its digest, or by the id of a response of the last day that gave it."""
    from cache.questions.corrections import Corrections
    from gateway.turns.ids import response_id

    async def take_back(redis: Redis) -> list[bool]:
        corrections = Corrections(redis)
        return [await corrections.revoke(tenant, response_id(answer)) for answer in answers]

    known = with_redis(load_settings(config), take_back)
    unknown = [answer for answer, done in zip(answers, known, strict=True) if not done]
    click.echo(f"{sum(known)} revoked")
    if unknown:
        raise click.ClickException(f"the semantic cache of {tenant} knows no answer {', '.join(unknown)}")


@cache.command("invalidate")
@config_option
@click.argument("tenant")
@click.option("--tag", "tags", multiple=True, help="Delete only answers with this tag; may be repeated.")
def invalidate(config: str | None, tenant: str, tags: tuple[str, ...]) -> None:
    """Delete all stored answers of a TENANT, or those with a tag, at once and on every gateway."""
    from cache import inspection
    from cache.response import ALL, AnswerRemoval
    from gateway.errors import InvalidRequest
    from gateway.protocol.caching import checked_tags

    settings = load_settings(config)
    try:
        names = checked_tags(tags, "--tag")
    except InvalidRequest as error:
        raise click.ClickException(error.message) from error

    async def forget(redis: Redis) -> int:
        stored = AnswerRemoval(redis)
        for name in names or (ALL,):
            await stored.invalidate(tenant, name)
        return (await inspection.holding(redis, tenant, limit=1)).entries

    entries = with_redis(settings, forget)
    none = "" if entries else " (none were stored)"  # a name may be misspelt
    click.echo(f"stored answers of {tenant}{' with ' + ' or '.join(names) if names else ''} are forgotten{none}")


def _similar(tenant: str, promise: float, bands: list[BandReport]) -> str:
    """Say whether a tenant is given answers to similar questions, and why or why not."""
    if not promise:
        return f"{tenant}: the semantic cache is off"
    given = "given" if any(band.standing == "kept" for band in bands) else "not given"
    lines = [f"{tenant}: answers to similar questions are {given}; at most {promise:.1%} of them may be wrong"]
    for band in bands:
        match band.standing:
            case "kept":
                told = "given"
            case "broken":
                told = "not given, too many are wrong"
            case _:
                told = f"not given until {band.lacking} more in a row are right"
        lines.append(
            f"  right with probability {band.bound} and more by the model: {told}; {band.wrong} of {band.compared} "
            f"compared were wrong ({band.share:.1%}, {band.low:.1%} to {band.high:.1%})"
        )
    return "\n".join(lines)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
