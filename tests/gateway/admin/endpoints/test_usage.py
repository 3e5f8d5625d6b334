"""Usage through the admin API."""

from __future__ import annotations

import asyncio
import datetime

import pytest
from click.testing import CliRunner

from gateway.billing.entry import entries_key
from gateway.cli.root import main
from gateway.config.settings import PriceSettings
from tests.gateway.admin.conftest import Administer, problem
from tests.gateway.billing.test_ledger import entry
from tests.gateway.billing.test_report import fill

pytestmark = pytest.mark.anyio

NOON = int(datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC).timestamp() * 1000)


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
        assert report["data"] == [{**report["total"], "name": "tiny-small", "split": None}]
        assert (await api.operator.get("/usage")).json()["total"] == report["total"]
        own = (await api.operator.get("/tenants/demo/usage", params={"key": "demo"})).json()
        assert own["total"] == report["total"]
        assert (await api.acme.get("/tenants/acme/usage")).json()["data"] == []
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        tomorrow = {"from": "2999-01-01", "to": "2999-01-02"}
        assert report["to"] == today
        assert (await api.operator.get("/usage", params=tomorrow)).json()["data"] == []


async def test_usage_is_compared_with_the_period_before(administer: Administer) -> None:
    """Of the same length, by the same divisions."""
    async with administer() as api:
        redis = api.served.gateway.redis
        day = 24 * 3_600_000
        await fill(redis, [entry(number, at=NOON - number * day, model=f"m{number % 2}") for number in range(6)])
        asked = {"from": "2026-11-18", "to": "2026-11-20", "by": "model"}
        report = (await api.acme.get("/tenants/acme/usage", params={**asked, "compare": True})).json()
        before = report.pop("before")
        assert {**report, "before": None} == (await api.acme.get("/tenants/acme/usage", params=asked)).json()
        earlier = {"from": "2026-11-15", "to": "2026-11-17", "by": "model"}
        shown = (await api.acme.get("/tenants/acme/usage", params=earlier)).json()
        assert shown["total"]["turns"] == report["total"]["turns"] == 3
        assert before == {name: shown[name] for name in before}
        assert [(row["name"], row["turns"]) for row in before["data"]] == [("m0", 1), ("m1", 2)]
        oldest = {"from": "0001-01-02", "to": "0001-01-03", "compare": True}
        problem(await api.acme.get("/tenants/acme/usage", params=oldest), 400, "invalid_value")


async def test_usage_is_divided_twice_and_by_user(administer: Administer) -> None:
    """Totals are those of the whole, also where single turns are gone; CSV is what the command line writes."""
    async with administer() as api:
        redis = api.served.gateway.redis
        users = [("ada", "llama"), ("ada", "mistral"), ("bob", "llama"), (None, "llama")]
        await fill(redis, [entry(number, user=user, model=model) for number, (user, model) in enumerate(users)])
        time = {"from": "2026-11-01", "to": "2026-11-30"}
        report = (await api.acme.get("/tenants/acme/usage", params={**time, "by": "user", "split": "model"})).json()
        assert [(row["name"], row["split"], row["turns"]) for row in report["data"]] == [
            ("", "llama", 1),
            ("ada", "llama", 1),
            ("ada", "mistral", 1),
            ("bob", "llama", 1),
        ]
        assert (report["total"]["turns"], report["partial"], report["split"]) == (4, False, "model")
        asked = {**time, "by": "day", "split": "model"}
        shown = await api.acme.get("/tenants/acme/usage/csv", params=asked)
        assert shown.headers["content-type"].startswith("text/csv")
        words = ["usage", "--from", "2026-11-01", "--to", "2026-12-01", "--by", "day", "--by", "model", "--csv", "-"]
        env = {"ROUNDHOUSE_REDIS_URL": api.served.gateway.settings.redis.url}
        written = await asyncio.to_thread(CliRunner().invoke, main, words, env=env)
        assert written.stdout_bytes == shown.content == (await api.operator.get("/usage/csv", params=asked)).content
        await redis.xtrim(entries_key("acme", "20261122"), maxlen=1, approximate=False)
        report = (await api.acme.get("/tenants/acme/usage", params={**time, "by": "user"})).json()
        assert (len(report["data"]), report["partial"], report["total"]["turns"]) == (1, True, 4)


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
