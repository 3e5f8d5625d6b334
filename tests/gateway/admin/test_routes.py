"""Routes and their trials through the admin API."""

from __future__ import annotations

import pytest

from gateway.canaries import KEY
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio

TARGETS = [{"model": "tiny-small", "weight": 9}, {"model": "tiny-next", "weight": 1}]


async def test_a_trial_is_shown_as_it_stands(administer: Administer) -> None:
    """Counts of all gateways, evidence, and what would take the canary out; a change of the route begins anew."""
    async with administer() as api:
        made = await api.operator.post("/routes", json={"name": "team/assistant", "targets": TARGETS})
        path = "/trials/team/assistant"
        (trial,) = (await api.operator.get(path)).json()["data"]
        assert (trial["model"], trial["turns"], trial["evidence"]) == ("tiny-next", 0, 1.0)
        counts = {"turns:tiny-small": 900, "turns:tiny-next": 100, "error:tiny-small": 5, "error:tiny-next": 9}
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
