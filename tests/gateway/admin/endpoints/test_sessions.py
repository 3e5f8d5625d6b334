"""Browser sessions through the admin API, and what of them the audit log tells."""

from __future__ import annotations

import httpx2
import pytest

from gateway.access.identity import Principal
from gateway.access.identity.browser_sessions import digest_of
from tests.gateway.admin.conftest import Administer, Administered, problem

pytestmark = pytest.mark.anyio

BOB = Principal("other", "token:idp", "bob")


async def signed_in(api: Administered, principal: Principal) -> str:
    """Begin a session; returns its id in the API."""
    id, _ = await api.served.gateway.sign_in.sessions.begin(principal)
    return digest_of(id)


async def test_admins_see_and_end_sessions_of_their_tenant(administer: Administer) -> None:
    """No operator's, though; operators see all."""
    async with administer() as api:
        ann = await signed_in(api, Principal("acme", "token:idp", "ann"))
        bob = await signed_in(api, BOB)
        root = await signed_in(api, Principal("acme", "link:operator", operator=True))
        listed = (await api.operator.get("/sessions")).json()["data"]
        assert [each["id"] for each in listed] == [root, bob, ann]
        assert [(each["method"], each["user"], each["operator"]) for each in listed] == [
            ("link", None, True),
            ("idp", "bob", False),
            ("idp", "ann", False),
        ]
        own = (await api.acme.get("/sessions")).json()["data"]
        assert own == [listed[2]] == (await api.operator.get("/sessions?tenant=acme&limit=200")).json()["data"][1:]
        for foreign in (bob, root, "0" * 64):
            problem(await api.acme.delete(f"/sessions/{foreign}"), 404, "not_found")
        problem(await api.acme.get("/sessions", params={"tenant": "other"}), 404, "not_found")
        assert (await api.acme.delete(f"/sessions/{ann}")).status_code == 204
        assert (await api.operator.delete(f"/sessions/{bob}")).status_code == 204
        assert [each["id"] for each in (await api.operator.get("/sessions")).json()["data"]] == [root]
        (entry,) = (await api.acme.get("/tenants/acme/audit")).json()["data"]
        assert (entry["action"], entry["actor"], entry["subject"]) == (
            "session.end",
            "acme/key:acme-admin",
            "acme/user:ann",
        )


async def test_signing_in_and_out_is_in_the_audit_log(administer: Administer) -> None:
    """By a browser, whose session ends at once."""
    async with administer() as api, httpx2.AsyncClient(base_url=api.served.url, timeout=20) as browser:
        secret = await api.served.gateway.sign_in.links.make()
        assert (await browser.get("/auth/link", params={"secret": secret})).status_code == 303
        (session,) = (await browser.get("/admin/v1/sessions")).json()["data"]
        assert session["current"] and session["operator"]
        own = {"origin": api.served.url, "sec-fetch-site": "same-origin"}
        assert (await browser.post("/auth/sign-out", headers=own)).status_code == 204
        assert (await api.operator.get("/sessions")).json()["data"] == []
        entries = (await api.operator.get("/audit")).json()["data"]
        who = "demo/key:link:operator"
        assert [(each["action"], each["actor"], each["subject"]) for each in entries] == [
            ("session.end", who, who),
            ("session.begin", who, who),
        ]
