"""How soon llama.cpp's server is free again after a client cancels, through our gateway and without one.

    python -m bench.cancelling --model qwen.gguf     results in bench/results/cancelling.md

The server, a gateway process and Redis are real. Each answer is cancelled while it is being written, or while its
prompt is being read; then the server's `/slots` page is asked again and again until no slot is busy. Counted is the
time from just before the client closes its connection, or sends `response.cancel`, to the first page on which the slot
is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import httpx2
import msgspec
from websockets.asyncio.client import connect

from bench.measure import quantile
from bench.report import Environment, options, publish, table
from bench.servers import gateway, listening, redis_server, shared_settings
from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore, default_folder

KEY = "bench"
LIMIT_MS = 100.0
"""Milliseconds within which a slot should be free."""
TOKENS = 8
"""Tokens after which an answer is cancelled."""
LONG, SHORT = 50, 10
"""Words of a prompt that takes long to read, and of one that does not."""
POLL = 0.001
PATIENCE = 120.0

Cancel = Callable[[], Awaitable[None]]
Begin = Callable[[str, bool], contextlib.AbstractAsyncContextManager[Cancel]]
"""Begins an answer to a prompt, waits for its first tokens if so told, and gives what cancels it."""


class CancelRow(msgspec.Struct, frozen=True):
    """One way to cancel, in milliseconds."""

    way: str
    while_reading: bool
    """Whether the prompt was being read, or else the answer being written."""
    cancels: int
    p50: float
    p95: float
    most: float


class Addresses:
    """Addresses of what is measured."""

    def __init__(self, server: str, gateway_port: int) -> None:
        self.server = server
        self._gateway = f"http://127.0.0.1:{gateway_port}"
        self._socket = f"ws://127.0.0.1:{gateway_port}/v1/responses"
        self._headers = {"authorization": f"Bearer {KEY}"}

    @property
    def ways(self) -> dict[str, Begin]:
        return {
            "no gateway, connection closed": self.directly,
            "gateway, connection closed": self.over_http,
            "gateway, response.cancel": self.over_socket,
        }

    @contextlib.asynccontextmanager
    async def directly(self, prompt: str, tokens: bool) -> AsyncIterator[Cancel]:
        body = {"prompt": prompt, "n_predict": 200, "ignore_eos": True, "stream": True}
        async with self._streamed(f"{self.server}/completion", body, tokens) as cancel:
            yield cancel

    @contextlib.asynccontextmanager
    async def over_http(self, prompt: str, tokens: bool) -> AsyncIterator[Cancel]:
        body = {"model": "small", "messages": [{"role": "user", "content": prompt}], "max_tokens": 200, "stream": True}
        async with self._streamed(f"{self._gateway}/v1/chat/completions", body, tokens) as cancel:
            yield cancel

    @contextlib.asynccontextmanager
    async def over_socket(self, prompt: str, tokens: bool) -> AsyncIterator[Cancel]:
        async with connect(self._socket, additional_headers=self._headers, compression=None) as socket:
            create = {"type": "response.create", "model": "small", "input": prompt, "max_output_tokens": 200}
            await socket.send(json.dumps(create))
            begun, said = json.loads(await socket.recv()), 0
            while tokens and said < TOKENS:
                said += json.loads(await socket.recv())["type"] == "response.output_text.delta"

            async def cancel() -> None:
                await socket.send(json.dumps({"type": "response.cancel", "response_id": begun["response"]["id"]}))

            yield cancel

    @contextlib.asynccontextmanager
    async def _streamed(self, url: str, body: object, tokens: bool) -> AsyncIterator[Cancel]:
        async with httpx2.AsyncClient(timeout=PATIENCE, headers=self._headers) as http:
            request = http.build_request("POST", url, json=body)
            sending = asyncio.ensure_future(http.send(request, stream=True))
            if tokens:
                said = 0
                async for line in (await sending).aiter_lines():
                    said += line.startswith("data:")
                    if said == TOKENS:
                        break

            async def cancel() -> None:
                if not sending.done():
                    sending.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await sending
                else:
                    await sending.result().aclose()

            yield cancel


async def measure(stage: Addresses, way: str, begin: Begin, cancels: int, *, while_reading: bool) -> CancelRow:
    """Cancel so many answers one after the other."""
    times = []
    async with httpx2.AsyncClient(base_url=stage.server, timeout=PATIENCE) as watching:

        async def busy() -> bool:
            return any(slot["is_processing"] for slot in (await watching.get("/slots")).json())

        async def until(wanted: bool) -> None:
            async with asyncio.timeout(PATIENCE):
                while await busy() != wanted:  # noqa: ASYNC110  another process has no event
                    await asyncio.sleep(POLL)

        for _ in range(cancels):
            words = LONG if while_reading else SHORT
            prompt = " ".join(secrets.token_hex(2) for _ in range(words))  # which no prefix cache knows
            async with begin(prompt, not while_reading) as cancel:
                await until(True)
                began = time.perf_counter()
                await cancel()
                await until(False)
                times.append(1000 * (time.perf_counter() - began))
    return CancelRow(way, while_reading, cancels, quantile(times, 0.5), quantile(times, 0.95), max(times))


@contextlib.contextmanager
def staged(model: Path) -> Iterator[Addresses]:
    """Start the server, Redis and a gateway."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-cancel-")))
        command = [sys.executable, "-m", "bench.xllamacpp_server", str(model)]
        port, _ = stack.enter_context(listening(lambda port: [*command, str(port)], ready="/health"))
        stack.enter_context(redis_server(folder))
        server = f"http://127.0.0.1:{port}"
        pool = f'[[pools]]\ntier = "small"\nname = "llama"\nmodel = "{model}"\ndialect = "llama.cpp"\n'
        settings = shared_settings(folder, KEY) + f'{pool}engines = ["{server}"]\n'
        gateway_port, _ = stack.enter_context(gateway(folder, settings))
        yield Addresses(server, gateway_port)


