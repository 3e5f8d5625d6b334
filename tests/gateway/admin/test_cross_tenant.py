"""No endpoint lets an admin of one tenant see or change another's: made from the table of endpoints.

An endpoint that is added is tried here without anybody thinking of it. One whose path has a parameter that this file
does not know fails.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.text.processor import TextProcessor
from gateway.access.identity import Principal
from gateway.access.identity.browser_sessions import digest_of
from gateway.admin.app import API
from gateway.admin.call import Access
from gateway.admin.kit.endpoints import Endpoint
from gateway.config.chat import ChatSettings
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.admin.conftest import CHAT, Administer, Administered
from tests.gateway.admin.endpoints.conftest import finished, upload
from tests.gateway.frame_engine import FrameEngine

pytestmark = pytest.mark.anyio

CANARY = "canary-7f3a"
"""In every description of what is acme's."""


@pytest.fixture(scope="session")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("cross"), model, "only q_proj", seed=1)


@pytest.fixture
async def frames(tmp_path: Path, model: Path) -> AsyncIterator[FrameEngine]:
    token = TextProcessor.from_path(model).encode("a")[-1]
    async with FrameEngine(tmp_path / "one.sock", defaultdict(lambda: token)).serving() as engine:
        engine.finish = "stop"  # an answer that was cut off would not be stored
        yield engine


async def belongings(api: Administered, folder: Path) -> dict[str, str]:
    """One of everything that can belong to acme, by the names of parameters in paths."""
    said = {"description": CANARY}
    user = await api.acme.post("/tenants/acme/users", json={"subject": f"{CANARY}-subject", **said})
    key = await api.acme.post("/tenants/acme/keys", json={"user": user.json()["id"], **said})
    accepted = await upload(api.acme, folder, name="acme:pirate", **said)
    assert (await finished(api.acme, accepted))["state"] == "succeeded"
    await api.operator.post("/prices", json={"name": "tiny-small", "input": 1, "output": 1})
    targets = [{"model": "tiny-small", "weight": 1}]
    await api.acme.post("/routes", json={"name": "acme:assistant", "targets": targets, **said})
    async with api.client(CHAT) as chat:
        asked = await chat.post(
            f"{api.served.url}/v1/responses",
            json={"model": "small", "input": "hi", "max_output_tokens": 4},
            headers={"x-roundhouse-cache-tags": CANARY},
        )
        feedback = f"{api.served.url}/v1/responses/{asked.json()['id']}/feedback"
        rated = await chat.post(feedback, json={"rating": "up", "comment": CANARY})
        assert rated.status_code == 200, rated.text
    assert asked.headers["x-roundhouse-cache"] == "miss", asked.text
    await api.served.settle()
    turn = asked.json()["id"]
    shown = await api.acme.get(f"/turns/{turn}")
    while shown.status_code != 200:  # the ledger is written beside the turns
        shown = await api.acme.get(f"/turns/{turn}")
    (stored,) = (await api.acme.get("/tenants/acme/cache/answers")).json()["data"]
    assert stored["tags"] == [CANARY]
    signed_in = Principal("acme", "token:idp", f"{CANARY}-person")
    session, _ = await api.served.gateway.sign_in.sessions.begin(signed_in)
    return {
        "tenant": "acme",
        "session": digest_of(session),
        "user": user.json()["id"],
        "key": key.json()["record"]["id"],
        "adapter": "acme:pirate",
        "job": accepted.json()["id"],
        "digest": stored["digest"],
        "turn": turn,
        "pool": "small",
        "replica": "small-0",
        "public_name": "tiny-small",
        "route": "acme:assistant",
    }


async def call(client: httpx2.AsyncClient, endpoint: Endpoint, names: dict[str, str]) -> httpx2.Response:
    """The endpoint, asked for acme's."""
    path = re.sub(r"{(\w+)}", lambda match: names[match[1]], endpoint.path)
    options: dict[str, Any] = {"headers": {"if-match": "*"}}
    if endpoint.path == "/live":
        options["params"] = {"events": 1}
    if endpoint.body_type is not None:
        options["json"] = endpoint.example if endpoint.example is not None else {}
    return await client.request(endpoint.method, path, **options)


