"""The overview of the admin API, and its alerts."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from cache.semantic.evidence import Comparisons, Evidence
from cache.semantic.keys import evidence_key
from gateway.admin.alerts import budget, lost
from gateway.admin.endpoints import overview
from gateway.billing import recent
from gateway.billing.entry import LedgerEntry
from gateway.billing.report import current_hour
from gateway.config.settings import SemanticCacheSettings
from gateway.engines.heartbeat import Overview, ReplicaStatus
from gateway.limits.standing import LimitStanding
from gateway.limits.subjects import every_subject
from gateway.pipeline.routing.canaries import KEY, TakenOut
from gateway.records.directory import Tenant
from gateway.records.quota import Amounts, Charge, Quota
from gateway.telemetry.activity import Sums
from router.canary import CanarySignal, Failures
from tests.gateway.admin.conftest import Administer, problem
from tests.gateway.billing.test_ledger import HOUR, entry
from tests.gateway.billing.test_report import fill
from tests.gateway.conftest import EngineThread, eventually

pytestmark = pytest.mark.anyio


def turns(hour: datetime.datetime) -> list[LedgerEntry]:
    """Of this hour, of the one before it, and of another tenant."""
    now = int(hour.timestamp() * 1000)
    recent = [
        entry(number, at=now, first_token_ms=10 * number, outcome="failed" if number > 18 else "completed")
        for number in range(1, 21)
    ]
    return [*recent, entry(30, at=now - HOUR, first_token_ms=7), entry(40, at=now, tenant="other", cache="hit")]


async def test_a_period_is_shown_beside_the_one_before(administer: Administer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rates, quantiles and errors; of all tenants for operators, of its own for an admin."""
    hour = current_hour()
    monkeypatch.setattr(overview, "current_hour", lambda: hour)
    monkeypatch.setattr(recent, "LATE", 2 * HOUR)  # all entries are written now
    async with administer() as api:
        await fill(api.served.gateway.redis, turns(hour))
        own = (await api.acme.get("/overview", params={"hours": 1})).json()
        expected = {"turns": 20, "cache_hits": 0, "input_tokens": 200, "errors": 2, "error_rate": 0.1}
        expected |= {"sampled_turns": 20, "hit_rate": 0.0, "prefix_hit_rate": 0.4}
        assert expected.items() <= own["current"].items()
        assert own["current"]["first_token_ms"] == {"p50": 100.0, "p95": 190.0}
        assert (own["before"]["turns"], own["before"]["first_token_ms"]) == (1, {"p50": 7.0, "p95": 7.0})
        assert [(row["name"], row["turns"]) for row in own["series"]] == [(own["from"], 20)]
        assert (own["tenant"], own["alerts"]) == ("acme", [])
        everything = (await api.operator.get("/overview", params={"hours": 720})).json()
        assert everything["current"]["turns"] == everything["current"]["sampled_turns"] == 22
        assert everything["current"]["hit_rate"] == pytest.approx(1 / 22)
        assert everything["before"]["error_rate"] is everything["before"]["hit_rate"] is None
        assert sum(row["turns"] for row in everything["series"]) == 22
        assert (await api.operator.get("/overview", params={"hours": 1, "tenant": "acme"})).json() == own
        problem(await api.acme.get("/overview", params={"tenant": "other"}), 404, "not_found")
        problem(await api.operator.get("/overview", params={"tenant": "nope"}), 404, "not_found")
        problem(await api.operator.get("/overview", params={"hours": 721}), 400, "invalid_value")


async def test_a_spent_budget_and_a_tripped_cache_are_told(administer: Administer) -> None:
    """To operators and to the tenant's own admin; the most urgent first."""
    async with administer(semantic_cache=SemanticCacheSettings(enabled=True)) as api:
        quotas: dict[str, Any] = {"quota": {"spend_per_day": 1000, "spend_per_month": 2500}}
        made = await api.operator.post("/tenants", json={"name": "shop", **quotas})
        key = (await api.operator.post("/tenants/shop/keys", json={"scopes": ["admin:read"]})).json()["key"]
        gateway = api.served.gateway
        await eventually(lambda: gateway.view.tenant("shop") is not None)
        assert made.status_code == 201
        subjects = every_subject(gateway.settings.limits, Tenant(name="shop", quota=Quota(**quotas["quota"])), [])
        await gateway.limiter.charge_lost("shop", Charge("t1", Amounts(spend=1250), subjects))
        wrong = Evidence(bands=(Comparisons(50.0, 50.0),))
        await gateway.redis.hset(evidence_key("shop"), "state", msgspec.json.encode(wrong))
        async with api.client(key) as shop:
            alerts = (await shop.get("/overview")).json()["alerts"]
            limits = (await shop.get("/tenants/shop/limits")).json()["data"]
        assert [(each["kind"], each["level"], each["limit"]) for each in alerts] == [
            ("budget", "critical", "spend_per_day"),
            ("cache_tripped", "warning", None),
            ("budget", "notice", "spend_per_month"),
        ]
        assert alerts[0]["sentence"] == "shop has used 125% of its daily budget: $0.001250 of $0.001000"
        assert alerts[2]["share"] == 0.5
        spent = {each["limit"]: (each["used"], each["left"]) for each in limits}
        assert (spent["spend_per_day"], spent["spend_per_month"]) == ((1250, 0), (1250, 1250))
        assert (await api.operator.get("/overview")).json()["alerts"] == alerts
        assert (await api.operator.get("/alerts", params={"tenant": "shop"})).json()["data"] == alerts
        problem(await api.acme.get("/alerts", params={"tenant": "shop"}), 404, "not_found")
        assert (await api.acme.get("/overview")).json()["alerts"] == []


