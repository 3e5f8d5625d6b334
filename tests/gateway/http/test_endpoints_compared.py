"""The table of docs/api.md that says what each endpoint supports: every cell is asked of a gateway."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.adapters.registry import AdapterRegistry
from engine.text.processor import TextProcessor
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.conftest import KEY, Serve, Served, eventually, receive, send, until_end
from tests.gateway.frame_engine import FrameEngine

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
TEXT = "hello"
USER = {"role": "user", "content": TEXT}
IMAGE = "data:image/png;base64,eA=="
SCHEMA = {"type": "object"}
FUNCTION = {"name": "roll", "parameters": SCHEMA}
NESTED = [{"type": "function", "function": FUNCTION}]
STREAMED = "streaming"
CONTINUED = "a conversation goes on by the id of a response"
REPEATED = "an idempotency key"
CANCELLED = "cancelled, and resumed, by id"
OF_RESPONSES = {
    STREAMED: {"stream": True},
    "tools": {"tools": [{"type": "function", **FUNCTION}]},
    "structured output": {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    "log-probabilities": {"include": ["message.output_text.logprobs"]},
    "several answers (`n`)": {"n": 2},
    "images": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}]},
}
OF_OLLAMA: dict[str, dict[str, Any]] = {
    STREAMED: {"stream": True},
    "tools": {"tools": NESTED},
    "structured output": {"format": SCHEMA},
    "log-probabilities": {"logprobs": True},
    "several answers (`n`)": {"options": {"n": 2}},
}
ENDPOINTS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "WS /v1/responses": ({"input": TEXT}, OF_RESPONSES),
    "/v1/responses": ({"input": TEXT}, OF_RESPONSES),
    "/v1/chat/completions": (
        {"messages": [USER]},
        {
            STREAMED: {"stream": True},
            "tools": {"tools": NESTED},
            "structured output": {
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
            },
            "log-probabilities": {"logprobs": True},
            "several answers (`n`)": {"n": 2},
            "images": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}]},
        },
    ),
    "/v1/completions": (
        {"prompt": TEXT},
        {
            STREAMED: {"stream": True},
            "tools": {"tools": NESTED},
            "structured output": {"structured_outputs": {"json": SCHEMA}},
            "log-probabilities": {"logprobs": 1},
            "several answers (`n`)": {"n": 2},
            "images": {"images": [IMAGE]},
        },
    ),
    "/v1/messages": (
        {"messages": [USER], "max_tokens": 8},
        {
            STREAMED: {"stream": True},
            "tools": {"tools": [{"name": "roll", "input_schema": SCHEMA}]},
            "structured output": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "log-probabilities": {"logprobs": True},
            "several answers (`n`)": {"n": 2},
            "images": {
                "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": IMAGE}}]}]
            },
        },
    ),
    "/api/chat": (
        {"messages": [USER], "stream": False},
        OF_OLLAMA | {"images": {"messages": [{**USER, "images": ["eA=="]}]}},
    ),
    "/api/generate": ({"prompt": TEXT, "stream": False}, OF_OLLAMA | {"images": {"images": ["eA=="]}}),
}
"""By endpoint, what is answered, and what asks for each feature beside."""

Answered = tuple[bool, str]
"""Whether a request was answered, and the id of the answer, if it has one."""


def posting(served: Served, path: str) -> Callable[..., Awaitable[Answered]]:
    async def post(body: dict[str, Any], key: str | None = None) -> Answered:
        headers = {"authorization": f"Bearer {KEY}"} | ({"idempotency-key": key} if key else {})
        async with httpx2.AsyncClient(headers=headers, verify=False) as client:
            response = await client.post(f"{served.url}{path}", json=body)
        whole = response.headers["content-type"] == "application/json"
        return response.status_code == 200, (response.json().get("id") or "") if whole else ""

    return post


def sending(served: Served) -> Callable[..., Awaitable[Answered]]:
    async def over_socket(body: dict[str, Any], key: str | None = None) -> Answered:
        async with served.connect(events=False) as socket:
            await send(socket, type="response.create", **body, **({"idempotency_key": key} if key else {}))
            events = await until_end(lambda: receive(socket))
        last = events[-1]
        return last["type"] != "error", last["response"]["id"] if "response" in last else ""

    return over_socket


def turns(served: Served) -> float:
    """How many turns the gateway has had."""
    families = served.gateway.metrics.registry.collect()
    return sum(
        sample.value for family in families for sample in family.samples if sample.name == "roundhouse_turns_total"
    )


async def column(served: Served, endpoint: str) -> dict[str, bool]:
    """Which features an endpoint has."""
    body, features = ENDPOINTS[endpoint]
    body = {"model": "small", **body}
    asking = sending(served) if endpoint.startswith("WS") else posting(served, endpoint)
    answered, id = await asking(body)
    assert answered
    found = {name: (await asking(body | change))[0] for name, change in features.items() if name != "images"}
    found["LoRA adapters"] = (await asking(body | {"model": "pirate"}))[0]
    found[CONTINUED] = (await asking(body | {"previous_response_id": id or "none"}))[0]
    before = turns(served)
    for _ in range(2):
        assert (await asking(body, endpoint))[0]
    found[REPEATED] = turns(served) - before == 1
    found[CANCELLED] = (await posting(served, f"/v1/responses/{id or 'none'}/cancel")({}))[0]
    found["images"] = (await asking(body | features["images"]))[0]
    return found


async def test_the_page_says_what_each_endpoint_supports(serve: Serve, model: Path, tmp_path: Path) -> None:
    registry = AdapterRegistry(str(tmp_path / "adapters"))
    version = registry.add(write_adapter(tmp_path / "adapter", model, "only q_proj", seed=1), model).version
    registry.point("pirate", version, model="tiny-small", tenants=("demo",))
    letter = TextProcessor.from_path(model).encode("a")[-1]
    engine = FrameEngine(tmp_path / "engine.sock", defaultdict(lambda: letter))
    engine.script = lambda request: [[letter], [letter]]
    async with engine.serving(), serve(engines={"small": [engine.address]}) as served:
        await eventually(lambda: "pirate" in served.gateway.adapters.visible("demo"))
        columns = {endpoint: await column(served, endpoint) for endpoint in ENDPOINTS}
        await served.settle()
    rows = ["| | " + " | ".join(f"`{endpoint}`" for endpoint in ENDPOINTS) + " |", "|---" * (len(ENDPOINTS) + 1) + "|"]
    for feature in columns["/v1/responses"]:
        cells = ("yes" if found[feature] else "-" for found in columns.values())
        rows.append(f"| {feature} | {' | '.join(cells)} |")
    assert "\n".join(rows) in PAGE.read_text("utf-8")
