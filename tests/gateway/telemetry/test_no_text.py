"""What clients write is found nowhere but in what they get back: not in logs, metrics, spans or Redis.

A word that nobody else uses is sent through every endpoint and every field that takes text, in requests that work and
in requests that are refused; then everything that the installation has written is searched for it.
"""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from redis import Redis
from websockets.exceptions import ConnectionClosed

from gateway.config.chat import ChatSettings
from gateway.config.settings import LogSettings, TelemetrySettings
from gateway.telemetry import logs
from tests.gateway.batches.use import begun, ended, line, results
from tests.gateway.conftest import KEY, Serve, Served, receive, send, until_end
from tests.gateway.people import key_of
from tests.gateway.telemetry.collector import Collector

pytestmark = pytest.mark.anyio

WORD = "zanzibarquokka"
CLIENTS = ("openai", "httpx", "httpcore", "websockets.client")
"""Loggers of the test's own clients."""

SCHEMA = {
    "type": "object",
    "properties": {WORD: {"type": "string", "description": WORD, "enum": [WORD]}},
    "required": [WORD],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "name": "x"}
TOOL = {"name": "look_up", "description": f"Finds a {WORD}.", "parameters": SCHEMA}
SAID = [
    {"role": "system", "content": f"You know every {WORD}."},
    {"role": "user", "content": f"Where is the {WORD}?"},
]
SMALL = {"model": "small", "max_output_tokens": 4}
CHAT = {"model": "small", "max_tokens": 4}

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {**SMALL, "input": WORD, "instructions": WORD, "metadata": {"note": WORD}, "user": WORD}),
    ("/v1/responses", {**SMALL, "input": WORD, "stream": True, "stop": [WORD]}),
    ("/v1/responses", {**SMALL, "input": WORD, "temperature": 0, "generate": False}),
    ("/v1/responses", {**SMALL, "input": WORD, "top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
    ("/v1/responses", {**SMALL, "input": WORD, "tools": [{"type": "function", **TOOL}]}),
    ("/v1/responses", {**SMALL, "input": WORD, "tools": [{"type": "function", **TOOL}], "tool_choice": "required"}),
    ("/v1/responses", {**SMALL, "input": WORD, "text": {"format": {**FORMAT, "name": WORD, "schema": SCHEMA}}}),
    ("/v1/responses", {**SMALL, "input": WORD, "text": {"format": {**FORMAT, "schema": {"type": WORD}}}}),
    ("/v1/responses", {**SMALL, "input": WORD, "text": {"format": {"type": WORD}}}),
    ("/v1/responses", {**SMALL, "input": [{"role": WORD, "content": WORD}]}),
    ("/v1/responses", {**SMALL, "input": WORD, WORD: WORD}),
    ("/v1/responses", {**SMALL, "input": WORD, "temperature": WORD}),
    ("/v1/responses", {**SMALL, "input": f"{WORD} " * 3000}),
    ("/v1/responses", {**SMALL, "input": WORD, "previous_response_id": f"resp_{WORD}"}),
    ("/v1/responses", {"model": WORD, "input": WORD}),
    ("/v1/responses", {**SMALL, "input": WORD, "background": True}),
    ("/v1/responses", {**SMALL, "input": WORD, "conversation": f"conv_{WORD}"}),
    ("/v1/responses", {**SMALL, "input": [{"type": "compaction", "encrypted_content": WORD}]}),
    ("/v1/responses/input_tokens", {"model": "small", "input": WORD, "instructions": WORD}),
    ("/v1/responses/compact", {**SMALL, "input": SAID}),
    ("/v1/conversations", {"items": SAID, "metadata": {"note": WORD}}),
    ("/v1/conversations", {"items": [{"role": WORD, "content": WORD}]}),
    (f"/v1/conversations/{WORD}", {"metadata": {"note": WORD}}),
    (f"/v1/conversations/conv_{48 * '0'}/items", {"items": SAID}),
    ("/v1/chat/completions", {**CHAT, "messages": SAID}),
    ("/v1/chat/completions", {**CHAT, "messages": SAID, "stream": True, "n": 2, "stop": WORD}),
    ("/v1/chat/completions", {**CHAT, "messages": SAID, "temperature": 0}),
    ("/v1/chat/completions", {**CHAT, "messages": SAID, "tools": [{"type": "function", "function": TOOL}]}),
    ("/v1/chat/completions", {**CHAT, "messages": SAID, "structured_outputs": {"grammar": f'start: "{WORD}"'}}),
    ("/v1/chat/completions", {**CHAT, "messages": SAID, "structured_outputs": {"grammar": f"start: {WORD}"}}),
    ("/v1/chat/completions", {**CHAT, "messages": SAID, "structured_outputs": {"regex": f"({WORD}"}}),
    ("/v1/chat/completions", {**CHAT, "messages": SAID, "structured_outputs": {"choice": [WORD, WORD * 2]}}),
    # An answer that ends is stored.
    ("/v1/chat/completions", {**CHAT, "messages": SAID, "temperature": 0, "structured_outputs": {"choice": ["a"]}}),
    ("/v1/completions", {**CHAT, "prompt": f"The {WORD} of", "echo": True}),
    ("/v1/completions", {**CHAT, "prompt": [WORD, WORD], "suffix": WORD}),
    ("/v1/messages", {**CHAT, "messages": SAID[1:], "system": WORD, "metadata": {"user_id": WORD}}),
    ("/api/chat", {"model": "small", "messages": SAID, "options": {"num_predict": 4}, "stream": False}),
]  # fmt: skip


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Everything that gateway and engine log, at every level, as a gateway is configured to write it."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    logs.configure(LogSettings(level="debug", format="json"), stream)
    root.handlers[0].addFilter(lambda record: not record.name.startswith(CLIENTS))
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = False


async def test_no_log_metric_span_or_key_holds_what_a_client_wrote(
    serve: Serve, redis_url: str, logged: io.StringIO
) -> None:
    with Collector() as collector:
        telemetry, chat = (
            TelemetrySettings(otlp_endpoint=collector.endpoint),
            ChatSettings(history="server", comments=True),
        )
        async with serve(telemetry=telemetry, chat=chat) as served:
            statuses = await over_http(served)
            await over_a_socket(served)
            await kept(served)
            await served.gateway.presence.beat()
            page = await get(served, "/metrics")
            written = in_redis(redis_url)  # while everything is there
        written += in_redis(redis_url)  # and when all has been written
        spans = b"".join(request.SerializeToString() for request in collector.requests)
    # It was sent, it worked, and there is something to search.
    assert statuses.count(200) >= 12
    assert statuses.count(400) >= 6
    assert len(collector.spans) > 100
    lines = logged.getvalue()
    assert lines.count('"turn ended"') >= 12
    assert lines.count("request arrived") >= 12  # the engine's
    assert b"rh1:resp:" in written
    assert b"roundhouse_turns_total" in page
    for place, found in {"logs": lines.encode(), "metrics": page, "redis": written}.items():
        assert not traces_of(WORD, found), place
        assert not traces_of(KEY, found), place
    # A span names the model that was asked for, known or not: no place for anything else that a client writes.
    named = spans.replace(b"gen_ai.request.model\x12\x10\n\x0e" + WORD.encode(), b"")
    assert not traces_of(WORD, named)
    assert not traces_of(KEY, named)


def test_the_search_would_find_it() -> None:
    for spelled in (WORD, WORD.upper(), WORD.encode().hex(), base64.b64encode(f"x{WORD}".encode()).decode()):
        assert traces_of(WORD, f"... {spelled} ...".encode())
    assert not traces_of(WORD, b"zanzibar quokka")


def traces_of(word: str, found: bytes) -> list[bytes]:
    """Places where the word stands, in plain or in one of the usual encodings."""
    encoded = [word.encode().hex()]
    for shift in range(3):
        text = base64.b64encode(b"x" * shift + word.encode()).decode()
        encoded.append(text[4:-4])  # without what depends on the neighbours
    low = found.lower()
    places = [low.find(word.encode()), *(found.find(each.encode()) for each in encoded)]
    return [found[max(0, place - 200) : place + 100] for place in places if place >= 0]


async def over_http(served: Served) -> list[int]:
    statuses = []
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=served.url, verify=False, timeout=60) as client:
        for path, body in REQUESTS:
            for _ in range(2):  # the second one may come from the cache
                answer = await client.post(path, json=body, headers=headers)
                statuses.append(answer.status_code)
        for path in ("/v1/responses", "/v1/chat/completions", "/v1/completions"):
            statuses.append((await client.post(path, content=f'{{"input": "{WORD}', headers=headers)).status_code)
            statuses.append((await client.post(path, content=json.dumps(WORD), headers=headers)).status_code)
        await client.get(f"/v1/responses/resp_{WORD}?stream=true&starting_after={WORD}", headers=headers)
        await client.post(f"/v1/responses/{WORD}/cancel", headers=headers)
        await client.get(f"/{WORD}?{WORD}={WORD}")
        await client.get("/v1/models", headers={"authorization": f"Bearer {WORD}", "user-agent": WORD, "cookie": WORD})
        first = await client.post("/v1/responses", json={**SMALL, "input": WORD}, headers=headers)
        follow = {**SMALL, "input": f"And the other {WORD}?", "previous_response_id": first.json()["id"]}
        statuses.append((await client.post("/v1/responses", json=follow, headers=headers)).status_code)
    return statuses


