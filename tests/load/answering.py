"""A small OpenAI-compatible server whose answers are known, with faults on request: the model's name says which.

`patient` and those that are wrong after a resume stop before the end of a first stream, until the client has cancelled
it or gone: neither can come too late, however slow the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

KEYS = ("first-key", "second-key")
PIECES = 24
PAUSE = 0.004
HELD_BACK = 4
"""Pieces that come after the place where a patient answer stops."""
PATIENT = ("patient", "loses", "doubles", "skips")
Event = dict[str, Any]
Send = Callable[[Event], Awaitable[None]]


class Answer:
    """One response: its events from the first to the last, and those that a client gets who resumes it."""

    def __init__(self, id: str, model: str, seed: int | None) -> None:
        self.id = id
        self.cancelled = asyncio.Event()
        self._patient = model in PATIENT
        start = int(id.rpartition("_")[2]) if model == "unequal" or seed is None else seed
        pieces = [f"{start + at} " for at in range(PIECES)]
        self.first = self._events(pieces, model)
        self.resumed = self.first
        if model == "loses":
            self.resumed = _renumbered([*self.first[:-3], *self.first[-2:]])
        elif model == "doubles":
            self.resumed = _renumbered([*self.first[:-2], *self.first[-2:-1], *self.first[-2:]])
        elif model == "skips":
            self.resumed = [*self.first[:-1], {**self.first[-1], "sequence_number": len(self.first)}]

    def _events(self, pieces: list[str], model: str) -> list[Event]:
        end = {"type": "response.completed", "response": self._response("completed", "".join(pieces), len(pieces))}
        if model == "fails":
            error = {"code": "engine_lost", "message": "the engine is gone"}
            end = {"type": "response.failed", "response": {"id": self.id, "status": "failed", "error": error}}
        deltas = [{"type": "response.output_text.delta", "delta": each} for each in pieces]
        created = {"type": "response.created", "response": self._response("in_progress", "", 0)}
        return _renumbered([created, *deltas, *([] if model == "ends-early" else [end])])

    async def stream(self, events: list[Event], after: int, send: Send) -> None:
        for event in events:
            number = event["sequence_number"]
            if number <= after:
                continue
            if self._patient and after < 0 and number == PIECES - HELD_BACK:
                await self.cancelled.wait()
            if self.cancelled.is_set():
                text = "".join(each.get("delta", "") for each in events[:number])
                ended = self._response("cancelled", text, number - 1)
                await send({"type": "response.incomplete", "sequence_number": number, "response": ended})
                return
            await send(event)
            await asyncio.sleep(PAUSE)

    def _response(self, status: str, text: str, tokens: int) -> Event:
        output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}] if text else []
        usage = {"input_tokens": 7, "output_tokens": tokens}
        return {"id": self.id, "status": status, "output": output, "usage": usage}


def _renumbered(events: list[Event]) -> list[Event]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


class AnsweringServer:
    """The server's state: all answers, and what it was sent."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.bodies: list[Event] = []
        self.keys: list[str | None] = []
        self.connections = self.open = self.most_open = 0
        self._numbers = itertools.count()
        self.app = Starlette(
            routes=[
                WebSocketRoute("/v1/responses", self._socket),
                Route("/v1/responses", self._create, methods=["POST"]),
                Route("/v1/responses/{id}", self._resume),
                Route("/v1/responses/{id}/cancel", self._cancel, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
            ]
        )

    def _new(self, body: Event, authorization: str | None) -> Answer:
        self.bodies.append(body)
        self.keys.append(authorization and authorization.removeprefix("Bearer "))
        id = f"resp_{next(self._numbers)}"
        self.answers[id] = Answer(id, body["model"], body.get("seed"))
        return self.answers[id]

    async def _socket(self, socket: WebSocket) -> None:
        await socket.accept()
        self.connections, self.open = self.connections + 1, self.open + 1
        self.most_open = max(self.most_open, self.open)
        tasks = set()

        async def send(event: Event) -> None:
            await socket.send_text(json.dumps(event))

        try:
            while True:
                body = json.loads(await socket.receive_text())
                if body["type"] == "response.cancel":
                    self.answers[body["response_id"]].cancelled.set()
                    continue
                if body["type"] == "response.resume":
                    answer = self.answers[body["response_id"]]
                    events, after = answer.resumed, body["starting_after"]
                else:
                    answer = self._new(body, socket.headers.get("authorization"))
                    events, after = answer.first, -1
                tasks.add(asyncio.create_task(answer.stream(events, after, send)))
        except WebSocketDisconnect:
            pass
        finally:
            self.open -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _create(self, request: Request) -> Response:
        answer = self._new(await request.json(), request.headers.get("authorization"))
        return self._stream(answer, answer.first, -1)

    async def _resume(self, request: Request) -> Response:
        answer = self.answers[request.path_params["id"]]
        return self._stream(answer, answer.resumed, int(request.query_params["starting_after"]))

    def _stream(self, answer: Answer, events: list[Event], after: int) -> Response:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def send(event: Event) -> None:
            queue.put_nowait(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

        async def body() -> AsyncIterator[bytes]:
            task = asyncio.create_task(answer.stream(events, after, send))
            task.add_done_callback(lambda _: queue.put_nowait(None))
            try:
                while (data := await queue.get()) is not None:
                    yield data
            finally:
                task.cancel()

        return StreamingResponse(body(), media_type="text/event-stream")

    async def _cancel(self, request: Request) -> Response:
        self.answers[request.path_params["id"]].cancelled.set()
        return JSONResponse({})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        if body["model"] == "refused":
            key = request.headers.get("authorization", "no key")
            error = {"message": f"{key} may not use it", "code": "model_not_found"}
            return JSONResponse({"error": error}, status_code=404)
        answer = self._new(body, request.headers.get("authorization"))

        async def chunks() -> AsyncIterator[bytes]:
            for event in answer.first[1:-1]:
                if body["model"] == "patient" and event["sequence_number"] == PIECES - HELD_BACK:
                    await answer.cancelled.wait()
                yield _chunk({"choices": [{"delta": {"content": event["delta"]}, "finish_reason": None}]})
                await asyncio.sleep(PAUSE)
            if body["model"] != "ends-early":
                yield _chunk({"choices": [{"delta": {}, "finish_reason": "stop"}]})
                yield _chunk({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": PIECES}})
            yield b"data: [DONE]\r\n\r\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def _models(self, request: Request) -> Response:
        if request.headers.get("authorization") == "Bearer wrong-key":
            error = {"message": "wrong-key is not known", "code": "invalid_api_key"}
            return JSONResponse({"error": error}, status_code=401)
        return JSONResponse({"object": "list", "data": [{"id": "first-model"}, {"id": "second-model"}]})


def _chunk(chunk: Event) -> bytes:
    return f"data: {json.dumps(chunk)}\r\n\r\n".encode()


@contextlib.contextmanager
def answering_server(certificate: str | None = None) -> Iterator[tuple[AnsweringServer, str]]:
    """Serve from a thread, with TLS if there is a file with a certificate and its key; gives the state and address."""
    state = AnsweringServer()
    config = uvicorn.Config(
        state.app, host="127.0.0.1", port=0, log_level="error", ws="websockets-sansio", ssl_certfile=certificate
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield state, f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
