"""The least that Starlette does for a streamed turn: constant chunks, without keys, limits, caches or an engine.

`WS /` answers each message with so many messages, `POST /` with so many server-sent events.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

CHUNK = json.dumps({"type": "response.output_text.delta", "sequence_number": 7, "delta": " chunk"})


def create_app(chunks: int) -> Starlette:
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        try:
            while True:
                await socket.receive_text()
                for _ in range(chunks):
                    await socket.send_text(CHUNK)
                    await asyncio.sleep(0)
        except WebSocketDisconnect:
            return

    async def stream(request: Request) -> StreamingResponse:
        await request.body()

        async def events() -> AsyncIterator[bytes]:
            for _ in range(chunks):
                yield b'data: {"choices":[{"delta":{"content":" chunk"}}]}\n\n'
                await asyncio.sleep(0)

        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[WebSocketRoute("/", talk), Route("/", stream, methods=["POST"])])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.echo", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--chunks", type=int, default=32)
    arguments = parser.parse_args()
    uvicorn.run(
        create_app(arguments.chunks),
        host="127.0.0.1",
        port=arguments.port,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