async def kept(served: Served) -> None:
    """A comment, an answer in the response cache, a conversation of the chat page, a shared prompt, files, and a batch
    with its results."""
    client = served.client
    rated = await client.responses.create(model="small", input=WORD, max_output_tokens=4)
    feedback: Any = {"rating": "down", "comment": WORD}
    assert (await client.post(f"/responses/{rated.id}/feedback", body=feedback, cast_to=dict))["comment"] == WORD
    asked: Any = {**CHAT, "messages": SAID, "temperature": 0, "max_tokens": 40}
    asked["extra_body"] = {"structured_outputs": {"choice": [WORD]}}
    for outcome in ("miss", "hit"):
        answer = await client.chat.completions.with_raw_response.create(**asked)
        assert answer.headers["x-roundhouse-cache"] == outcome
        assert answer.parse().choices[0].message.content == WORD
    turn = {"id": WORD, "question": WORD, "text": WORD, "data": {WORD: WORD}}
    chat = {"title": WORD, "updated_ms": 1, "folder": WORD, "leaf": WORD, "settings": {WORD: WORD}, "turns": [turn]}
    key = await key_of(served.gateway, "ann", scopes=("chat", "admin:write"))
    headers = {"authorization": f"Bearer {key}", "if-none-match": "*"}
    async with httpx2.AsyncClient(base_url=served.url, verify=False, timeout=60, headers=headers) as ann:
        assert (await ann.post("/v1/chats/c1", json=chat)).status_code == 200
        found = await ann.post("/v1/chats/search", json={"query": WORD})
        assert [each["title"] for each in found.json()["data"]] == [WORD]
        prompt = {"name": WORD, "text": WORD}
        made = await ann.post("/v1/prompts", json=prompt)
        match = {"if-match": made.headers["etag"]}
        assert (await ann.post(f"/v1/prompts/{WORD}", json=prompt, headers=match)).status_code == 404
        assert (await ann.get(f"/v1/prompts/{made.json()['id']}")).json()["text"] == WORD
    batch = await ended(client, await begun(client, [line(WORD)], metadata={"note": WORD}))
    assert (await results(client, batch.output_file_id)).keys() == {WORD}


