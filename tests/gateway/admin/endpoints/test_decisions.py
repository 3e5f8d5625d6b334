"""Why requests go to a tier, through the admin API."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from gateway.config.judge import JudgeSettings
from gateway.pipeline.routing.explaining import explain
from gateway.pipeline.routing.judge_days import DAYS, JudgeDays
from gateway.pipeline.routing.tiers import TierMemory, Tiers
from tests.gateway.admin.conftest import CHAT, Administer, problem
from tests.gateway.conftest import EngineThread
from tests.gateway.pipeline.routing.test_tiers import EXAM, HARD

pytestmark = pytest.mark.anyio


async def test_a_text_is_explained_as_the_command_line_does(administer: Administer) -> None:
    """At any position of the knob; nothing of it is kept."""
    async with administer() as api:
        tiers = Tiers(api.served.gateway.settings, TierMemory(), None)
        for quality in (None, 0, 80, 100):
            shown = (await api.acme.post("/route/explain", json={"prompt": EXAM, "quality": quality})).json()
            expected = explain(tiers, EXAM, quality)
            assert shown["choice"] == msgspec.json.decode(msgspec.json.encode(expected.choice))
            assert shown["tier"] == expected.choice.tier
            assert shown["features"] == expected.features
            assert list(shown["values"].values()) == list(expected.choice.values)
            assert shown["reasons"]
        assert (await api.acme.get("/tenants/acme/decisions")).json() == {"data": [], "next": None}
        problem(await api.acme.post("/route/explain", json={"prompt": ""}), 400, "invalid_value")
        problem(await api.acme.post("/route/explain", json={"prompt": "a", "quality": 101}), 400, "invalid_value")


async def test_decisions_are_listed_page_by_page(administer: Administer, engine: EngineThread) -> None:
    """The newest first; with what another position of the knob would have chosen."""
    engines = {tier: [engine.address] for tier in ("small", "medium", "large")}
    async with administer(engines=engines) as api:
        async with api.client(CHAT) as chat:
            for text in (HARD, EXAM, "hello"):
                body = {"model": "auto", "input": text, "max_output_tokens": 2}
                assert (await chat.post(f"{api.served.url}/v1/responses", json=body)).status_code == 200
        first: dict[str, Any] = {"data": []}
        async with asyncio.timeout(20):
            while len(first["data"]) < 2 or first["next"] is None:  # written once a second
                first = (await api.acme.get("/tenants/acme/decisions", params={"limit": 2, "quality": 0})).json()
        params = {"limit": 2, "quality": 100, "cursor": first["next"]}
        second = (await api.acme.get("/tenants/acme/decisions", params=params)).json()
        assert len(second["data"]) == 1 and second["next"] is None
        assert {each["otherwise"] for each in first["data"]} == {"small"}
        assert {each["otherwise"] for each in second["data"]} == {"large"}
        assert all(each["chosen"] == each["tier"] and each["reproducible"] for each in first["data"])
        every = [*first["data"], *second["data"]]
        summed = (await api.acme.get("/route/replay", params={"quality": 100})).json()
        assert summed == (await api.operator.get("/route/replay", params={"quality": 100})).json()
        assert (summed["decisions"], summed["since"], summed["until"]) == (3, every[-1]["at"], every[0]["at"])
        assert {each["tier"]: each["decisions"] for each in summed["answered"]} == Counter(
            each["tier"] for each in every
        )
        assert [(each["tier"], each["share"]) for each in summed["otherwise"]] == [("large", 1.0)]
        assert summed["changed"] == sum(each["tier"] != "large" for each in every)
        assert (await api.acme.get("/route/replay", params={"decisions": 1})).json()["decisions"] == 1
        assert (await api.other.get("/route/replay")).json()["decisions"] == 0
        problem(await api.other.get("/route/replay", params={"tenant": "acme"}), 404, "not_found")
        problem(await api.other.get("/tenants/acme/decisions"), 404, "not_found")
        problem(await api.acme.get("/tenants/acme/decisions", params={"cursor": "bm90aGluZw"}), 400, "invalid_value")


async def test_the_judge_is_shown_by_day_to_operators(administer: Administer) -> None:
    """What was judged, what was not and why, and what it cost; without a judge, too."""
    judge = JudgeSettings(pool="tiny-small", share=0.5, dollars_per_day=2.0)
    async with administer(judge=judge) as api:
        days = JudgeDays(api.served.gateway.redis)
        await days.count({"preferred": 3, "tie": 1, "budget": 2})
        day = await days.reserve(5_000_000, limit=10**12)
        assert day is not None
        await days.settle(day, 5_000_000, 4_000_000)
        shown = (await api.operator.get("/route/judge")).json()
        problem(await api.acme.get("/route/judge"), 403, "forbidden")
    assert (shown["pool"], shown["share"], shown["dollars_per_day"]) == ("tiny-small", 0.5, 2.0)
    assert len(shown["data"]) == DAYS and shown["data"] == sorted(
        shown["data"], key=lambda each: each["day"], reverse=True
    )
    (found,) = [each for each in shown["data"] if each["sampled"]]
    assert (found["sampled"], found["judged"], found["refused"]) == (6, {"preferred": 3, "tie": 1}, {"budget": 2})
    assert sum(each["spent_microdollars"] for each in shown["data"]) == 4


async def test_without_a_judge_nothing_is_judged(administer: Administer) -> None:
    async with administer() as api:
        shown = (await api.operator.get("/route/judge")).json()
    assert shown["pool"] is None and not any(each["sampled"] for each in shown["data"])
