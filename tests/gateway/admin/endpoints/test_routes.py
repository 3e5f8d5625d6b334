"""Routes and their trials through the admin API."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.pipeline.routing.canaries import KEY, exists
from gateway.records.directory import Tenant
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.admin.conftest import CHAT, Administer, problem
from tests.gateway.conftest import EngineThread, eventually

pytestmark = pytest.mark.anyio

TARGETS = [{"model": "tiny-small", "weight": 9}, {"model": "tiny-medium", "weight": 1}]


async def test_a_trial_is_shown_as_it_stands(administer: Administer, engine: EngineThread) -> None:
    """Counts of all gateways, evidence, and what would take the canary out; a change of the route begins anew."""
    async with administer(engines={"small": [engine.address], "medium": [engine.address]}) as api:
        made = await api.operator.post("/routes", json={"name": "team/assistant", "targets": TARGETS})
        path = "/trials/team/assistant"
        (trial,) = (await api.operator.get(path)).json()["data"]
        assert (trial["model"], trial["turns"], trial["evidence"]) == ("tiny-medium", 0, 1.0)
        counts = {"turns:tiny-small": 900, "turns:tiny-medium": 100, "error:tiny-small": 5, "error:tiny-medium": 9}
        key = KEY.format(route="team/assistant", revision=int(made.headers["etag"].strip('"')))
        await api.served.gateway.redis.hset(key, mapping=counts)  # type: ignore[misc]
        (trial,) = (await api.operator.get(path)).json()["data"]
        assert (trial["turns"], trial["stable_turns"], trial["error"]) == (100, 900, {"stable": 5, "canary": 9})
        assert trial["evidence"] > trial["taken_out_from"] == 300
        assert (await api.operator.get("/routes/team/assistant")).json()["name"] == "team/assistant"
        etag = {"if-match": (await api.operator.get("/routes/team/assistant")).headers["etag"]}
        await api.operator.put("/routes/team/assistant", json={"targets": TARGETS, "slow_seconds": 2}, headers=etag)
        (trial,) = (await api.operator.get(path)).json()["data"]
        assert trial["turns"] == 0
        problem(await api.operator.get("/trials/nothing"), 404, "not_found")
        problem(await api.acme.get(path), 404, "not_found")


async def test_a_route_leads_to_what_is_there(administer: Administer) -> None:
    """Clients would be told otherwise, one conversation after the other."""
    async with administer() as api:
        wrong = {"name": "assistant", "targets": TARGETS}
        refused = problem(await api.operator.post("/routes", json=wrong), 400, "invalid_value")
        assert refused["detail"].startswith(
            "targets[1].model: no model or adapter is named 'tiny-medium'; there are auto"
        )
        right = {"name": "assistant", "targets": TARGETS[:1]}
        made = await api.operator.post("/routes", json=right)
        assert made.status_code == 201
        for model in ("nothing", "auto"):
            shadow = {"targets": TARGETS[:1], "shadow": {"model": model, "percent": 5}}
            etag = {"if-match": made.headers["etag"]}
            refused = problem(
                await api.operator.put("/routes/assistant", json=shadow, headers=etag), 400, "invalid_value"
            )
            assert "shadow.model" in refused["detail"]


async def test_a_shadow_is_shown_as_it_stands(administer: Administer) -> None:
    async with administer() as api:
        fields = {"name": "assistant", "targets": TARGETS[:1], "shadow": {"model": "tiny-small", "percent": 5}}
        made = await api.operator.post("/routes", json=fields)
        counts = {"copies": 20, "error": 8, "stable_error": 1, "compared": 10, "agreed": 9, "timed": 4, "first_ms": 100}
        key = KEY.format(route="assistant", revision=int(made.headers["etag"].strip('"')))
        shadowed = {f"shadow:{name}": count for name, count in counts.items()}
        await api.served.gateway.redis.hset(key, mapping=shadowed)  # type: ignore[misc]
        shadow = (await api.operator.get("/trials/assistant")).json()["shadow"]
        assert shadow["errors"] == {"stable": 1, "canary": 8} and shadow["evidence"] > 1
        assert (shadow["agreement"], shadow["first_token_ms"], shadow["copies"]) == (0.9, 25, 20)


async def test_admins_make_routes_of_their_own(administer: Administer) -> None:
    """Below their tenant's name, for their tenant only, and only they and operators see and change them."""
    async with administer() as api:
        targets = TARGETS[:1]
        made = await api.acme.post("/routes", json={"name": "acme:assistant", "targets": targets})
        assert (made.status_code, made.json()["tenant"]) == (201, "acme")
        await api.operator.post("/routes", json={"name": "everybodys", "targets": targets})
        await api.operator.post("/routes", json={"name": "for-other", "targets": targets, "tenant": "other"})
        lists = [[each["name"] for each in (await who.get("/routes")).json()["data"]] for who in (api.acme, api.other)]
        assert lists == [["acme:assistant"], ["for-other"]]
        everything = (await api.operator.get("/routes")).json()["data"]
        assert [(each["name"], each["tenant"]) for each in everything] == [
            ("acme:assistant", "acme"),
            ("everybodys", None),
            ("for-other", "other"),
        ]
        assert [each["name"] for each in (await api.operator.get("/routes?tenant=acme")).json()["data"]] == lists[0]
        problem(await api.other.get("/routes?tenant=acme"), 404, "not_found")
        etag = {"if-match": made.headers["etag"]}
        for name in ("acme:assistant", "everybodys"):
            for path in (f"/routes/{name}", f"/trials/{name}"):
                problem(await api.other.get(path), 404, "not_found")
            problem(await api.other.put(f"/routes/{name}", json={"targets": targets}, headers=etag), 404, "not_found")
            problem(await api.other.delete(f"/routes/{name}", headers=etag), 404, "not_found")
        later = {"targets": targets, "slow_seconds": 2}
        changed = await api.acme.put("/routes/acme:assistant", json=later, headers=etag)
        assert (changed.json()["slow_seconds"], changed.json()["tenant"]) == (2, "acme")
        etag = {"if-match": changed.headers["etag"]}
        assert (await api.acme.delete("/routes/acme:assistant", headers=etag)).status_code == 204