async def over_a_socket(served: Served) -> None:
    async with served.connect() as socket:
        for path, body in REQUESTS:
            if path == "/v1/responses":
                await send(socket, type="response.create", **{"stream_id": "lane", **body, "stream": True})
                await until_end(lambda: receive(socket))
        await send(socket, type=WORD)
        await send(socket, type="response.cancel", response_id=WORD)
        await send(socket, type="response.resume", response_id=WORD)
        for _ in range(3):
            await receive(socket)
        try:
            for _ in range(10):  # until it is told to go
                await socket.send(f'{{"type": "response.create", "input": "{WORD}')
                await receive(socket)
        except ConnectionClosed:
            pass


async def get(served: Served, path: str) -> bytes:
    async with httpx2.AsyncClient(base_url=served.url, verify=False) as client:
        return (await client.get(path)).content


def in_redis(url: str) -> bytes:
    """Every key and every value."""
    parts: list[bytes] = []
    with Redis.from_url(url) as client:
        for key in client.scan_iter(count=1000):
            parts.append(key)
            match client.type(key):
                case b"string":
                    parts.append(client.get(key) or b"")
                case b"hash":
                    parts += [each for pair in client.hgetall(key).items() for each in pair]
                case b"list":
                    parts += client.lrange(key, 0, -1)
                case b"set":
                    parts += client.smembers(key)
                case b"zset":
                    parts += client.zrange(key, 0, -1)
                case b"stream":
                    for _, fields in client.xrange(key):
                        parts += [each for pair in fields.items() for each in pair]
                case b"none":
                    pass  # its time has come
                case other:
                    raise AssertionError(f"{key!r} is a {other!r}")
    return b"\n".join(parts)
