"""The OpenAPI description of `/v1`: valid, complete, and true for whatever a client sends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import httpx2
import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from gateway.access.identity import Scope
from gateway.app import create_app
from gateway.batches import worker
from gateway.config.chat import ChatSettings
from gateway.config.settings import demo_settings
from gateway.http.openapi import document
from gateway.http.operations import OPERATIONS, Operation
from tests.gateway.conftest import Serve
from tests.gateway.people import key_of
from tests.gateway.thread import ServingThread

USER = [{"role": "user", "content": "hello"}]
CHAT = {"model": "small", "messages": USER, "max_tokens": 2}
PROMPT = {"name": "Brief", "text": "Answer {{question}} in one word."}
SCOPES: tuple[Scope, ...] = ("chat", "models", "adapters", "admin:write")
BODIES: dict[str, dict[str, Any]] = {
    "create_response": {"model": "small", "input": "hello", "max_output_tokens": 2},
    "rate_response": {"rating": "up"},
    "count_input_tokens": {"model": "small", "input": "hello"},
    "compact_response": {"model": "small", "input": "hello", "max_output_tokens": 8},
    "create_conversation": {"items": USER},
    "update_conversation": {"metadata": {"a": "b"}},
    "create_items": {"items": USER},
    "search_chats": {"query": "hello"},
    "create_share": {"ciphertext": "aGVsbG8="},
    "write_chat": {"title": "hello", "updated_ms": 0},
    "create_prompt": PROMPT,
    "change_prompt": PROMPT,
    "create_chat_completion": CHAT,
    "create_completion": {"model": "small", "prompt": "hello", "max_tokens": 2},
    "create_message": CHAT,
    "count_tokens": {"model": "small", "messages": USER},
    "create_embeddings": {"model": "small", "input": "hello"},
    "create_batch": {"endpoint": "/v1/responses", "completion_window": "24h"},
}
"""By operation, what is answered."""
ANY = {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_sequences", "logit_bias", "stream", "logprobs"}
"""Parameters of such bodies that may have any valid value."""


def test_it_is_valid() -> None:
    """OpenAPI 3.1, by somebody else's validator."""
    assert list(OpenAPIV31SpecValidator(document()).iter_errors()) == []


def test_every_path_is_in_it() -> None:
    """With all of its methods, each under a name of its own."""
    routes = [route for route in create_app(demo_settings()).routes if isinstance(route, Route)]
    served = {
        (method.lower(), re.sub(r":\w+}", "}", route.path).removesuffix("/"))
        for route in routes
        if route.path.startswith("/v1/")
        for method in route.methods or ()
        if method != "HEAD"
    }
    described = [(operation.method, operation.path) for operation in OPERATIONS]
    assert {*described, ("get", "/v1/openapi.json")} == served
    assert len({operation.name for operation in OPERATIONS}) == len(set(described)) == len(described)


def check(operation: Operation, response: httpx2.Response) -> None:
    """Check that a JSON answer is as described."""
    described = document()["paths"][operation.path][operation.method]["responses"][str(response.status_code)]
    schema = described["content"]["application/json"]["schema"]
    jsonschema.validate(response.json(), {**schema, "components": document()["components"]})


