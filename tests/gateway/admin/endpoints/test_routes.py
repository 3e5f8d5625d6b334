"""Routes and their trials through the admin API."""

from __future__ import annotations

import pytest

from gateway.pipeline.routing.canaries import KEY
from tests.gateway.admin.conftest import Administer, problem
from tests.gateway.conftest import EngineThread

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
        problem(await api.acme.get(path), 403, "forbidden")


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