async def test_a_canary_that_was_taken_out_is_told(administer: Administer, engine: EngineThread) -> None:
    """Until somebody changes the route."""
    async with administer(engines={"small": [engine.address], "medium": [engine.address]}) as api:
        targets = [{"model": "tiny-small", "weight": 9}, {"model": "tiny-medium", "weight": 0}]
        made = await api.operator.post("/routes", json={"name": "assistant", "targets": targets})
        reason = TakenOut(1_764_000_000, CanarySignal.ERROR, 10, 90, Failures(0, 9), 400.0)
        key = KEY.format(route="assistant", revision=int(made.headers["etag"].strip('"')))
        await api.served.gateway.redis.hset(key, "out:tiny-medium", msgspec.json.encode(reason))  # type: ignore[misc]
        await eventually(lambda: api.served.gateway.view.route("assistant") is not None)
        (alert,) = (await api.operator.get("/overview")).json()["alerts"]
        assert (alert["kind"], alert["subject"]) == ("canary_out", "assistant")
        assert alert["sentence"] == "the canary tiny-medium of assistant was taken out: failures"
        await api.operator.put("/routes/assistant", json={"targets": targets}, headers={"if-match": "*"})
        while (await api.operator.get("/overview")).json()["alerts"]:
            pass
        assert (await api.acme.get("/overview")).json()["alerts"] == []


async def test_a_canary_of_a_tenants_route_is_told_to_its_admins(administer: Administer) -> None:
    async with administer() as api:
        targets = [{"model": "tiny-small", "weight": 9}, {"model": "small", "weight": 0}]
        made = await api.acme.post("/routes", json={"name": "acme:assistant", "targets": targets})
        reason = TakenOut(1_764_000_000, CanarySignal.ERROR, 10, 90, Failures(0, 9), 400.0)
        key = KEY.format(route="acme:assistant", revision=int(made.headers["etag"].strip('"')))
        await api.served.gateway.redis.hset(key, "out:small", msgspec.json.encode(reason))  # type: ignore[misc]
        await eventually(lambda: api.served.gateway.view.route("acme:assistant") is not None)
        for admin in (api.operator, api.acme):
            (alert,) = (await admin.get("/overview")).json()["alerts"]
            assert (alert["kind"], alert["subject"], alert["tenant"]) == ("canary_out", "acme:assistant", "acme")
        assert (await api.other.get("/overview")).json()["alerts"] == []


@pytest.mark.parametrize(
    ("used", "level"), [(499, None), (500, "notice"), (799, "notice"), (800, "warning"), (1000, "critical")]
)
def test_budgets_are_told_at_50_80_and_100_percent(used: int, level: str | None) -> None:
    """What running turns hold counts; other limits, and a budget of nothing, are no alert."""
    standing = LimitStanding(
        subject="key:ci",
        limit="spend_per_month",
        most=1000,
        used=used - 100,
        held=100,
        left=1000 - used,
        reset_seconds=1.0,
        warning=False,
    )
    assert [alert.level for alert in budget("acme", standing)] == ([] if level is None else [level])
    assert budget("acme", msgspec.structs.replace(standing, limit="output_tokens_per_minute")) == []
    assert budget("acme", msgspec.structs.replace(standing, most=0)) == []


def test_a_replica_that_is_gone_or_fails_is_told() -> None:
    replicas = [
        ReplicaStatus("small-0", "small", "tiny", up=True, breaker="closed"),
        ReplicaStatus("small-1", "small", "tiny", up=False, breaker="closed"),
        ReplicaStatus("small-2", "small", "tiny", up=True, breaker="open"),
    ]
    found = lost(Overview([], replicas, [], Sums()))
    assert [(alert.subject, alert.level) for alert in found] == [("small-1", "critical"), ("small-2", "warning")]