@pytest.mark.anyio
async def test_answers_are_as_described(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them but embeddings, of which there is no model here; and it is served to everybody."""
    monkeypatch.setattr(worker, "TICK", 3600)  # no batch has ended when it is cancelled
    chat = ChatSettings(history="server")
    async with serve(chat=chat) as served, httpx2.AsyncClient(base_url=served.url, verify=False) as client:
        assert (await client.get("/v1/openapi.json")).json() == document()
        key = await key_of(served.gateway, "ann", scopes=SCOPES)
        client.headers |= {"authorization": f"Bearer {key}", "if-none-match": "*"}
        ids, etags = {"chat_id": "c1"}, dict[str, str]()
        upload = {"files": {"file": ("a", b"{}")}, "data": {"purpose": "batch"}}
        makes = {
            "create_response": "responses",
            "create_file": "files",
            "create_batch": "batches",
            "create_conversation": "conversation_id",
            "create_items": "item_id",
            "create_share": "share_id",
            "create_prompt": "prompt_id",
        }
        for operation in sorted(OPERATIONS, key=lambda operation: operation.method == "delete"):
            kind = operation.path.split("/")[2]
            path = operation.path.format(model="small", id=ids.get(kind), **ids)
            body: dict[str, Any] = {"json": BODIES.get(operation.name)}
            if operation.name == "create_batch":
                body["json"] = {**BODIES[operation.name], "input_file_id": ids["files"]}
            if operation.name in ("change_prompt", "delete_prompt"):
                body["headers"] = {"if-match": etags[path]}
            response = await client.request(
                operation.method.upper(), path, **(upload if operation.form is not None else body)
            )
            etags[path] = response.headers.get("etag", "")
            assert response.status_code == (404 if operation.name == "create_embeddings" else operation.status)
            if operation.answer is not None:
                check(operation, response)
            if operation.name in makes:
                made = response.json()
                ids[makes[operation.name]] = made.get("first_id") or made["id"]
        await served.settle()


class Ann(NamedTuple):
    """A user of a gateway, who has a conversation and shares it."""

    url: str
    key: str
    ids: dict[str, str]
    """By parameter of a path, of what she has."""


@pytest.fixture
def ann(serve: Serve, unsignalled: None) -> Iterator[Ann]:
    """A gateway whose answers are short, for clients which block, and may send any number of wrong keys."""

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[Ann]:
        options: Any = {"turns": {"default_max_output_tokens": 4}, "server": {"failed_keys_per_minute": 1_000_000}}
        async with serve(**options, chat=ChatSettings(history="server")) as served:
            key = await key_of(served.gateway, "ann", scopes=SCOPES)
            headers = {"authorization": f"Bearer {key}", "if-none-match": "*"}
            async with httpx2.AsyncClient(base_url=served.base_url, headers=headers, verify=False) as client:
                assert (await client.post("/chats/c1", json=BODIES["write_chat"])).status_code == 200
                share = await client.post("/shares", json=BODIES["create_share"])
                prompt = await client.post("/prompts", json=PROMPT)
            ids = {"chat_id": "c1", "share_id": share.json()["id"], "prompt_id": prompt.json()["id"]}
            yield Ann(served.url, key, ids)
            await served.settle()

    with ServingThread(serving) as ann:
        yield ann


@pytest.fixture(scope="module")
def schema() -> Any:
    from tests.gateway.schemathesis_cases import loaded

    return loaded(document())


@pytest.mark.parametrize("name", [operation.name for operation in OPERATIONS])
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")  # the engine's thread does
def test_it_tells_the_truth(schema: Any, name: str, ann: Ann) -> None:
    """Schemathesis' checks for whatever it makes up, valid and invalid: no 5xx, no answer that is not described, no
    invalid request accepted. Valid ones may be refused, by what a schema cannot say."""
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    from tests.gateway.schemathesis_cases import run_cases

    body = BODIES.get(name)

    def check(case: Any, session: Any) -> None:
        size = len(str((case.body, case.path_parameters)))
        if case.meta is not None and case.meta.generation.mode.is_positive:
            if body is not None and size % 4:
                kept = case.body if isinstance(case.body, dict) else {}
                case.body = {name: value for name, value in kept.items() if name in ANY} | body
            known = {name: ann.ids[name] for name in case.path_parameters or () if name in ann.ids}
            if size % 2:
                case.path_parameters = {**(case.path_parameters or {}), **known}
        condition = {"If-None-Match": "*"} if size % 3 else {"If-Match": '"1"'}
        case.call_and_validate(
            base_url=ann.url,
            session=session,
            headers={"Authorization": f"Bearer {ann.key}", **condition},
            excluded_checks=[positive_data_acceptance],
        )

    run_cases(schema, name, check)
