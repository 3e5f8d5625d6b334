"""Answers one HTTP request with several turns: read side by side, ended together, as one JSON body or one stream.

Nobody can come back to such an answer, so its turns end as soon as the client has gone, unless it has sent an
idempotency key to come back with.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from engine.text.processor import TextProcessor
from gateway import __version__
from gateway.access.identity import Principal
from gateway.errors import ApiError, ContextLengthExceeded, Unavailable
from gateway.http.exchange import (
    JsonResponse,
    ServerSentEvents,
    cost_headers,
    overhead_header,
    read_parameters,
    route_headers,
    sse_event,
    while_connected,
)
from gateway.limits.readings import headers as limit_headers
from gateway.protocol.caching import Caching, from_headers
from gateway.protocol.choices import ChoicesRequest, total_usage
from gateway.protocol.log import LogEntry, TurnLog
from gateway.protocol.stream import ArgumentsDelta, Finished, Routed, TextDelta, TurnEvent
from gateway.services import Gateway, gateway_of
from gateway.turns import Viewer


class Choices:
    """The turns of one request."""

    def __init__(
        self, request: ChoicesRequest, gateway: Gateway, viewers: Sequence[Viewer], news: asyncio.Event
    ) -> None:
        self.request = request
        self._gateway = gateway
        self._viewers = viewers
        self._news = news
        self._created = viewers[0].turn.created_at
        self._output_tokens = 0

    @classmethod
    async def start(
        cls, request: ChoicesRequest, gateway: Gateway, principal: Principal, key: str | None = None
    ) -> Self:
        """Start all turns; returns once they have been routed.

        Args:
            key: the client's idempotency key; with it, somebody may come back to the turns.

        Raises:
            ApiError: one was refused; the others are ended.
        """
        news = asyncio.Event()
        every = range(len(request.turns))
        starting: dict[int, asyncio.Task[Viewer]] = {}
        try:
            # One answer to each prompt first: a prompt that is refused is then tokenised once, not `n` times.
            for indices in (every[:: request.n], every):
                for index in indices:
                    if index not in starting:
                        start = gateway.turns.start(
                            request.turns[index],
                            principal,
                            wake=news.set,
                            orphan_timeout=0,
                            idempotency_key=key if key is None or index == 0 else f"{key}#{index}",
                        )
                        starting[index] = asyncio.create_task(start)
                await asyncio.gather(*starting.values())
            return cls(request, gateway, [starting[index].result() for index in every], news)
        except BaseException:
            for task in starting.values():
                task.cancel()
            for started in await asyncio.gather(*starting.values(), return_exceptions=True):
                if isinstance(started, Viewer):
                    started.close()
            raise

    @property
    def logs(self) -> list[TurnLog]:
        """The logs of the turns, one per answer."""
        return [viewer.turn.log for viewer in self._viewers]

    @property
    def routes(self) -> list[Routed]:
        """Where each turn runs; final once its text has begun."""
        return [log.routed for log in self.logs if log.routed is not None]

    def headers(self) -> dict[str, str]:
        """Return the headers about route, overhead and limits."""
        turns = [viewer.turn for viewer in self._viewers]
        return (
            route_headers(self.routes)
            | overhead_header(turn.trace for turn in turns)
            | limit_headers(turns[-1].limits())
        )

    def envelope(self, prefix: str, kind: str) -> dict[str, Any]:
        """Return the fields that every body and chunk begins with."""
        return {
            "id": prefix + self._viewers[0].turn.id.removeprefix("resp_"),
            "object": kind,
            "created": self._created,
            "model": self.routes[0].model,
            "system_fingerprint": _fingerprint(self.routes[0].model),
        }

    def text(self, index: int) -> TextProcessor:
        """Return the tokenizer of the model that gives answer number `index`."""
        routed = self.routes[index]
        return self._gateway.engines.pool(routed.base_model or routed.model).text

    def usage(self) -> dict[str, Any]:
        """Usage of the whole request; all turns must have ended."""
        return total_usage((log.finished.usage for log in self.logs if log.finished), self.request.n)

    def running_usage(self) -> dict[str, Any]:
        """Return the usage field of a chunk before the end: none, null or, if asked for, the usage so far."""
        if not self.request.include_usage:
            return {}
        if not self.request.continuous_usage:
            return {"usage": None}
        prompt_tokens = sum(routed.input_tokens for routed in self.routes[:: self.request.n])
        return {
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": self._output_tokens,
                "total_tokens": prompt_tokens + self._output_tokens,
            }
        }

    async def ended(self) -> None:
        """Wait for the end of all turns, reading nothing.

        Raises:
            ApiError: a turn has failed.
        """
        while True:
            finished = [log.finished for log in self.logs]
            for end in finished:
                check_end(end)
            if all(finished):
                return
            await self._news.wait()
            self._news.clear()

    async def entries(self) -> AsyncIterator[tuple[int, LogEntry]]:
        """Entries of all turns as they come, each with the number of its answer; see `Viewer.entries`.

        Raises:
            ApiError: a turn has failed.
        """
        self._news.set()  # there may be something to read already
        while not all(viewer.exhausted for viewer in self._viewers):
            await self._news.wait()
            self._news.clear()
            for index, viewer in enumerate(self._viewers):
                for entry in viewer.read():
                    check_end(entry.event)
                    if isinstance(entry.event, TextDelta | ArgumentsDelta):
                        self._output_tokens += len(entry.event.token_ids)
                    yield index, entry
            if any(viewer.behind and not viewer.turn.finished for viewer in self._viewers):
                await asyncio.sleep(self._gateway.settings.turns.coalesce_window)

    def close(self) -> None:
        """Stop watching; turns that have not ended are cancelled."""
        for viewer in self._viewers:
            viewer.close()


class Framing(NamedTuple):
    """How an endpoint puts the chunks of a stream on the wire."""

    chunk: Callable[[dict[str, Any]], bytes]
    error: Callable[[ApiError], bytes]
    """An error after the stream has begun; nothing follows it."""
    end: bytes = b""
    response: type[ServerSentEvents] = ServerSentEvents


OPENAI = Framing(sse_event, lambda error: sse_event({"error": error.body()}), b"data: [DONE]\n\n")


class Format(Protocol):
    """The format of one endpoint."""

    body: type[Struct]
    """The body's parameters."""
    framing: Framing
    prompt_field: str
    """Name of the body's field that an error blames when a prompt does not fit."""

    def parse(self, body: Mapping[str, Any], caching: Caching) -> ChoicesRequest:
        """Parse what a body asks for."""
        ...

    async def whole(self, choices: Choices) -> dict[str, Any]:
        """Return the body of a response, once all turns have ended."""
        ...

    def chunks(self, choices: Choices) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream. The first one waits for the first token."""
        ...


async def respond(request: Request, format: Format) -> Response:
    """Answer a request in the format of its endpoint, unless its client goes away first."""
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    body = await read_parameters(request, principal, format.body)
    asked = format.parse(body, from_headers(request.headers))
    key = request.headers.get("idempotency-key")
    return await while_connected(request.receive, answer(gateway, principal, asked, format, key))


async def answer(
    gateway: Gateway, principal: Principal, asked: ChoicesRequest, format: Format, key: str | None = None
) -> Response:
    """Answer a request in the format of its endpoint. Args: key: the client's idempotency key.

    Raises:
        ApiError: it is refused, or fails before its stream begins.
    """
    try:
        choices = await Choices.start(asked, gateway, principal, key)
    except ContextLengthExceeded as error:
        error.param = format.prompt_field
        raise
    with contextlib.ExitStack() as stack:
        stack.callback(choices.close)
        if not asked.stream:
            body = await format.whole(choices)
            return JsonResponse(body, headers={**choices.headers(), **cost_headers(choices.logs)})
        chunks = format.chunks(choices)
        # A failure before the first token is still a proper HTTP error, which clients know how to retry.
        first = await anext(chunks)
        close = stack.pop_all().close
    return format.framing.response(
        _framed(first, chunks, format.framing),
        close=close,
        send_timeout=gateway.settings.server.send_timeout,
        headers=choices.headers(),
    )


async def _framed(
    first: dict[str, Any], chunks: AsyncIterator[dict[str, Any]], framing: Framing
) -> AsyncIterator[bytes]:
    yield framing.chunk(first)
    try:
        async for chunk in chunks:
            yield framing.chunk(chunk)
    except ApiError as error:
        yield framing.error(error)
        return
    if framing.end:
        yield framing.end


@functools.lru_cache(maxsize=1024)
def _fingerprint(model: str) -> str:
    """Name what the answers of a model depend on beside the request: the model, and this program's version."""
    return "fp_" + hashlib.sha256(f"{__version__} {model}".encode()).hexdigest()[:10]


def check_end(event: TurnEvent | None) -> None:
    """Raise the error that ended a turn early."""
    match event:
        case Finished(error=ApiError() as error):
            raise error
        case Finished(reason="cancelled"):
            raise Unavailable(
                "the answer was cut off because the server is restarting; send the request again",
                code="draining",
                headers={"retry-after": "1"},
            )
