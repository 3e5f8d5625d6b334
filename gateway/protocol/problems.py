"""Errors of the admin API as RFC 9457 `application/problem+json`. Pure."""

from __future__ import annotations

import http

from msgspec import Struct

from gateway.errors import ApiError

MEDIA_TYPE = "application/problem+json"


class Problem(Struct, frozen=True):
    """An error by RFC 9457. Programs read `code`; docs/errors.md lists the codes."""

    type: str
    """A URN: `urn:roundhouse:error:` and the code."""
    title: str
    """The HTTP status in words."""
    status: int
    detail: str
    """The cause, and the remedy."""
    code: str
    param: str | None = None
    """The field, header or parameter that was wrong."""


def problem(error: ApiError) -> Problem:
    """Return the problem that describes an error."""
    title = http.HTTPStatus(error.status).phrase
    return Problem(f"urn:roundhouse:error:{error.code}", title, error.status, error.message, error.code, error.param)
