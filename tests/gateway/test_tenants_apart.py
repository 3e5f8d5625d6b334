"""No public endpoint tells one tenant anything of another's: made from the application's routes.

What a stranger hears of something that another tenant has is what it hears of something that never was, byte for byte
but for what is its own: ids, times and what is left of its limits. An endpoint that is added fails here until it has a
case. The admin API has a suite of its own in `tests/gateway/admin/test_cross_tenant.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import redis
from starlette.routing import Route, WebSocketRoute
from websockets.exceptions import InvalidStatus

from engine.adapters.registry import AdapterRegistry
from engine.text.processor import TextProcessor
from gateway.app import create_app
from gateway.config.settings import demo_settings
from gateway.protocol.prompts import PromptWrite
from gateway.turns.prompts import new_id
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.attempts import Attempt, client, invented, over_a_socket, over_http, without_own, written
from tests.gateway.batches import use
from tests.gateway.conftest import KEY, EngineThread, Serve, Served, eventually
from tests.gateway.engines.test_adapters import OTHER_KEY, TENANTS
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.sockets import ask
from tests.gateway.tenant_cases import ASK, CASES
from tests.gateway.turns.test_across_gateways import started, two

pytestmark = pytest.mark.anyio

CANARY = "canary7f3a"
"""In everything that demo, the tenant that has something, writes and is answered."""
PAGE = "https://page.example"
"""Where demo got its tickets."""
OTHER_PAGE = "https://other.example"

OPEN = ("", "api/version", "health", "healthz", "metrics", "readyz", "ui/config.json", "v1/openapi.json", "version")
PAGES = ("s/{share_id}", "service-worker.js")
SIGN_IN = ("callback", "link", "methods", "sign-in", "sign-in/{name}")
FOR_EVERYBODY = (
    {f"GET /{path}" for path in OPEN + PAGES} | {f"GET /auth/{path}" for path in SIGN_IN} | {"POST /auth/sign-out"}
)
"""Endpoints that ask for no key, and therefore show nothing of a tenant but to a browser that has signed in there."""


MOUNTS = ("/admin", "/auth/static", "/s/static", "/static")
"""The admin API, see above; and files."""


def endpoints() -> set[str]:
    found = set()
    for route in create_app(demo_settings()).routes:
        if isinstance(route, WebSocketRoute):
            found.add(f"WS {route.path}")
        elif isinstance(route, Route):
            found |= {f"{method} {route.path}" for method in (route.methods or ()) if method != "HEAD"}
        else:
            assert getattr(route, "path", None) in MOUNTS, route
    return found


def test_every_endpoint_has_a_case() -> None:
    """A new one that names a tenant's things, or could show them, is to be tried below."""
    assert endpoints() == CASES.keys() | FOR_EVERYBODY


@dataclass
class World:
    """Where demo has something of everything; a stranger may come to another gateway than the one it was made at."""

    home: Served
    stranger: Served
    names: dict[str, list[str]]
    """What demo has, by kind."""
    keys: Iterator[str]
    """Its idempotency keys: with the first use of one, the stranger has one of that name too."""

    def of(self, kind: str) -> list[str]:
        return [next(self.keys)] if kind == "idempotency key" else self.names[kind]

    @property
    def all_names(self) -> list[str]:
        return [name for names in self.names.values() for name in names]


@pytest.fixture
async def frames(model: Path) -> AsyncIterator[dict[str, FrameEngine]]:
    """An engine that says the canary, to demo, and one for everybody."""
    text = TextProcessor.from_path(model)
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # socket paths are short
        large, small = (
            FrameEngine(Path(folder) / f"{name}.sock", defaultdict(lambda: text.encode("x")[-1]))
            for name in ("large", "small")
        )
        large.script = lambda request: [[token] for token in text.encode(CANARY)]
        async with large.serving(), small.serving():
            yield {"large": large, "small": small}
            large.gate.set()