async def test_admins_stay_within_what_operators_allow(administer: Administer) -> None:
    """Names, tenants, models, and copies that nobody pays for."""
    async with administer() as api:
        targets, shadow = TARGETS[:1], {"model": "tiny-small", "percent": 5}
        route = {"name": "acme:a", "targets": targets}
        for fields, param in (
            ({"name": "assistant"}, "name"),
            ({"name": "other:a"}, "name"),
            ({"tenant": "other"}, "tenant"),
            ({"shadow": shadow}, "shadow"),
        ):
            assert problem(await api.acme.post("/routes", json=route | fields), 403, "forbidden")["param"] == param
        await api.operator.post("/tenants", json={"name": "shop", "models": ["tiny-small"]})
        auto = {"name": "shop:a", "targets": [{"model": "auto", "weight": 1}], "tenant": "shop"}
        refused = problem(await api.operator.post("/routes", json=auto), 400, "invalid_value")
        assert refused["detail"].endswith("there are tiny-small")
        nobody = problem(await api.operator.post("/routes", json=route | {"tenant": "nobody"}), 400, "invalid_value")
        assert nobody["param"] == "tenant"
        made = await api.operator.post("/routes", json=route | {"tenant": "acme", "shadow": shadow})
        path, etag = "/routes/acme:a", {"if-match": made.headers["etag"]}
        less = {"targets": targets, "shadow": shadow | {"percent": 4}}
        problem(await api.acme.put(path, json=less, headers=etag), 403, "forbidden")
        kept = await api.acme.put(path, json={"targets": targets, "shadow": shadow}, headers=etag)
        assert kept.json()["shadow"] == shadow
        gone = await api.acme.put(path, json={"targets": targets}, headers={"if-match": kept.headers["etag"]})
        assert gone.json()["shadow"] is None


async def test_a_tenants_adapters_are_not_told_to_others(administer: Administer, model: Path, tmp_path: Path) -> None:
    """Nor can a route of another tenant lead to them."""
    async with administer() as api:
        adapters = api.served.gateway.adapters
        version = adapters.registry.add(
            write_adapter(tmp_path / "adapter", model, "only q_proj", seed=1), model
        ).version
        adapters.registry.point("acme:pirate", version, model="tiny-small", tenants=("acme",))
        await adapters.refresh()
        targets = [{"model": "acme:pirate", "weight": 1}]
        made = await api.acme.post("/routes", json={"name": "acme:a", "targets": targets})
        assert made.status_code == 201, made.text
        refused = await api.other.post("/routes", json={"name": "other:a", "targets": targets})
        told = problem(refused, 400, "invalid_value")["detail"]
        assert told.endswith("there are auto, small, tiny-small")


async def test_an_own_route_is_the_tenants_alone(administer: Administer) -> None:
    """In the list of models, and as a name that answers; a list of allowed models need not have it."""
    async with administer() as api:
        for tenant in ("acme", "other"):
            route = {"name": f"{tenant}:assistant", "targets": TARGETS[:1], "tenant": tenant}
            assert (await api.operator.post("/routes", json=route)).status_code == 201
        view = api.served.gateway.view
        await eventually(lambda: len([*view.routes()]) == 2)
        async with api.client(CHAT) as chat:
            listed = (await chat.get(f"{api.served.url}/v1/models")).json()["data"]
            assert [each["id"] for each in listed if each["id"].endswith(":assistant")] == ["acme:assistant"]
            for model, status in (("acme:assistant", 200), ("other:assistant", 404)):
                asked = {"model": model, "input": "hi", "max_output_tokens": 2}
                assert (await chat.post(f"{api.served.url}/v1/responses", json=asked)).status_code == status
        own = view.route("acme:assistant")
        assert own is not None
        assert exists(own, Tenant(name="acme", models=["tiny-small"]))
        assert not exists(own, Tenant(name="acme", models=["other"]))
        assert not exists(own, Tenant(name="other"))
        assert not exists(own, None)
