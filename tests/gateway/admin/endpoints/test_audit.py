"""The audit log through the admin API."""

from __future__ import annotations

import pytest

from gateway.access.directory.audit import verify_export
from gateway.access.directory.schema import AUDIT_KEY
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_every_change_is_an_entry(administer: Administer) -> None:
    """Newest first, in pages, with who did it and what changed."""
    async with administer() as api:
        await api.operator.post("/tenants", json={"name": "shop"})
        await api.operator.patch("/tenants/shop", json={"weight": 3}, headers={"if-match": "*"})
        await api.acme.post("/tenants/acme/keys", json={})
        await api.operator.delete("/tenants/shop", headers={"if-match": "*"})
        first = (await api.operator.get("/audit", params={"limit": 3})).json()
        second = (await api.operator.get("/audit", params={"limit": 3, "cursor": first["next"]})).json()
        entries = [*first["data"], *second["data"]]
        assert [(entry["sequence"], entry["action"], entry["actor"]) for entry in entries] == [
            (4, "tenant.delete", "operations/key:root"),
            (3, "key.create", "acme/key:acme-admin"),
            (2, "tenant.update", "operations/key:root"),
            (1, "tenant.create", "operations/key:root"),
        ]
        assert second["next"] is None
        assert entries[2]["changes"] == {"weight": [1.0, 3.0]}
        own = (await api.acme.get("/tenants/acme/audit")).json()
        assert ([entry["sequence"] for entry in own["data"]], own["next"]) == ([3], None)


async def test_refused_changes_leave_no_entry(administer: Administer) -> None:
    """Neither do reads."""
    async with administer() as api:
        await api.operator.post("/tenants", json={"name": "shop", "weight": -1})
        await api.operator.delete("/tenants/shop", headers={"if-match": "*"})
        await api.acme.post("/prices", json={"name": "x", "input": 1, "output": 1})
        await api.operator.get("/tenants")
        assert (await api.operator.get("/audit")).json() == {"data": [], "next": None}


async def test_an_export_verifies_and_tampering_is_found(administer: Administer) -> None:
    """By the endpoint and from the exported lines alone."""
    async with administer() as api:
        for name in ("a", "b", "c"):
            await api.operator.post("/tenants", json={"name": name})
        whole = (await api.operator.get("/audit/verification")).json()
        assert whole == {"intact": True, "entries": 3, "first": 1, "last": 3, "problem": None}
        export = await api.operator.get("/audit/export")
        assert export.headers["content-type"].startswith("application/x-ndjson")
        verifier, problem_found = verify_export(export.content.splitlines())
        assert (verifier.entries, problem_found) == (3, None)
        rest = await api.operator.get("/audit/export", params={"after": 2})
        assert rest.content == export.content.splitlines(keepends=True)[2]
        await api.served.gateway.redis.xdel(AUDIT_KEY, "2-0")
        broken = (await api.operator.get("/audit/verification")).json()
        assert (broken["intact"], broken["entries"]) == (False, 1)
        assert broken["problem"].startswith("entry 2: ")
        problem(await api.acme.get("/audit/export"), 403, "forbidden")
