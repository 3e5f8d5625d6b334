"""Types that several requests and answers share, and functions that derive types from the directory's records."""

from __future__ import annotations

import datetime
import functools
import operator
import types
import typing
from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.admin.kit.endpoints import Input
from gateway.errors import InvalidRequest
from gateway.records.directory import Record

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
Name = Annotated[str, Meta(pattern=NAME)]
"""Name of a record that is made through the API."""
PathName = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[A-Za-z0-9_.-]{1,64}$")]
"""Name of an existing record, also of the configuration file. Dots alone would get lost in a path."""
PUBLIC_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*(/[A-Za-z0-9_][A-Za-z0-9_.:-]*)*$"
PublicName = Annotated[str, Meta(pattern=PUBLIC_NAME, max_length=128)]
"""Name of a model or an adapter; slashes are allowed, as in names of Hugging Face."""

_BOOKKEEPING = frozenset({"revision", "created_at", "updated_at"})


class TenantPath(Input, frozen=True):
    tenant: Annotated[PathName, Meta(description="Name of the tenant.")]


class PublicNamePath(Input, frozen=True):
    public_name: Annotated[PublicName, Meta(description="As clients write it.")]


class Page(Input, frozen=True):
    """Which part of a list."""

    limit: Annotated[int, Meta(ge=1, le=200, description="Most entries of this page.")] = 50
    cursor: Annotated[Annotated[str, Meta(max_length=512)] | None, Meta(description="`next` of the page before.")] = (
        None
    )


LastDay = Annotated[datetime.date | None, Meta(description="Last day, in UTC; today unless given.")]
FirstDay = Annotated[datetime.date | None, Meta(description="First day, in UTC; 29 days before the last unless given.")]
Only = Annotated[str, Meta(min_length=1, max_length=256)]
_DAYS = 30


def days(first: datetime.date | None, last: datetime.date | None) -> tuple[datetime.date, datetime.date]:
    """Return the first and last day of a time, both included.

    Raises:
        InvalidRequest: it begins before the calendar does.
    """
    last = last or datetime.datetime.now(datetime.UTC).date()
    try:
        return first or last - datetime.timedelta(days=_DAYS - 1), last
    except OverflowError as error:
        raise InvalidRequest(f"from, to: {error}", param="from", code="invalid_value") from None


def midnight(day: datetime.date) -> datetime.datetime:
    """Return the time at which a day begins, in UTC."""
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC)


def creation(
    name: str, kind: type[Struct], *, without: Collection[str] = (), instead: dict[str, Any] | None = None
) -> type[Struct]:
    """Derive the type of a request that makes a record: the record's fields, but not those that the store sets. Fields
    that are not known are refused, also in what it holds.

    Args:
        without: fields that the path says.
        instead: types of fields in place of the record's.
    """
    return _made(name, kind, _BOOKKEEPING | set(without), instead or {}, _as_declared)


def change(name: str, kind: type[Record], *, without: Collection[str]) -> type[Struct]:
    """Derive the type of a request that changes a record: fields that are left out stay."""
    return _made(name, kind, _BOOKKEEPING | set(without), {}, _optional)


def state(
    name: str, kind: type[Record], *, without: Collection[str] = (), beside: dict[str, Any] | None = None
) -> type[Struct]:
    """Derive the type in which a record is shown: every field, whether or not it holds its default.

    Args:
        beside: types of fields that the record does not have; null until they are filled in.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    fields: list[tuple[Any, ...]] = [
        (field.name, hints[field.name])
        for field in msgspec.structs.fields(kind)
        if field.name not in {"revision", *without}
    ]
    fields.extend((field, hint, None) for field, hint in (beside or {}).items())
    fields.append(("read_only", Annotated[bool, Meta(description="It is set in the configuration file.")]))
    fields.sort(key=lambda field: field[0] in _BOOKKEEPING)
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, namespace={"__doc__": kind.__doc__})


def shown(record: Record, kind: type[Struct]) -> Struct:
    """Return a record in the type in which it is shown."""
    names = [name for name in kind.__struct_fields__ if name in record.__struct_fields__]
    return kind(**{name: getattr(record, name) for name in names}, read_only=record.revision == 0)


def given(body: Struct) -> dict[str, Any]:
    """Return the fields that a change names."""
    return {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}


def _made(
    name: str, kind: type[Struct], left_out: Collection[str], instead: dict[str, Any], declare: Any
) -> type[Struct]:
    hints = {**typing.get_type_hints(kind, include_extras=True), **instead}
    fields = [
        declare(field, _strict(hints[field.name]))
        for field in msgspec.structs.fields(kind)
        if field.name not in left_out
    ]
    return msgspec.defstruct(
        name,
        fields,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": kind.__doc__},
    )


def _strict(hint: Any) -> Any:
    """Return a type whose structs refuse the unknown fields that those of records ignore."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _strict_struct(hint)
    if not (inner := typing.get_args(hint)):
        return hint
    if (origin := typing.get_origin(hint)) is Annotated:
        return Annotated[(_strict(inner[0]), *inner[1:])]
    strict = tuple(map(_strict, inner))
    return functools.reduce(operator.or_, strict) if origin in (types.UnionType, typing.Union) else origin[strict]


@functools.cache
def _strict_struct(kind: type[Struct]) -> type[Struct]:
    return msgspec.defstruct(
        f"{kind.__name__}Input",
        [],
        bases=(kind,),
        frozen=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": kind.__doc__},
    )


def _as_declared(field: msgspec.structs.FieldInfo, hint: Any) -> tuple[Any, ...]:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, hint, msgspec.field(default_factory=field.default_factory)
    return (field.name, hint) if field.required else (field.name, hint, field.default)


def _optional(field: msgspec.structs.FieldInfo, hint: Any) -> tuple[Any, ...]:
    description = next((part.description for part in typing.get_args(hint)[1:] if isinstance(part, Meta)), None)
    return field.name, Annotated[hint | UnsetType, Meta(description=description)], UNSET
