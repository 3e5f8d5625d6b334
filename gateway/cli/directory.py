"""Options and functions that the commands showing and changing the directory share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, get_args

import click
import msgspec
from redis.asyncio import Redis
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from gateway.access.directory.store import Directory
from gateway.cli.connection import actor, load_settings, with_redis
from gateway.errors import ApiError
from gateway.records.directory import Key, R, Record, Route, Scope, Tenant, User
from gateway.records.quota import Quota

T = TypeVar("T")


description_option = click.option("--description", metavar="TEXT", help="Text for people.")
disabled_option = click.option(
    "--disable/--enable", "disabled", default=None, help="Refuse its requests until it is enabled again."
)
scope_option = click.option(
    "--scope", "scopes", type=click.Choice(get_args(Scope)), multiple=True, help="Scope that it has; may be repeated."
)
tenant_option = click.option("--tenant", help="Show only this tenant's.")


def with_directory(config: str | None, act: Callable[[Directory, bytes], Coroutine[Any, Any, T]]) -> T:
    """Call `act` with the directory and the installation's secret; refusals become error messages."""
    from gateway.access.directory.view import configured
    from gateway.access.identity.secret import check, installation_secret
    from gateway.storage.connect import replicas

    settings = load_settings(config)

    async def run(redis: Redis) -> T:
        secret = installation_secret(settings)
        if await check(redis, secret) is False:
            raise click.ClickException(
                "this Redis belongs to gateways with another secret: set ROUNDHOUSE_SECRET to theirs, or redis.data to "
                "the folder that holds it"
            )
        directory = Directory(redis, configured=configured(settings), secret=secret, replicas=replicas(settings))
        return await act(directory, secret)

    try:
        return with_redis(settings, run)
    except ApiError as error:
        raise click.ClickException(error.message) from error


class QuotaField(click.ParamType[tuple[str, Any]]):
    """A limit and its value: `requests_per_minute=60`; without a value the limit is taken away."""

    name = "limit=value"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        field, equals, text = str(value).partition("=")
        types = {each.name: each.type for each in msgspec.structs.fields(Quota)}
        if field not in types:
            self.fail(f"{field!r} is no limit; give one of {', '.join(types)} and its value: limit=value", param, ctx)
        if not equals:
            self.fail(f"{field}: give a value ({field}=60), or none to take the limit away ({field}=)", param, ctx)
        try:
            return field, msgspec.convert(text, types[field], strict=False) if text else None
        except msgspec.ValidationError as error:
            self.fail(f"{field}: {text!r} cannot be its value ({error})", param, ctx)


class NamedQuotaField(click.ParamType[tuple[str, tuple[str, Any]]]):
    """A limit of one model or adapter: `pirate:requests_per_minute=60`."""

    name = "name:limit=value"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[str, Any]]:
        # Names may hold colons, limits do not.
        left, equals, text = str(value).partition("=")
        subject, colon, field = left.rpartition(":")
        if not colon:
            self.fail(f"{value!r} names no model or adapter; write name:limit=value", param, ctx)
        return subject, QuotaField().convert(f"{field}{equals}{text}", param, ctx)


quota_option = click.option(
    "--quota", type=QuotaField(), multiple=True, help="Set a limit; may be repeated. NAME= removes it."
)
model_quota_option = click.option(
    "--model-quota", "model_quotas", type=NamedQuotaField(), multiple=True, help="Set a limit for one model."
)
adapter_quota_option = click.option(
    "--adapter-quota", "adapter_quotas", type=NamedQuotaField(), multiple=True, help="Set a limit for one adapter."
)


def changed(options: dict[str, Any], before: R) -> R:
    """Return a record with the given options; a list replaces the old one, a single limit is put in."""
    if all(value is None or value == () for value in options.values()):
        raise click.UsageError("say what to change; see --help")
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or value == ():
            continue
        if name == "quota":
            changes[name] = _limited(getattr(before, name), value)
        elif name in ("model_quotas", "adapter_quotas"):
            quotas: dict[str, Quota | None] = dict(getattr(before, name))
            for subject, limit in value:
                quotas[subject] = _limited(quotas.get(subject), [limit])
            changes[name] = {subject: quota for subject, quota in quotas.items() if quota is not None}
        else:
            changes[name] = list(value) if isinstance(value, tuple) else value
    return msgspec.structs.replace(before, **changes)


def _limited(before: Quota | None, limits: Sequence[tuple[str, Any]]) -> Quota | None:
    quota = msgspec.structs.replace(before or Quota(), **dict(limits))
    return quota if quota != Quota() else None


