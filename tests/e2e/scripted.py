"""A server that plays scripted answers.

It is the real thing up to the pipeline of a turn: page, tickets, WebSocket, protocol, turns and a real Redis are the
product's; only the answers come from a script, so that a test can hold, cut and fail them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import redis
import uvicorn
from msgspec import Struct
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.access.directory.store import Directory
from gateway.access.directory.view import View, configured
from gateway.access.identity import Scope
from gateway.access.identity.authenticate import Identity
from gateway.access.identity.guesses import Guesses
from gateway.access.identity.issuers import Issuers
from gateway.access.identity.last_used import LastUsed
from gateway.access.tickets import Tickets
from gateway.config.configuration import Configuration
from gateway.config.settings import Settings, demo_settings
from gateway.engines.arrival import ArrivalState
from gateway.errors import ApiError, ContextLengthExceeded
from gateway.http import chats, feedback, page, prompts, responses, shares, tickets
from gateway.http.exchange import JsonResponse, on_error
from gateway.limits.limiter import Limiter
from gateway.pipeline.routing.decisions import DecisionLog
from gateway.pipeline.routing.judge import Judge
from gateway.protocol.stream import (
    ArgumentsDelta,
    CacheOutcome,
    CallBegun,
    CallEnded,
    Finished,
    LimitReading,
    LimitState,
    Routed,
    TextDelta,
    TokenUsage,
)
from gateway.services import Gateway
from gateway.telemetry.metrics.process import Metrics
from gateway.turns import Turn, Turns
from gateway.turns.chats import Chats
from gateway.turns.comments import Comment, Comments
from gateway.turns.prompts import Prompts
from gateway.turns.shares import Shares
from gateway.ws.connections import SocketConnections
from router.options import Options
from tests.gateway.people import CHATS, key_of
from tests.gateway.turns.contexts import context
from tests.ports import free_port


class Answer(Struct, frozen=True, kw_only=True):
    """How the scripted pipeline answers one question."""

    text: str = "A short answer."
    tier: str = "small"
    complexity: float | None = 0.12
    reasons: tuple[str, ...] = ("complexity 0.12 asks for the small tier", "is a question (+0.12)")
    cache: CacheOutcome = "miss"
    cache_reason: str = ""
    refusal: ApiError | None = None
    """Error that is raised before the turn is routed."""
    failure: ApiError | None = None
    """Error that ends the turn after its text."""
    chunk: int = 4
    """Characters of one delta."""
    pause: float = 0.0
    """Seconds between deltas."""
    cost: int | None = None
    """Micro-dollars."""
    input_tokens: int = 30
    options: Options = ()
    call: tuple[str, str] | None = None
    """Name and arguments of a function call after the text."""
    hold_at: int | None = None
    """Characters after which the answer waits for `ScriptedPipeline.release`."""


class ScriptedPipeline:
    """A `gateway.turns.TurnPipeline` that answers from `answers` by the text of the last message, or by the model asked
    and that text (`small: text`)."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.turns: list[Turn] = []
        """All turns that ran, so that tests see what was asked."""
        self.room: int | None = None
        """Most messages that find room in the context; None: any number."""
        self._gates: list[asyncio.Event] = []

    async def run(self, turn: Turn) -> None:
        self.turns.append(turn)
        said = turn.conversation[-1].content
        answer = self.answers.get(f"{turn.request.model}: {said}") or self.answers.get(said, Answer())
        if answer.refusal:
            raise answer.refusal
        if self.room is not None and len(turn.conversation) > self.room:
            raise ContextLengthExceeded(f"{len(turn.conversation)} messages are more than {self.room}")
        turn.append(
            Routed(
                tier=answer.tier,
                model=f"scripted-{answer.tier}",
                replica="scripted",
                reason="complexity",
                complexity=answer.complexity,
                reasons=answer.reasons,
                options=answer.options,
                cache=answer.cache,
                cache_reason=answer.cache_reason,
            )
        )
        written = await self._write(turn, answer)
        turn.append(LimitState((LimitReading("output_tokens_per_minute", "tenant", 200_000, 199_000, 0.3),)))
        usage = TokenUsage(answer.input_tokens, 16, written)
        if turn.cancelled:
            turn.append(Finished("cancelled", usage))
        elif answer.failure:
            turn.append(Finished("error", usage, answer.failure))
        else:
            turn.append(Finished("stop", usage, cost=answer.cost))

    async def count(self, turn: Turn) -> dict[str, list[int]]:
        """Return a token for each word."""
        return {"scripted": [0 for message in turn.conversation for _ in message.content.split()]}

    async def _write(self, turn: Turn, answer: Answer) -> int:
        gate = asyncio.Event()
        self._gates.append(gate)
        turn.on_cancel(gate.set)
        written = 0
        for start in range(0, len(answer.text), answer.chunk):
            if answer.hold_at is not None and start >= answer.hold_at:
                await gate.wait()
            if turn.cancelled:
                break
            turn.append(TextDelta(answer.text[start : start + answer.chunk]))
            written += 1
            await asyncio.sleep(answer.pause)
        if answer.call is not None:
            name, arguments = answer.call
            for event in (CallBegun("call_1", name), ArgumentsDelta(arguments), CallEnded(True)):
                turn.append(event)
        return written

    def release(self) -> None:
        """Let the held answer go on. On the server's loop only."""
        for gate in self._gates:
            gate.set()