@contextlib.asynccontextmanager
async def world(
    serve: Serve, frames: dict[str, FrameEngine], registry: AdapterRegistry, version: str, *, elsewhere: bool
) -> AsyncIterator[World]:
    for name in ("secret-tone", "secret-sold"):
        registry.point(name, version, model="tiny-large", tenants=("demo",), description=CANARY)
    registry.edit("secret-sold", lambda pointer: msgspec.structs.replace(pointer, drained=True))
    changes: dict[str, Any] = {
        "engines": {tier: [engine.address] for tier, engine in frames.items()},
        "tenants": TENANTS,
        "server": {"allowed_origins": [PAGE, OTHER_PAGE], "failed_keys_per_minute": 10_000},
    }
    async with contextlib.AsyncExitStack() as stack:
        if elsewhere:
            home, stranger = await stack.enter_async_context(two(serve, **changes))
        else:
            home = stranger = await stack.enter_async_context(serve(**changes))
        for served in (home, stranger):
            await eventually(lambda s=served: "secret-tone" in s.gateway.adapters.visible("demo"))  # type: ignore[misc]
        socket = await stack.enter_async_context(home.connect())
        asked = {"model": "secret-tone", "instructions": CANARY, "metadata": {"note": CANARY}, "user": CANARY}
        ended = await ask(socket, CANARY, **asked, idempotency_key="key-0000")
        unstored = await ask(socket, CANARY, **asked, store=False)
        for number in range(1, 5):
            headers = {"idempotency-key": f"key-000{number}"}
            response = await home.client.responses.create(model="tiny-large", input=CANARY, extra_headers=headers)
            assert response.output_text == CANARY
        client = home.client
        file = await use.uploaded(client, use.jsonl([use.line(CANARY, model="tiny-large")]), f"{CANARY}.jsonl")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"note": CANARY}
        )
        batch = await use.ended(client, batch)
        assert batch.output_file_id is not None
        frames["large"].gate.clear()
        running = await started(socket, text=CANARY, **asked)
        while CANARY not in (await home.client.responses.retrieve(running)).output_text:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        ids = [running, *(events[-1]["response"]["id"] for events in (ended, unstored)), response.id]
        tickets = [await ticket(home, KEY) for _ in range(4)]
        said: Any = [{"role": "user", "content": CANARY}]
        conversation = (await home.client.conversations.create(items=said, metadata={"note": CANARY})).id
        [item] = (await home.client.conversations.items.list(conversation)).data
        names = {
            "response": ids,
            "conversation": [conversation],
            "item": [f"{conversation}/items/{item.id}"],
            "model": ["secret-tone", "secret-sold"],
            "ticket": tickets,
        }
        prompt = await home.gateway.prompts.create("demo", new_id(), PromptWrite(CANARY, CANARY))
        names |= {"file": [file.id, batch.output_file_id], "batch": [batch.id], "prompt": [prompt.id]}
        yield World(home, stranger, names, iter([f"key-000{number}" for number in range(5)]))


async def ticket(served: Served, key: str) -> str:
    issued = await served.client.with_options(api_key=key).post(
        "/tickets", cast_to=dict[str, Any], options={"headers": {"origin": PAGE}}
    )
    return str(issued["ticket"])


@pytest.fixture
def registry(tmp_path: Path) -> AdapterRegistry:
    return AdapterRegistry(str(tmp_path / "adapters"))


@pytest.fixture
def version(registry: AdapterRegistry, model: Path, tmp_path: Path) -> str:
    return registry.add(write_adapter(tmp_path / "adapter", model, "only q_proj", seed=1), model).version


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "at another gateway"])
async def test_what_is_anothers_looks_as_if_it_had_never_been(
    serve: Serve, frames: dict[str, FrameEngine], registry: AdapterRegistry, version: str, elsewhere: bool
) -> None:
    """And it is the same afterwards, and runs on."""
    async with world(serve, frames, registry, version, elsewhere=elsewhere) as has:
        before = await belongings(has)
        async with client(has.stranger, OTHER_KEY) as other:
            for endpoint, attempt in attempts("http"):
                for name in has.of(attempt.kind):
                    heard, never = [
                        without_own(await over_http(other, endpoint, attempt, each), each)
                        for each in (name, invented(name))
                    ]
                    assert heard == never, (endpoint, attempt, name)
                    assert_nothing_of_demos(heard, has)
        for options in ways_in(await ticket(has.stranger, OTHER_KEY)):
            async with has.stranger.connect(**options) as socket:
                assert_nothing_of_demos(str(socket.response and socket.response.headers), has)
                for _, attempt in attempts("ws"):
                    for name in has.of(attempt.kind):
                        heard, never = [
                            without_own(await over_a_socket(socket, attempt, each), each)
                            for each in (name, invented(name))
                        ]
                        assert heard == never, (options, attempt, name)
                        assert_nothing_of_demos(heard, has)
        assert await belongings(has) == before


