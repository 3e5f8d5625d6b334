"""What becomes of an error while the admin API answers."""

from __future__ import annotations

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import ApiError, Unavailable
from gateway.http.exchange import http_error
from gateway.protocol.problems import MEDIA_TYPE, problem

log = logging.getLogger("roundhouse.admin")


def problem_response(error: ApiError) -> Response:
    """An error as an HTTP response."""
    content = msgspec.json.encode(problem(error))
    return Response(content, status_code=error.status, headers=error.headers, media_type=MEDIA_TYPE)


async def on_api_error(request: Request, error: Exception) -> Response:
    """Exception handler for `ApiError`."""
    assert isinstance(error, ApiError)
    return problem_response(error)


async def on_redis_error(request: Request, error: Exception) -> Response:
    """Exception handler for a Redis that does not answer."""
    log.warning("admin: no answer from Redis", extra={"error": type(error).__name__})
    return problem_response(Unavailable("Redis does not answer; try again in a few seconds"))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for Starlette's own errors."""
    assert isinstance(error, HTTPException)
    return problem_response(http_error(request, error))


async def on_exception(request: Request, error: Exception) -> Response:
    """Exception handler for faults of ours; Starlette logs the traceback."""
    return problem_response(ApiError("the server failed while it worked on this request"))