CONTEXT = 1000
"""Tokens of the scripted models' context."""


async def _models(request: Request) -> Response:
    context = {"type": "chat", "context_length": CONTEXT}
    price = {"input": 1_000_000, "cached_input": 1_000_000, "output": 4_000_000}
    models: list[dict[str, Any]] = [
        {"id": f"{prefix}{tier}", **context, "tier": tier, "price": price if tier == "large" else None}
        for prefix in ("", "scripted-")
        for tier in ("small", "large")
    ]
    adapter = {"id": "pirate", "type": "chat", "parent": "scripted-small", "description": "answers like a pirate"}
    return JsonResponse({"object": "list", "data": [*models, adapter, {"id": "all-MiniLM-L6-v2", "type": "embedding"}]})


_PORTS: set[int] = set()
"""Ports of servers that have ended: visits to the same address share a context."""


class ScriptedServer:
    """A gateway with a `ScriptedPipeline`, on a thread of its own."""

    def __init__(self, redis_url: str, settings: Settings | None = None, port: int | None = None) -> None:
        self.settings = settings or demo_settings()
        self.pipeline = ScriptedPipeline()
        self.arrivals = ArrivalState()
        self._redis_url = redis_url
        self._loop = asyncio.new_event_loop()
        app = Starlette(
            routes=[
                *responses.routes,
                *chats.routes,
                *shares.routes,
                *prompts.routes,
                *feedback.routes,
                *tickets.routes,
                *page.routes,
                Route("/v1/models", _models),
            ],
            exception_handlers={ApiError: on_error},
            lifespan=self._lifespan,
        )
        self.gateway: Gateway
        self.port = port or (_PORTS.pop() if _PORTS else free_port())
        _PORTS.discard(self.port)
        self._socket = socket.create_server(("127.0.0.1", self.port))
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(app, ws="websockets-sansio", ws_per_message_deflate=False, log_config=None, access_log=False)
        )
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._server.serve(sockets=[self._socket]),)
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> Any:
        settings, redis = self.settings, Redis.from_url(self._redis_url)
        secret = bytes(32)
        directory = Directory(redis, configured=configured(settings), secret=secret)
        view = View(directory)
        identity = Identity(view, secret, Guesses(settings.server.failed_keys_per_minute), LastUsed(redis), Issuers([]))
        tickets_, metrics = Tickets(redis), Metrics()
        turns = Turns(self.pipeline, settings.turns, context(redis))
        limiter = Limiter(redis, settings)
        connections = SocketConnections(settings, identity, tickets_, turns, metrics, limiter, view)
        decisions, nothing = DecisionLog(redis), cast(Any, None)
        parts: dict[str, Any] = {
            "configuration": Configuration(settings),
            "arrivals": self.arrivals,
            "redis": redis,
            "identity": identity,
            "tickets": tickets_,
            "limiter": limiter,
            "turns": turns,
            "connections": connections,
            "metrics": metrics,
            "view": view,
            "decisions": decisions,
            "judge": Judge(settings.judge, nothing, view, decisions, nothing, redis, metrics),
            "secret": secret,
            "directory": directory,
            "chats": Chats(redis, secret),
            "shares": Shares(redis),
            "prompts": Prompts(redis, secret),
            "comments": Comments(redis, secret),
        }
        # This application's routes use no other parts.
        self.gateway = Gateway(**{field.name: parts.get(field.name) for field in dataclasses.fields(Gateway)})
        app.state.gateway = self.gateway
        yield
        await connections.shut()
        await turns.aclose()
        await redis.aclose()

    def call(self, function: Any, *arguments: Any) -> Any:
        """Run a function on the server's loop."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    def feedback(self) -> list[dict[str, Any]]:
        """Write feedback, as a gateway does every second; returns all that Redis has, the oldest first."""
        asyncio.run_coroutine_threadsafe(self.gateway.decisions.flush(), self._loop).result(20)
        with redis.Redis.from_url(self._redis_url) as client:
            return [json.loads(fields[b"feedback"]) for _, fields in client.xrange("rh1:route-feedback:{demo}")]

    def comment(self, response: str) -> Comment | None:
        """What the demo's admins read beside the rating of a response."""
        found = self.gateway.comments.find("demo", response)
        return asyncio.run_coroutine_threadsafe(found, self._loop).result(20)

    def key_of(self, user: str, scopes: Sequence[Scope] = CHATS) -> str:
        """Make a user of the demo's tenant; return a key of this user."""
        return asyncio.run_coroutine_threadsafe(key_of(self.gateway, user, scopes=scopes), self._loop).result(20)

    def release(self) -> None:
        """Let the held answer go on."""
        self.call(self.pipeline.release)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the scripted server did not start"
            self._thread.join(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._loop.close()
        self._socket.close()
        _PORTS.add(self.port)


def with_own_key(digest: str) -> Settings:
    """Settings of an installation that is not the embedded default: its only key has this SHA-256."""
    defaults = demo_settings()
    [tenant] = defaults.tenants
    keys = [msgspec.structs.replace(tenant.keys[0], sha256=digest)]
    return msgspec.structs.replace(defaults, tenants=[msgspec.structs.replace(tenant, name="own", keys=keys)])