def add(config: str | None, record: R) -> R:
    """Create a record."""
    return with_directory(config, lambda directory, _: directory.write(record, actor=actor(), expected=0))


def change(config: str | None, kind: type[R], identity: str, how: Callable[[R], Record]) -> None:
    """Change a record, unless somebody else has changed it meanwhile."""

    async def write(directory: Directory, _: bytes) -> None:
        before = await found(directory, kind, identity)
        await directory.write(how(before), actor=actor(), expected=before.revision)

    with_directory(config, write)


async def found(directory: Directory, kind: type[R], identity: str) -> R:
    """Read a record; a missing one becomes an error message."""
    if (record := await directory.get(kind, identity)) is None:
        raise click.ClickException(f"no {kind.KIND} {identity!r}; see: roundhouse {kind.KIND} list")
    return record


def everything(config: str | None, kind: type[R], tenant: str | None = None) -> list[R]:
    """Read all records of a kind, or a tenant's, with the configured directory."""

    return with_directory(config, lambda directory, _: every(directory, kind, tenant))


async def every(directory: Directory, kind: type[R], tenant: str | None = None) -> list[R]:
    """Read all records of a kind, or a tenant's; a tenant that does not exist becomes an error message."""
    records = [record async for record in directory.every(kind, tenant=tenant)]
    if not records and tenant is not None:
        await found(directory, Tenant, tenant)
    return records


def remove(config: str | None, kind: type[Record], identity: str, force: bool) -> None:
    """Remove a record; with `force` also the users, keys and routes that belong to it."""
    from gateway.turns.forgetting import forget_texts

    async def delete(directory: Directory, _: bytes) -> int:
        owned = 0
        gone = kind is Tenant and not await directory.exists(kind, identity)
        if gone and await forget_texts(directory.redis, identity):  # removing it had failed half-way
            return owned
        if force:
            which = {"user": identity} if kind is User else {"tenant": identity}
            for belonging in (Key,) if kind is User else (Key, User, Route):
                async for record in directory.every(belonging, stored_only=True, **which):
                    await directory.delete(belonging, record.identity, actor=actor())
                    owned += 1
        await directory.delete(kind, identity, actor=actor())
        if kind is Tenant:
            await forget_texts(directory.redis, identity)
        return owned

    owned = with_directory(config, delete)
    click.echo(f"{identity} is removed" + (f", and {owned} records that belonged to it" if owned else ""))


def show(config: str | None, kind: type[Record], identity: str) -> None:
    """Print a record as JSON, without its secret fields."""
    show_plain(plain(with_directory(config, lambda directory, _: found(directory, kind, identity))))


def show_plain(fields: dict[str, Any]) -> None:
    """Print fields as JSON, indented for people."""
    click.echo(msgspec.json.format(msgspec.json.encode(fields), indent=2).decode())


def plain(record: Record) -> dict[str, Any]:
    """Return the fields of a record that may be shown."""
    return {
        name: msgspec.to_builtins(getattr(record, name))
        for name in record.__struct_fields__
        if name not in record.SECRET
    }


def print_list(records: Sequence[R], as_json: bool, columns: dict[str, Callable[[R], str]], if_empty: str) -> None:
    """Print records as a table without its empty columns, or as JSON for programs."""
    if as_json:
        click.echo(msgspec.json.encode([plain(record) for record in records]).decode())
        return
    if not records:
        click.echo(if_empty)
        return
    cells = {column: [cell(record) for record in records] for column, cell in columns.items()}
    cells = {column: texts for column, texts in cells.items() if any(texts)}
    print_table(list(cells), list(zip(*cells.values(), strict=True)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print a table whose words stay whole, so that they can be found and copied; a terminal wraps what is too wide.

    Args:
        numbers: columns that are aligned to the right.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    print_whole(Console(), table)


def print_whole(console: Console, shown: RenderableType) -> None:
    """Print without breaking words; at full width where the output is no terminal."""
    whole = Measurement.get(console, console.options.update(max_width=10_000), shown)
    # A file or pipe has no width: one line for each row then.
    console.width = max(console.width, whole.minimum) if console.is_terminal else whole.maximum
    console.print(shown)


def limits(quota: Quota | None) -> str:
    """Return a quota as the text of a table's cell."""
    return ", ".join(f"{name}={value}" for name, value in msgspec.to_builtins(quota).items()) if quota else ""


def source(record: Record) -> str:
    """Return where a record is set."""
    return "directory" if record.revision else "configuration file"


def state(disabled: bool) -> str:
    """Return the state of a tenant, user or key as a word."""
    return "disabled" if disabled else "active"
