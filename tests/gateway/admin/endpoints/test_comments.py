"""Comments beside ratings, as the admins of their tenant read them."""

from __future__ import annotations

import time

import pytest

from gateway.turns.comments import Comment
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_a_tenants_admins_alone_read_them(administer: Administer) -> None:
    """Page by page, the newest first; operators those of their own tenant."""
    async with administer() as api:
        now = time.time_ns() // 1_000_000
        for tenant, number in (("acme", 1), ("acme", 2), ("acme", 2), ("operations", 3)):
            for name in ("a", "b"):
                response = f"resp_{name}{number}"
                comment = Comment(response, now + number, "down", "wrong", f"{tenant} {number}")
                await api.served.gateway.comments.write(tenant, comment)
        listed = (await api.acme.get("/comments")).json()
        assert [each["turn"] for each in listed["data"]] == ["resp_b2", "resp_a2", "resp_b1", "resp_a1"]
        assert listed["next"] is None
        first = listed["data"][0]
        assert first == {
            "turn": "resp_b2",
            "at": now + 2,
            "rating": "down",
            "reason": "wrong",
            "comment": "acme 2",
        }
        page = (await api.acme.get("/comments", params={"limit": 3})).json()
        rest = (await api.acme.get("/comments", params={"limit": 3, "cursor": page["next"]})).json()
        assert page["data"] + rest["data"] == listed["data"]
        assert rest["next"] is None
        assert (await api.other.get("/comments")).json()["data"] == []
        own = (await api.operator.get("/comments")).json()["data"]
        assert [each["comment"] for each in own] == ["operations 3", "operations 3"]
        problem(await api.other.get("/comments", params={"cursor": page["next"]}), 400, "invalid_value")