async def run(stage: Addresses, cancels: int) -> list[CancelRow]:
    return [
        await measure(
            stage, way, begin, max(1, cancels // 5) if while_reading else cancels, while_reading=while_reading
        )
        for while_reading in (False, True)
        for way, begin in stage.ways.items()
    ]


def markdown(rows: Sequence[CancelRow], model: Path) -> str:
    """Return the page."""
    lines = [
        f"{'while the prompt is read' if row.while_reading else 'while the answer is written'} | {row.way} | "
        f"{row.cancels} | {row.p50:.0f} | {row.p95:.0f} | {row.most:.0f}"
        for row in rows
    ]
    written = [row.p95 for row in rows if not row.while_reading]
    verdict = "holds" if max(written) <= LIMIT_MS else "is missed"
    return "\n".join(
        [
            "# Until llama.cpp's server is free after a cancel",
            "",
            f"- {Environment.here()}, which the server, the gateway and the client share; "
            f"load average {os.getloadavg()[1]:.0f}",
            f"- {model.name}, one thread; the server looks for closed connections between two batches, so that a "
            "prompt that it is reading goes on to the end of its batch",
            f"- {LIMIT_MS:g} ms while an answer is written: {verdict} (p95)",
            "",
            *table("when | way | cancels | p50 (ms) | p95 (ms) | most (ms)", lines, words=2),
            "",
        ]
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", type=Path, help="a GGUF file; the catalogue's smallest model unless given")
    parser.add_argument("--cancels", type=int, default=100)
    arguments = parser.parse_args()
    model = arguments.model or ModelStore(default_folder()).path(min(catalogue(), key=lambda each: each.bytes))
    with staged(model) as stage:
        rows = asyncio.run(run(stage, arguments.cancels))
    publish(arguments.output / "cancelling", markdown(rows, model), rows)


if __name__ == "__main__":
    main()