async def state(api: Administered) -> tuple[Any, ...]:
    """Everything that a change would change."""
    gateway = api.served.gateway
    adapters = {name: pointer for name, pointer in gateway.adapters.registry.names().items()}
    stored = (await api.acme.get("/tenants/acme/cache/answers")).json()["data"]
    return await gateway.directory.audit.head(), adapters, stored


async def test_nothing_of_another_tenant_is_shown_or_changed(
    administer: Administer, frames: FrameEngine, folder: Path
) -> None:
    """Every endpoint: 404 or 403, or an answer without a trace of the other's; and nothing is different afterwards."""
    chat = ChatSettings(comments=True)
    async with administer(engines={"small": [frames.address]}, chat=chat) as api:
        names = await belongings(api, folder)
        for client, told in ((api.acme, CANARY), (api.operator, None)):
            assert (await client.get(f"/turns/{names['turn']}")).json()["comment"] == told
        for endpoint in API.endpoints:
            # What its own admin or an operator may do works with the same request: the refusal below is no accident.
            if endpoint.method == "GET":
                client = api.operator if endpoint.access is Access.OPERATOR else api.acme
                allowed = await call(client, endpoint, names)
                assert allowed.status_code == 200, (endpoint.name, allowed.text)
        before = await state(api)
        for endpoint in API.endpoints:
            response = await call(api.other, endpoint, names)
            where = (endpoint.method, endpoint.path, response.status_code, response.text)
            if endpoint.access is Access.OPERATOR:
                assert response.status_code == 403, where
            elif endpoint.path == "/models/{public_name}":
                assert response.status_code == 200, where  # a model is everybody's
            elif "{" in endpoint.path:
                assert response.status_code == 404, where
            else:
                assert response.status_code in (200, 400, 403), where
            assert CANARY not in response.text, where
            assert names["key"] not in response.text, where
            if "{" not in endpoint.path:  # what names it is not told by what it was asked for
                assert "acme" not in response.text, where
        assert await state(api) == before


async def test_what_is_not_there_and_what_is_anothers_look_the_same(administer: Administer) -> None:
    """The refusals differ in the name that was asked for, and in nothing else."""
    async with administer() as api:
        for path in ("/tenants/{}", "/tenants/{}/keys", "/tenants/{}/users", "/tenants/{}/quotas", "/tenants/{}/audit"):
            there, nowhere = [await api.other.get(path.format(name)) for name in ("acme", "nope")]
            assert there.status_code == nowhere.status_code == 404
            assert there.text.replace("acme", "nope") == nowhere.text


async def test_a_key_id_of_another_tenant_leads_nowhere_below_ones_own(administer: Administer) -> None:
    """`/tenants/<mine>/keys/<theirs>` is 404, for reading, changing, rotating and revoking."""
    async with administer() as api:
        user = (await api.acme.post("/tenants/acme/users", json={"subject": "ada"})).json()["id"]
        key = (await api.acme.post("/tenants/acme/keys", json={})).json()["record"]["id"]
        for method, path, body in (
            ("GET", f"keys/{key}", None),
            ("PATCH", f"keys/{key}", {"disabled": True}),
            ("POST", f"keys/{key}/rotate", {}),
            ("DELETE", f"keys/{key}", None),
            ("GET", f"users/{user}", None),
            ("PATCH", f"users/{user}", {"disabled": True}),
            ("DELETE", f"users/{user}", None),
        ):
            options = {} if body is None else {"json": body}
            refused = await api.other.request(method, f"/tenants/other/{path}", headers={"if-match": "*"}, **options)
            assert refused.status_code == 404, (method, path, refused.text)
        refused = await api.other.post("/tenants/other/keys", json={"user": user})
        assert refused.status_code == 400
        assert (await api.acme.get(f"/tenants/acme/keys/{key}")).json()["disabled"] is False
