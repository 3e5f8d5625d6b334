"""Reads what a request says about caches: `Cache-Control`, and tags by which its answer can be forgotten.

Over HTTP in headers, in any body in its `roundhouse` object; where both speak, the stricter counts. A client can only
ask for more care, never for more sharing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from msgspec import Meta, Struct

from gateway.errors import invalid_value

TAGS_HEADER = "x-roundhouse-cache-tags"
MAX_TAGS = 8
MAX_TAG = 64
"""Longest tag in characters."""
_TAG = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_MAX_AGE = re.compile(r'max-age="?([0-9]+)"?')
_FOREVER = 10**9
"""An age in seconds that no answer reaches."""
_DIRECTIVES = frozenset({"", "default", "no-store", "no-cache", "only-if-cached"})
"""Directives of a body other than `max-age`."""

Directives = Annotated[str, Meta(max_length=128)]
Tags = Annotated[list[str], Meta(max_length=MAX_TAGS)]


class Caching(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The terms on which one turn uses the response cache."""

    no_store: bool = False
    """Whether the answer must be neither looked up nor stored."""
    refresh: bool = False
    """Whether a new answer must be made, and stored (`no-cache`)."""
    max_age: int | None = None
    """Greatest age of a stored answer in seconds."""
    only_if_cached: bool = False
    """Whether the request is refused if no answer is stored."""
    several: bool = False
    """Whether this is one of several answers to the same prompt."""
    tags: tuple[str, ...] = ()
    """Tags, sorted. Invalidating one of them invalidates the answer."""


def from_headers(headers: Mapping[str, str]) -> Caching:
    """What an HTTP request's headers say. Directives that mean nothing here are ignored, as HTTP has it; an age that
    cannot be read lets no stored answer be fresh enough.

    Raises:
        InvalidRequest: a tag has another form, or there are too many.
    """
    control, tags = headers.get("cache-control"), headers.get(TAGS_HEADER)
    if control is None and tags is None:
        return NOTHING
    names = [tag.strip() for tag in tags.split(",")] if tags else []
    return _made(control or "", names, param=TAGS_HEADER, strict=False)


def from_body(control: str | None, tags: list[str] | None) -> Caching:
    """Return what the `roundhouse` object of a body says.

    Raises:
        InvalidRequest: a directive is unknown, a tag has another form, or there are too many.
    """
    if control is None and not tags:
        return NOTHING
    return _made(control or "", tags or [], param="roundhouse.cache_tags", strict=True)


def stricter(one: Caching, other: Caching) -> Caching:
    """Combine the terms of headers and body: the stricter one of each.

    Raises:
        InvalidRequest: they have too many tags together.
    """
    if one == NOTHING or other == NOTHING:
        return other if one == NOTHING else one
    ages = [each.max_age for each in (one, other) if each.max_age is not None]
    return Caching(
        no_store=one.no_store or other.no_store,
        refresh=one.refresh or other.refresh,
        max_age=min(ages, default=None),
        only_if_cached=one.only_if_cached or other.only_if_cached,
        several=one.several or other.several,
        tags=checked_tags([*one.tags, *other.tags], "roundhouse.cache_tags"),
    )


NOTHING = Caching()
"""The terms of a request that says nothing about caches."""


def _made(control: str, tags: list[str], *, param: str, strict: bool) -> Caching:
    said = {part.strip().lower() for part in control.split(",")}
    ages = [int(age[1]) if len(age[1]) < 10 else _FOREVER for age in map(_MAX_AGE.fullmatch, said) if age]
    unknown = {each for each in said - _DIRECTIVES if not _MAX_AGE.fullmatch(each)}
    if strict and unknown:
        raise invalid_value(
            "roundhouse.cache", "unknown directive; it may hold no-store, no-cache, max-age=<seconds>, only-if-cached"
        )
    return Caching(
        no_store="no-store" in said,
        refresh="no-cache" in said or 0 in ages or any(each.startswith("max-age") for each in unknown),
        max_age=min(ages, default=None),
        only_if_cached="only-if-cached" in said,
        tags=checked_tags(tags, param),
    )


def checked_tags(tags: Iterable[str], param: str) -> tuple[str, ...]:
    """Return the tags in their order, each once.

    Raises:
        InvalidRequest: one has another form, or there are too many.
    """
    named = sorted(set(tags))
    if len(named) > MAX_TAGS:
        raise invalid_value(param, f"at most {MAX_TAGS} tags; send fewer")
    for tag in named:
        if not _TAG.fullmatch(tag):
            raise invalid_value(param, f"a tag has 1 to {MAX_TAG} letters, digits and _ . : / -")
    return tuple(named)
