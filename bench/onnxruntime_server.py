"""A server around ONNX Runtime's generator, which has none of its own: it continues token ids, streamed, as vLLM's
`/v1/completions` does, and refuses what the generator lacks. Grammars are followed as in our engines.

python -m bench.onnxruntime_server FOLDER --port 8080

FOLDER is what onnxruntime-genai's model builder has written. Answers take turns, a token each: the library holds
Python's lock while it computes, so that threads would gain nothing, and on CPUs it batches only what begins together.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import uvicorn
from llguidance import LLMatcher, LLTokenizer
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bench.onnxruntime_requests import Completion
from engine.grammar.source import GrammarLimits, to_llguidance
from engine.request import RequestError

CHUNK: Final = 256
"""Tokens of a prompt that are read at a time, between which other answers have their turns."""
MOST_WAITING: Final = 64
"""Requests that wait for a slot; others are refused."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""Size of a request."""


class _ModelConfig(Struct):
    context_length: int
    vocab_size: int
    eos_token_id: int | list[int]


class _Config(Struct):
    """The part of genai_config.json that describes the model."""

    model: _ModelConfig


class Server:
    """Answers requests with the model in a folder, so many at a time; others wait."""

    def __init__(self, folder: Path, *, slots: int, threads: int) -> None:
        self._about = msgspec.json.decode((folder / "genai_config.json").read_bytes(), type=_Config).model
        ends = self._about.eos_token_id
        self._ends = sorted({*ends} if isinstance(ends, list) else {ends})
        self._folder = folder
        # It would tell its makers which models run here and how they are used.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime_genai

        config = onnxruntime_genai.Config(str(folder))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self._library, self._model = onnxruntime_genai, onnxruntime_genai.Model(config)
        vocabulary = self._about.vocab_size
        self._tokenizer = LLTokenizer(str(folder / "tokenizer.json"), n_vocab=vocabulary, eos_token=self._ends)
        self._slots = asyncio.Semaphore(slots)
        self._counts = Counter({"requests_running": 0, "requests_waiting": 0})
        self.app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/v1/models", self.models),
                Route("/v1/completions", self.complete, methods=["POST"]),
            ]
        )

    async def health(self, _: Request) -> Response:
        return Response()

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse("".join(f"onnxruntime_{name} {count}\n" for name, count in self._counts.items()))

    async def models(self, _: Request) -> Response:
        about = {"id": self._folder.name, "root": str(self._folder), "max_model_len": self._about.context_length}
        return JSONResponse({"object": "list", "data": [{"object": "model", "parent": None, **about}]})

    async def complete(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                return JSONResponse(_error(f"a request has at most {MOST_BYTES} bytes", 413), 413)
        try:
            asked = msgspec.json.decode(body, type=Completion)
            asked.check(self._folder.name, self._about.context_length, self._about.vocab_size)
            matcher = self._matcher(asked)
        except (msgspec.MsgspecError, ValueError, RequestError) as error:
            return JSONResponse(_error(str(error), 400), 400)
        if self._counts["requests_waiting"] >= MOST_WAITING:
            return JSONResponse(_error(f"{MOST_WAITING} requests are waiting", 503), 503, {"retry-after": "1"})
        return StreamingResponse(self._events(asked, matcher), media_type="text/event-stream")

    def _matcher(self, asked: Completion) -> LLMatcher | None:
        """Return what follows the grammar of an answer. The library's own fails at characters of several tokens.

        Raises:
            RequestError, ValueError: the grammar cannot be followed.
        """
        if asked.structured_outputs is None:
            return None
        source = to_llguidance(asked.structured_outputs.written(), GrammarLimits())
        matcher = LLMatcher(self._tokenizer, source, log_level=0)
        if matcher.is_error():
            raise ValueError(f"structured_outputs: {matcher.get_error()}")
        return matcher

    async def _events(self, asked: Completion, matcher: LLMatcher | None) -> AsyncIterator[bytes]:
        """Yield the events of an answer; where it waits, it is cancelled once its connection is closed."""
        with self._counted("requests_waiting"):
            await self._slots.acquire()
        try:
            with self._counted("requests_running"):
                async for event in self._answer(asked, matcher):
                    yield b"data: " + msgspec.json.encode(event) + b"\n\n"
        finally:
            self._slots.release()
        yield b"data: [DONE]\n\n"

    @contextlib.contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        self._counts[name] += 1
        try:
            yield
        finally:
            self._counts[name] -= 1

    async def _answer(self, asked: Completion, matcher: LLMatcher | None) -> AsyncIterator[dict[str, Any]]:
        generator = self._generator(asked)
        for begin in range(0, len(asked.prompt), CHUNK):
            chunk = asked.prompt[begin : begin + CHUNK]
            generator.append_tokens(np.array(chunk, np.int32))
            self._counts["prompt_tokens_total"] += len(chunk)
            await asyncio.sleep(0)
        said, finish = 0, None
        while finish is None:
            logits: Any = None if matcher is None and asked.logprobs is None else generator.get_logits()
            if matcher is not None:
                generator.set_logits(_masked(logits, matcher))
            generator.generate_next_token()
            token = int(generator.get_next_tokens()[0])
            if matcher is not None:
                matcher.consume_token(token)
            said += 1
            self._counts["generation_tokens_total"] += 1
            if token in self._ends and not asked.goes_on:
                finish = "stop"
            elif said == asked.max_tokens:
                finish = "length"
            elif token in self._ends:
                generator.append_tokens(np.array([token], np.int32))  # so that it goes on
            logprobs = None if asked.logprobs is None else _scored(logits[0, -1], token, asked.logprobs)
            choice = {"index": 0, "text": "", "token_ids": [token], "logprobs": logprobs, "finish_reason": finish}
            yield {"object": "text_completion", "choices": [choice]}
            await asyncio.sleep(0)
        if asked.stream_options.get("include_usage"):
            read = len(asked.prompt)
            usage = {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}
            yield {"object": "text_completion", "choices": [], "usage": usage}

    def _generator(self, asked: Completion) -> Any:
        params, begin = self._library.GeneratorParams(self._model), len(asked.prompt)
        # All of them: genai_config.json has defaults of its own.
        params.set_search_options(
            max_length=begin + asked.max_tokens,
            min_length=begin + asked.min_tokens,
            do_sample=asked.temperature > 0,
            temperature=float(asked.temperature or 1.0),
            top_k=min(max(0, asked.top_k), self._about.vocab_size),
            top_p=float(asked.top_p),
            repetition_penalty=float(asked.repetition_penalty),
            random_seed=-1 if asked.seed is None else asked.seed,
        )
        return self._library.Generator(self._model, params)


def _masked(logits: np.ndarray, matcher: LLMatcher) -> np.ndarray:
    """Return the logits of the tokens that may come next."""
    legal = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return np.where(legal[: logits.shape[-1]].astype(bool), logits, np.float32(-np.inf))


def _scored(logits: np.ndarray, token: int, most: int) -> dict[str, Any]:
    """Return the log-probabilities of a token and the likeliest ones, as vLLM tells them."""
    shifted = logits.astype(np.float64) - logits.max()
    scores = shifted - np.log(np.exp(shifted).sum())
    likeliest = np.argsort(-scores, kind="stable")[:most].tolist()
    top = {f"token_id:{each}": float(scores[each]) for each in [*likeliest, token]}
    own = f"token_id:{token}"
    return {"tokens": [own], "token_logprobs": [top[own]], "top_logprobs": [top]}


def _error(message: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "code": status}}


def guarded(app: ASGIApp, key: str) -> ASGIApp:
    """Return an application that answers only who presents the key."""
    wanted = f"Bearer {key}".encode()

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        known = scope["type"] == "lifespan" or hmac.compare_digest(given, wanted)
        answer = app if known else JSONResponse(_error("authorization: the key is missing or wrong", 401), 401)
        await answer(scope, receive, send)

    return check


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.onnxruntime_server")
    parser.add_argument("folder", type=Path, help="what onnxruntime-genai's model builder has written")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--slots", type=int, default=4, help="answers at a time, which take turns")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads that compute")
    parser.add_argument("--key-file", type=Path, help="file with the key that clients have to present")
    chosen = parser.parse_args()
    app: ASGIApp = Server(chosen.folder.resolve(), slots=chosen.slots, threads=chosen.threads).app
    if chosen.key_file is not None:
        app = guarded(app, chosen.key_file.read_text("utf-8").strip())
    with socket.create_server((chosen.host, chosen.port)) as listening:
        print(f"http://{chosen.host}:{listening.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, loop="uvloop", http="httptools", log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