async def test_its_own_tenant_is_told(
    serve: Serve, frames: dict[str, FrameEngine], registry: AdapterRegistry, version: str
) -> None:
    """The same requests, by whoever has these things: that a stranger hears nothing is no accident."""
    async with world(serve, frames, registry, version, elsewhere=False) as has:
        frames["large"].gate.set()
        async with client(has.home, KEY) as own, has.home.connect() as socket:
            for endpoint, attempt in [
                *attempts("ws"),
                *sorted(attempts("http"), key=lambda each: each[0][:3] == "DEL"),
            ]:
                if attempt.kind == "ticket" or (attempt.body or {}).get("type") == "response.cancel":
                    continue  # is no key for anybody; says nothing if it works
                for name in has.of(attempt.kind):
                    told, never = [
                        await (
                            over_a_socket(socket, attempt, each)
                            if endpoint.startswith("WS ")
                            else over_http(own, endpoint, attempt, each)
                        )
                        for each in (name, invented(name))
                    ]
                    assert without_own(told, name) != without_own(never, name), (endpoint, attempt, name)


async def test_a_ticket_of_another_origin_looks_as_if_it_had_never_been(
    serve: Serve, frames: dict[str, FrameEngine], registry: AdapterRegistry, version: str
) -> None:
    """It is lost when somebody tries it elsewhere, and a key offered beside it does not help."""
    async with world(serve, frames, registry, version, elsewhere=False) as has:
        one, *rest = has.names["ticket"]
        places: list[dict[str, Any]] = [
            {"origin": None},
            {"origin": OTHER_PAGE},
            {"origin": OTHER_PAGE, "key": OTHER_KEY},
        ]
        for lost, place in zip(rest, places, strict=True):
            for options in (place, {"origin": PAGE}):
                heard, never = [
                    without_own(await knock(has.home, each, **options), each) for each in (lost, invented(lost))
                ]
                assert heard == never, options
                assert heard.startswith("401")
        assert await knock(has.home, one, origin=PAGE) == "welcome"


async def test_what_needs_no_key_shows_nothing_of_a_tenant(
    serve: Serve, frames: dict[str, FrameEngine], registry: AdapterRegistry, version: str
) -> None:
    async with world(serve, frames, registry, version, elsewhere=False) as has, client(has.home, None) as nobody:
        for endpoint in sorted(FOR_EVERYBODY):
            method, path = endpoint.replace("{name}", "idp").split(" ")
            response = await nobody.request(method, path)
            assert response.status_code < 500 if path.startswith("/auth/") else response.status_code == 200
            said = written(response.status_code, response.headers, response.content)
            for word in (CANARY, KEY, *has.all_names):
                assert word not in said, endpoint


async def test_an_idempotency_key_is_its_callers(serve: Serve) -> None:
    """The same key with the same body, by two tenants: two turns."""
    async with serve(tenants=TENANTS) as served:
        said = []
        for key in (KEY, OTHER_KEY):
            async with client(served, key) as http, served.connect(key) as socket:
                for _ in range(2):
                    response = await http.post("/v1/responses", json=ASK, headers={"idempotency-key": "k"})
                    events = await ask(socket, model="small", max_output_tokens=2, idempotency_key="k2")
                    said.append((response.json()["id"], events[-1]["response"]["id"]))
    assert said[0] == said[1]
    assert said[2] == said[3]
    assert not {*said[0]} & {*said[2]}


