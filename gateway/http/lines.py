"""Answers lines of batches: requests to the endpoints of this folder that come without a connection."""

from __future__ import annotations

import logging
import math
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from gateway.access.identity import Principal
from gateway.batches.lines import LineAnswer
from gateway.batches.state import Endpoint
from gateway.errors import ApiError, RateLimited, unsupported_parameter
from gateway.http import embeddings
from gateway.http.chat_completions import ChatCompletions
from gateway.http.choices import Format, answer, check_end
from gateway.http.completions import Completions
from gateway.http.exchange import error_response, parameters
from gateway.http.responses import whole
from gateway.limits.readings import leaves
from gateway.limits.subjects import subjects_of
from gateway.protocol.caching import NOTHING
from gateway.protocol.response_create import ResponseCreate, parse_response_create
from gateway.services import Gateway
from gateway.telemetry.logs import bind

log = logging.getLogger("roundhouse.batches")

Body = dict[str, Any]


class LineAnswers:
    """Answers lines as if they had come over HTTP, but after everybody else's requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._begun: Counter[str] = Counter()
        """Number of lines that are being answered, by tenant."""

    async def __call__(self, principal: Principal, endpoint: Endpoint, body: Body) -> LineAnswer:
        """Answer a line; errors are answers too.

        What the caller may do is looked up again; a token or session that has ended meanwhile still counts.
        """
        request_id = f"req_{secrets.token_hex(16)}"
        with bind(request_id=request_id):
            try:
                if principal.expires_at is not None:
                    principal = msgspec.structs.replace(principal, expires_at=math.inf, session=None)
                principal = await self._gateway.identity.renew(principal)
                principal.require("chat")
                for name in ("background", "stream"):
                    if body.get(name):
                        raise unsupported_parameter(name, "not supported in a batch. Leave it out.")
                await self._check_room(principal)
                self._begun[principal.tenant] += 1
                try:
                    response = await _ENDPOINTS[endpoint](self._gateway, principal, body)
                finally:
                    self._begun[principal.tenant] -= 1
            except ApiError as error:
                retry_after = float(error.headers["retry-after"]) if "retry-after" in error.headers else None
                return _line_answer(error_response(error), request_id, error.code, retry_after)
            except Exception:
                log.exception("a line of a batch failed")
                fault = ApiError("the server failed while it worked on this request")
                return _line_answer(error_response(fault), request_id, fault.code)
        return _line_answer(response, request_id)

    async def _check_room(self, principal: Principal) -> None:
        """
        Raises:
            RateLimited: the tenant's other requests need what is left of its limits.
        """
        gateway, tenant = self._gateway, principal.tenant
        subjects = subjects_of(gateway.settings.limits, gateway.view.tenant(tenant), principal, None, None)
        if subjects:
            state, share = await gateway.limiter.read(tenant, subjects), gateway.settings.batches.share_of_limits
            if not leaves(state, share, self._begun[tenant]):
                raise RateLimited("the rest of the limits is left to other requests", retry_after=1)


async def _response(gateway: Gateway, principal: Principal, body: Body) -> Response:
    asked, _ = parse_response_create(parameters(gateway, principal, body, ResponseCreate))
    # A batch's answers are in its file; stored, they would drive those of conversations out.
    asked = msgspec.structs.replace(asked, service_tier="flex", store=body.get("store") is True)
    with await gateway.turns.start(asked, principal, orphan_timeout=0) as viewer:
        response = await whole(viewer)
        check_end(viewer.turn.log.finished)
        return response


async def _embedding(gateway: Gateway, principal: Principal, body: Body) -> Response:
    format = embeddings.OPENAI
    asked = format.parse(parameters(gateway, principal, body, format.body))
    return await embeddings.answer(gateway, principal, asked, format)


def _choices(format: Format) -> Callable[[Gateway, Principal, Body], Awaitable[Response]]:
    async def answered(gateway: Gateway, principal: Principal, body: Body) -> Response:
        asked = format.parse(parameters(gateway, principal, body, format.body), NOTHING)
        turns = tuple(msgspec.structs.replace(turn, service_tier="flex") for turn in asked.turns)
        return await answer(gateway, principal, msgspec.structs.replace(asked, turns=turns), format)

    return answered


_ENDPOINTS: Mapping[Endpoint, Callable[[Gateway, Principal, Body], Awaitable[Response]]] = {
    "/v1/chat/completions": _choices(ChatCompletions()),
    "/v1/completions": _choices(Completions()),
    "/v1/embeddings": _embedding,
    "/v1/responses": _response,
}


def _line_answer(
    response: Response, request_id: str, code: str | None = None, retry_after: float | None = None
) -> LineAnswer:
    return LineAnswer(response.status_code, bytes(response.body), request_id, code, retry_after)
