"""What every endpoint does with a request before its function is called."""

from __future__ import annotations

import json

import pytest

from tests.gateway.admin.conftest import CHAT, Administer, problem

pytestmark = pytest.mark.anyio


async def test_nobody_comes_in_without_a_key_of_the_right_scope(administer: Administer) -> None:
    """401 without one, 403 with one for chat; the description and the page need none."""
    async with administer() as api, api.client(None) as nobody, api.client(CHAT) as chat:
        problem(await nobody.get("/tenants"), 401, "missing_api_key")
        refused = problem(await chat.get("/tenants"), 403, "insufficient_scope")
        assert "admin:read" in refused["detail"]
        assert "admin:write" in problem(await chat.post("/prices", json={}), 403, "insufficient_scope")["detail"]
        assert (await nobody.get("/openapi.json")).json()["openapi"] == "3.1.0"
        page = await nobody.get(f"{api.served.url}/admin/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code", "param"),
    [
        (b"{", "application/json", 400, "invalid_json", None),
        (b"\xff", "application/json", 400, "invalid_json", None),
        (b"[" * 100_000, "application/json", 400, "invalid_json", None),
        (b'{"a":' * 700 + b"1" + b"}" * 700, "application/json", 400, "invalid_json", None),
        (b"[" * 129 + b"]" * 129, "application/json", 400, "invalid_json", None),
        (b"[]", "application/json", 400, "invalid_value", None),
        (b"{}", "application/json", 400, "missing_required_parameter", "name"),
        (b'{"name": 1}', "application/json", 400, "invalid_value", "name"),
        (b'{"name": "a", "colour": "red"}', "application/json", 400, "unknown_parameter", "colour"),
        (b'{"name": "../a"}', "application/json", 400, "invalid_value", "name"),
        (b'{"name": "a"}', "text/plain", 415, "unsupported_media_type", "Content-Type"),
        (b'{"name": "a"}', "", 415, "unsupported_media_type", "Content-Type"),
        (b'{"description": "%s"}' % (b"x" * 2_000_000), "application/json", 413, "request_too_large", None),
    ],
)
async def test_a_wrong_body_is_refused_by_name(
    administer: Administer, content: bytes, media_type: str, status: int, code: str, param: str | None
) -> None:
    """And says what to do."""
    async with administer() as api:
        headers = {"content-type": media_type} if media_type else {}
        refused = problem(await api.operator.post("/tenants", content=content, headers=headers), status, code)
        assert refused["param"] == param


async def test_a_wrong_parameter_is_refused_by_name(administer: Administer) -> None:
    """Unknown, given twice, or of a method that is not there."""
    async with administer() as api:
        assert problem(await api.operator.get("/tenants?colour=red"), 400, "unknown_parameter")["param"] == "colour"
        assert problem(await api.operator.get("/pools?colour=red"), 400, "unknown_parameter")["param"] == "colour"
        problem(await api.operator.get("/tenants?limit=1&limit=2"), 400, "invalid_request")
        refused = await api.operator.put("/tenants", json={})
        problem(refused, 405, "method_not_allowed")
        assert refused.headers["allow"] == "GET, POST"
        for path in ("/nowhere", "/prices/%0A", f"{api.served.url}/admin/nowhere"):
            problem(await api.operator.get(path), 404, "not_found")
        headers = {"idempotency-key": "x" * 129}
        refused = await api.operator.post("/tenants", json={"name": "a"}, headers=headers)
        assert problem(refused, 400, "invalid_value")["param"] == "Idempotency-Key"


async def test_merge_patch_is_a_change_as_well(administer: Administer) -> None:
    """RFC 7396's media type, for clients that insist on it."""
    async with administer() as api:
        await api.operator.post("/tenants", json={"name": "shop"})
        changed = await api.operator.patch(
            "/tenants/shop",
            content=json.dumps({"weight": 3}),
            headers={"content-type": "application/merge-patch+json; charset=utf-8", "if-match": "*"},
        )
        assert changed.json()["weight"] == 3


async def test_without_redis_the_answer_is_503(administer: Administer) -> None:
    """What cannot be recorded is not done."""
    async with administer(redis_options={"url": "unix:///nowhere/redis.sock"}) as api:
        problem(await api.operator.get("/tenants"), 503, "unavailable")
        problem(await api.operator.get("/tenants/shop"), 503, "unavailable")
        problem(await api.operator.get("/jobs"), 503, "unavailable")
        problem(await api.operator.get("/cache"), 503, "unavailable")
        problem(await api.operator.post("/tenants", json={"name": "shop"}), 503, "unavailable")
        assert (await api.operator.get("/pools")).status_code == 200
