"""Conditional requests: entity tags and `If-Match` (RFC 9110, sections 8.8.3 and 13.1.1). Pure."""

from __future__ import annotations

import re

from msgspec import Struct

from gateway.errors import InvalidRequest, PreconditionFailed, PreconditionRequired

_TAG = r'(?:W/)?"[\x21\x23-\x7e]*"'
_LIST = re.compile(rf"\s*{_TAG}(?:\s*,\s*{_TAG})*\s*")
_MOST = 1024
"""Characters of a header that are read."""


class IfMatch(Struct, frozen=True):
    """What an `If-Match` header asks for."""

    tags: frozenset[str] | None
    """Entity tags with their quotes, of which the current one must be one; None is `*`, whichever there is."""

    def check(self, current: str) -> None:
        """Raises:
        PreconditionFailed: somebody has changed the resource since the caller read it.
        """
        if self.tags is not None and current not in self.tags:
            raise PreconditionFailed(
                f"it has changed: its ETag is {current} now; read it again and repeat the change", param="If-Match"
            )


def entity_tag(revision: int | str) -> str:
    """The strong entity tag of a revision."""
    return f'"{revision}"'


def parse_if_match(header: str | None) -> IfMatch:
    """What the header of a write asks for.

    Raises:
        PreconditionRequired: there is none.
        InvalidRequest: it is no list of entity tags.
    """
    if header is None:
        raise PreconditionRequired(
            "changing this needs the header If-Match with the ETag that reading it gave, so that nobody's change is "
            "overwritten unseen",
            param="If-Match",
        )
    if header.strip() == "*":
        return IfMatch(None)
    if len(header) > _MOST or not _LIST.fullmatch(header):
        raise InvalidRequest('If-Match: expected an ETag such as "3", or *', param="If-Match", code="invalid_value")
    # A weak tag never matches strongly (RFC 9110, section 8.8.3.2).
    return IfMatch(frozenset(tag for tag in re.findall(_TAG, header) if not tag.startswith("W/")))
