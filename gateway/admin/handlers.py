"""How errors are answered by the admin API."""

from __future__ import annotations

import logging

import msgspec
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Unavailable
from gateway.http.exchange import api_error
from gateway.protocol.problems import MEDIA_TYPE, problem

log = logging.getLogger("roundhouse.admin")


async def on_error(request: Request, error: Exception) -> Response:
    """Exception handler for every error: answers with a problem."""
    if isinstance(error, RedisError | TimeoutError):
        log.warning("admin: no answer from Redis", extra={"error": type(error).__name__})
        error = Unavailable("Redis does not answer; try again in a few seconds")
    told = api_error(request, error)
    content = msgspec.json.encode(problem(told))
    return Response(content, status_code=told.status, headers=told.headers, media_type=MEDIA_TYPE)
