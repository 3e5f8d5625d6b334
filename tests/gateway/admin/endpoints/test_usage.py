"""Usage through the admin API."""

from __future__ import annotations

import datetime

import pytest

from gateway.config.settings import PriceSettings
from tests.gateway.admin.conftest import Administer, problem

pytestmark = pytest.mark.anyio


async def test_what_was_used_is_what_answers_said(administer: Administer) -> None:
    """In tokens and money, by model and by day, for an operator and for the tenant's own admin."""
    prices = [PriceSettings(name="tiny-small", input=1_000_000, output=2_000_000)]
    async with administer(prices=prices) as api:
        used = {"input_tokens": 0, "output_tokens": 0}
        for index in range(3):
            answer = await api.served.client.responses.create(
                model="small", input=f"hello {index}", max_output_tokens=3
            )
            assert answer.usage is not None
            used["input_tokens"] += answer.usage.input_tokens
            used["output_tokens"] += answer.usage.output_tokens
        report = (await api.operator.get("/usage", params={"by": "model", "tenant": "demo"})).json()
        while report["total"]["turns"] != 3:  # the ledger is written beside the turns
            report = (await api.operator.get("/usage", params={"by": "model", "tenant": "demo"})).json()
        # A micro-dollar for each token of input, two for each of output.
        cost = used["input_tokens"] + 2 * used["output_tokens"]
        expected = {"turns": 3, "cache_hits": 0, **used, "cost_microdollars": cost}
        assert expected.items() <= report["total"].items()
        assert report["data"] == [{**report["total"], "name": "tiny-small"}]
        assert (await api.operator.get("/usage")).json()["total"] == report["total"]
        own = (await api.operator.get("/tenants/demo/usage", params={"key": "demo"})).json()
        assert own["total"] == report["total"]
        assert (await api.acme.get("/tenants/acme/usage")).json()["data"] == []
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        tomorrow = {"from": "2999-01-01", "to": "2999-01-02"}
        assert report["to"] == today
        assert (await api.operator.get("/usage", params=tomorrow)).json()["data"] == []


@pytest.mark.parametrize(
    "query",
    [
        {"from": "2026-02-30"},
        {"from": "2026-02-02", "to": "2026-02-01"},
        {"from": "0001-01-01"},
        {"to": "0001-01-01"},
        {"to": "9999-12-31", "from": "9999-12-30"},
        {"by": "colour"},
        {"since": "2026-02-01"},
    ],
)
async def test_a_wrong_time_is_refused(administer: Administer, query: dict[str, str]) -> None:
    async with administer() as api:
        refused = await api.operator.get("/usage", params=query)
        problem(refused, 400, "unknown_parameter" if "since" in query else "invalid_value")
        problem(await api.acme.get("/tenants/acme/usage", params={"tenant": "demo"}), 400, "unknown_parameter")
