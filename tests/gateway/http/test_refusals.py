"""What the completion endpoints refuse, over a real socket: status, code, field; and nothing is left over."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx2
import openai
import pytest
from msgspec.structs import replace

from gateway.config.settings import demo_settings
from tests.engine.checkpoints import VOCABULARY
from tests.gateway.conftest import CONTEXT, KEY, EngineThread, Serve, Served
from tests.gateway.sockets import ask

pytestmark = pytest.mark.anyio

PATHS = {"chat/completions": "messages", "completions": "prompt"}
"""Endpoint -> the field that holds the prompt."""


def prompt_of(path: str, text: str = "hello") -> dict[str, Any]:
    """The prompt as the endpoint wants it."""
    return {"messages": [{"role": "user", "content": text}]} if path == "chat/completions" else {"prompt": text}


async def post(served: Served, path: str, content: Any, key: str | None = KEY) -> httpx2.Response:
    """Post bytes, or an object as JSON."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    # Plain HTTP: reading the system's certificates would take longer than the request.
    async with httpx2.AsyncClient(headers=headers, verify=False) as client:
        body = {"content": content} if isinstance(content, bytes) else {"json": content}
        return await client.post(f"{served.base_url}/{path}", **body)


def refused(response: httpx2.Response, status: int, code: str, param: str | None = None) -> str:
    """Check OpenAI's error shape; returns the message."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    message: str = body["error"]["message"]
    return message


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_is_no_json_object(serve: Serve, path: str) -> None:
    """Malformed JSON, invalid UTF-8, a lone surrogate, endless nesting, and JSON that is no object."""
    async with serve() as served:
        for content in (b"", b'{"model": ', b'{"user": "\xff\xfe"}', b'{"user": "\\ud800"}', b"[" * 100_000, b"[]"):
            refused(await post(served, path, content), 400, "invalid_json")
        await served.settle()


async def test_a_compressed_body(serve: Serve) -> None:
    """gzip is read, up to the same size as a plain body; nothing else is."""
    chat = "chat/completions"

    async def compressed(content: bytes, coding: str = "gzip") -> httpx2.Response:
        headers = {"authorization": f"Bearer {KEY}", "content-encoding": coding}
        async with httpx2.AsyncClient(headers=headers, verify=False) as client:
            return await client.post(f"{served.base_url}/{chat}", content=content)

    async with serve(server={"max_message_bytes": 2000}) as served:
        body = gzip.compress(json.dumps({**prompt_of(chat), "max_tokens": 1}).encode())
        assert (await compressed(body)).status_code == 200
        refused(await compressed(gzip.compress(b" " * 100_000)), 413, "request_too_large")
        for broken in (b"{}", body[:-9], body + body):
            refused(await compressed(broken), 400, "invalid_json")
        refused(await compressed(b"{}", "br"), 415, "unsupported_media_type", "content-encoding")
        await served.settle()


async def test_whoever_has_no_key_is_told_how_to_send_one(serve: Serve) -> None:
    """RFC 9110 wants the scheme in every 401."""
    async with serve() as served:
        for key in (None, "wrong"):
            response = await post(served, "chat/completions", prompt_of("chat/completions"), key)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


async def test_unknown_parameters_are_ignored_for_tenants_who_want_that(serve: Serve) -> None:
    """Those of no request, at every endpoint; what is known and not served is still refused."""
    (demo,) = demo_settings().tenants
    bodies = {path: prompt_of(path) for path in PATHS} | {"responses": {"input": "hello"}}
    async with serve(tenants=[replace(demo, unknown_parameters="ignore")]) as served:
        for path, body in bodies.items():
            asked = {
                **body,
                "num_ctx": 5,
                "think": True,
                "max_output_tokens" if path == "responses" else "max_tokens": 1,
            }
            assert (await post(served, path, asked)).status_code == 200
            wrong = {**asked, "roundhouse": {"cash": 1}}
            refused(await post(served, path, wrong), 400, "unknown_parameter", "roundhouse.cash")
        async with served.connect() as socket:
            events = await ask(socket, max_output_tokens=1, num_ctx=5)
            assert events[0]["type"] == "response.created"
    async with serve() as served:
        for path, body in bodies.items():
            refused(await post(served, path, {**body, "num_ctx": 5}), 400, "unknown_parameter", "num_ctx")


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_is_too_large(serve: Serve, path: str) -> None:
    """413, and the connection's next request is served."""
    async with serve(server={"max_message_bytes": 2000}) as served:
        message = refused(await post(served, path, prompt_of(path, "x" * 2000)), 413, "request_too_large")
        assert "2000" in message
        assert (await post(served, path, {**prompt_of(path), "max_tokens": 1})).status_code == 200
        await served.settle()


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_that_does_not_exist(serve: Serve, path: str) -> None:
    """404 with the names that do."""
    async with serve() as served:
        response = await post(served, path, {**prompt_of(path), "model": "gpt-9"})
        await served.settle()
    message = refused(response, 404, "model_not_found", "model")
    assert "'gpt-9'" in message
    assert "tiny-small" in message