async def test_what_others_did_changes_nothing(serve: Serve, model: Path, redis_url: str) -> None:
    """Cached answers, cached prefixes and limits: a tenant hears the same whether another asked before it or not."""
    heard = []
    for busy in (False, True):
        with EngineThread(model) as engine, redis.Redis.from_url(redis_url) as kept:
            kept.flushall()
            limits = {"requests_per_minute": 20}
            async with serve(engines={"small": [engine.address]}, tenants=TENANTS, limits=limits) as served:
                if busy:
                    first, again = [await questions(served, KEY) for _ in range(2)]
                    assert "x-roundhouse-cache: hit" not in first
                    assert "x-roundhouse-cache: hit" in again
                    assert re.search(r'"cached_tokens":[1-9]', again)
                    async with client(served, KEY) as own:
                        while (await own.post("/v1/responses", json=ASK)).status_code != 429:
                            pass
                heard.append(await questions(served, OTHER_KEY))
    assert heard[0] == heard[1]
    assert "x-ratelimit-remaining-requests: 19\n" in heard[0]


LONG = "The quick brown fox jumps over the lazy dog. " * 8
CHOICE = {"messages": [{"role": "user", "content": LONG}], "structured_outputs": {"choice": ["a"]}}
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "small", "temperature": 0, **CHOICE}),
    ("/v1/responses", {**ASK, "input": LONG, "temperature": 0}),
    ("/v1/responses", {**ASK, "input": LONG, "temperature": 0, "stream": True}),
    ("/v1/completions", {"model": "small", "prompt": LONG, "max_tokens": 2, "temperature": 0}),
]


async def questions(served: Served, key: str) -> str:
    """Everything that is answered; of the first answer also what is left of the limits."""
    said = ""
    async with client(served, key) as asking, served.connect(key) as socket:
        for path, body in QUESTIONS:
            response = await asking.post(path, json=body)
            assert response.status_code == 200, response.text
            answer = written(response.status_code, response.headers, response.content)
            left = re.findall("x-ratelimit-remaining-requests: .*\n", answer) if not said else []
            said += "".join(left) + without_own(answer)
        event = {"type": "response.create", **ASK, "input": LONG, "temperature": 0}
        said += without_own(await over_a_socket(socket, Attempt("", event), ""))
    await served.settle()
    return said


async def belongings(has: World) -> list[Any]:
    """What demo sees of its own."""
    async with client(has.home, KEY) as own:
        paths = [f"/v1/responses/{id}{more}" for id in has.names["response"] for more in ("", "/input_items")]
        paths += [f"/v1/conversations/{id}{more}" for id in has.names["conversation"] for more in ("", "/items")]
        paths += [f"/v1/files/{id}/content" for id in has.names["file"]]
        paths += [f"/v1/batches/{id}" for id in has.names["batch"]]
        found = [await own.get(path) for path in (*paths, "/v1/files", "/v1/models")]
    assert {response.status_code for response in found} == {200}
    assert all(CANARY in response.text for response in found)
    assert found[0].json()["status"] == "in_progress"
    return [response.json() for response in found]


def attempts(protocol: Literal["http", "ws"]) -> list[tuple[str, Attempt]]:
    return [
        (endpoint, attempt)
        for endpoint, cases in CASES.items()
        for attempt in cases
        if endpoint.startswith("WS ") == (protocol == "ws")
    ]


def ways_in(ticket: str) -> list[dict[str, Any]]:
    """Both codecs, and a page's way."""
    return [
        {"key": OTHER_KEY},
        {"key": OTHER_KEY, "subprotocols": ["roundhouse.msgpack"]},
        {"key": None, "origin": PAGE, "subprotocols": ["roundhouse.json", f"roundhouse.ticket.{ticket}"]},
    ]


async def knock(served: Served, ticket: str, *, origin: str | None, key: str | None = None) -> str:
    """What somebody hears who offers a ticket."""
    subprotocols: Any = ["roundhouse.json", f"roundhouse.ticket.{ticket}"]
    try:
        async with served.connect(key, origin=origin, subprotocols=subprotocols):
            return "welcome"
    except InvalidStatus as refused:
        response = refused.response
        return written(response.status_code, dict(response.headers.raw_items()), bytes(response.body or b""))


def assert_nothing_of_demos(heard: str, has: World) -> None:
    """Neither text nor names."""
    for word in (CANARY, KEY, "demo", *has.all_names):
        assert word not in heard, heard
