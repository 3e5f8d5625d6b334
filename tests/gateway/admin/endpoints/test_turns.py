"""Single turns through the admin API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.config.settings import PriceSettings
from tests.gateway.admin.conftest import CHAT, Administer, Administered, problem

pytestmark = pytest.mark.anyio

SECRET = "xyzzy-7f3a"


async def ask(api: Administered, count: int, **fields: Any) -> list[str]:
    """Have acme ask for something, and return the ids of the turns once the ledger has them."""
    body = {"model": "small", "max_output_tokens": 2, **fields}
    ids = []
    async with api.client(CHAT) as chat:
        for number in range(count):
            answer = await chat.post(f"{api.served.url}/v1/responses", json={**body, "input": f"{SECRET} {number}"})
            assert answer.status_code == 200, answer.text
            ids.append(answer.json()["id"])
    shown = await api.acme.get(f"/turns/{ids[-1]}")
    while shown.status_code != 200:  # written beside the turns
        shown = await api.acme.get(f"/turns/{ids[-1]}")
    return ids


async def test_turns_are_listed_page_by_page_and_filtered(administer: Administer) -> None:
    """The newest first, each once, with cost and times, without text."""
    prices = [PriceSettings(name="tiny-small", input=1_000_000, output=2_000_000)]
    async with administer(prices=prices) as api:
        ids = await ask(api, 5)
        found, cursor = [], {}
        while True:
            page = await api.operator.get("/turns", params={"limit": 2, **cursor})
            assert SECRET not in page.text
            found += page.json()["data"]
            if page.json()["next"] is None:
                break
            cursor = {"cursor": page.json()["next"]}
        assert [turn["turn"] for turn in found] == ids[::-1]
        assert found == (await api.acme.get("/turns")).json()["data"]
        for turn in found:
            assert (turn["tenant"], turn["key"], turn["tier"]) == ("acme", "acme-chat", "small")
            assert turn["cost_microdollars"] == turn["input_tokens"] + 2 * turn["output_tokens"] > 0
            assert turn["milliseconds"] >= turn["first_token_ms"] >= turn["queue_ms"] >= 0
        for query, count in (({"key": "acme-chat"}, 5), ({"key": "other"}, 0), ({"outcome": "failed"}, 0)):
            assert len((await api.acme.get("/turns", params=query)).json()["data"]) == count
        assert (await api.operator.get("/turns", params={"to": "2020-01-01"})).json() == {"data": [], "next": None}


async def test_a_turn_is_shown_with_its_decision_and_feedback(administer: Administer) -> None:
    """By any of its ids; another tenant is told nothing."""
    async with administer() as api:
        (id,) = await ask(api, 1, model="auto")
        async with api.client(CHAT) as chat:
            await chat.post(f"{api.served.url}/v1/responses/{id}/feedback", json={"rating": "up"})
        shown: dict[str, Any] = {}
        async with asyncio.timeout(20):
            while not (shown.get("decision") and shown["feedback"]):  # written once a second
                response = await api.acme.get(f"/turns/{id.replace('resp_', 'chatcmpl-')}")
                shown = response.json()
        assert SECRET not in response.text
        assert shown["turn"]["turn"] == shown["decision"]["response"] == id
        assert shown["decision"]["reasons"] and shown["decision"]["reproducible"] is True
        assert [each["signal"] for each in shown["feedback"]] == ["up"]
        assert (await api.operator.get(f"/turns/{id}")).json() == shown
        problem(await api.other.get(f"/turns/{id}"), 404, "not_found")
        problem(await api.operator.get(f"/turns/resp_{'0' * 48}"), 404, "not_found")
        assert (await api.other.get("/turns")).json()["data"] == []
        problem(await api.other.get("/turns", params={"tenant": "acme"}), 404, "not_found")
        decisions = (await api.acme.get("/tenants/acme/decisions", params={"quality": 100})).json()
        assert decisions["data"] == [{**shown["decision"], "otherwise": "small"}]
        assert decisions["next"] is None


@pytest.mark.parametrize(
    "query",
    [{"from": "2026-02-02", "to": "2026-02-01"}, {"from": "2001-01-01"}, {"outcome": "good"}, {"cursor": "bm90aGluZw"}],
    ids=str,
)
async def test_a_wrong_question_is_refused(administer: Administer, query: dict[str, str]) -> None:
    async with administer() as api:
        problem(await api.operator.get("/turns", params=query), 400, "invalid_value")