@pytest.mark.parametrize("path", PATHS)
async def test_more_tokens_than_the_context_holds(serve: Serve, path: str) -> None:
    """Too long a prompt, or too high a limit: both figures are named, streamed or not."""
    async with serve() as served:
        for body in (
            {**prompt_of(path, "hello " * CONTEXT), "max_tokens": 1},
            {**prompt_of(path), "max_tokens": CONTEXT},
            {**prompt_of(path), "max_tokens": CONTEXT, "stream": True},
        ):
            response = await post(served, path, body)
            message = refused(response, 400, "context_length_exceeded", PATHS[path])
            assert message.startswith(f"This model's maximum context length is {CONTEXT} tokens")
            assert f"{body['max_tokens']} of output" in message
        await served.settle()


async def test_what_only_the_engine_knows_to_be_wrong(serve: Serve) -> None:
    """Token ids that its model does not have: 400 before a stream begins, and no failed turn."""
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("responses", {"input": "hello", "logit_bias": {"999999": 1}}),
        ("chat/completions", {**prompt_of("chat/completions"), "logit_bias": {"999999": 1}}),
        ("completions", {"prompt": [999_999]}),
    ]
    async with serve() as served:
        for path, body in bodies:
            for stream in (False, True):
                response = await post(served, path, {**body, "stream": stream})
                refused(response, 400, "invalid_request", "prompt" if "prompt" in body else "logit_bias")
        await served.settle()
        page = served.gateway.metrics.page().decode()
    assert 'roundhouse_turns_total{outcome="refused",tier=""} 6.0' in page
    assert 'outcome="failed"' not in page


async def test_outcomes_are_counted_from_zero(serve: Serve) -> None:
    """So that the first failure is a rise of a series, which an alert sees."""
    async with serve() as served, httpx2.AsyncClient(verify=False) as client:
        page = (await client.get(f"{served.url}/metrics")).text
    for outcome in ("completed", "incomplete", "blocked", "cancelled", "failed"):
        assert f'roundhouse_turns_total{{outcome="{outcome}",tier="small"}} 0.0' in page
    for outcome in ("refused", "unavailable"):
        assert f'roundhouse_turns_total{{outcome="{outcome}",tier=""}} 0.0' in page


@pytest.mark.parametrize("path", PATHS)
async def test_callers_without_a_valid_key(serve: Serve, path: str) -> None:
    """401, before the body is even looked at."""
    async with serve() as served:
        refused(await post(served, path, b"{", key=None), 401, "missing_api_key")
        refused(await post(served, path, b"{", key="wrong"), 401, "invalid_api_key")


@pytest.mark.parametrize("path", PATHS)
async def test_a_tenant_that_has_used_up_its_tokens(serve: Serve, path: str) -> None:
    """429 with `retry-after`; a request for several answers is refused whole."""
    async with serve(limits={"output_tokens_per_minute": 100}) as served:
        several = {**prompt_of(path), "max_tokens": 30, "n": 5, "ignore_eos": True}
        response = await post(served, path, several)
        refused(response, 429, "rate_limit_exceeded")
        assert int(response.headers["retry-after"]) > 0
        await served.settle()


async def test_what_the_engine_refuses_is_no_stream(serve: Serve) -> None:
    """Only the engine knows its vocabulary; the stream has not begun when it refuses, so the status is 400."""
    async with serve() as served:
        for stream in (False, True):
            body = {**prompt_of("completions"), "logit_bias": {"99999": 1}, "stream": stream}
            message = refused(await post(served, "completions", body), 400, "invalid_request", "logit_bias")
            assert f"0 to {VOCABULARY - 1}" in message
        refused(await post(served, "completions", {"prompt": [1, 99999]}), 400, "invalid_request", "prompt")
        await served.settle()


async def test_one_bad_prompt_refuses_its_batch(serve: Serve) -> None:
    """The other prompts' turns end too."""
    async with serve() as served:
        body = {"prompt": [[40], [41], [99999]], "max_tokens": 2000, "ignore_eos": True}
        refused(await post(served, "completions", body), 400, "invalid_request", "prompt")
        await served.settle()


async def test_an_engine_that_dies_before_the_first_token_is_a_503(serve: Serve, engine: EngineThread) -> None:
    """With a header that says when to try again."""
    async with serve() as served:
        await served.gateway.engines.aclose()
        response = await post(served, "chat/completions", {**prompt_of("chat/completions"), "stream": True})
        refused(response, 503, "unavailable")
        assert response.headers["retry-after"] == "2"


async def test_an_engine_that_dies_later_is_an_error_in_the_stream(serve: Serve) -> None:
    """The text so far stays valid; the client's iterator raises instead of ending."""
    async with serve(turns={"move_timeout": 0.1}) as served:
        body: Any = {**prompt_of("chat/completions"), "model": "small", "max_tokens": 3000}
        stream = await served.client.chat.completions.create(**body, stream=True, extra_body={"ignore_eos": True})
        with pytest.raises(openai.APIError) as caught:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    await served.gateway.engines.aclose()
        assert caught.value.code == "engine_failed"
        await served.settle()
