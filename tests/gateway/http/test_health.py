"""`/healthz`, `/readyz`, `/metrics`, and errors of paths and methods."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis

from gateway import __version__
from gateway.access.identity.secret import DIFFERENT, FINGERPRINT_KEY, check
from router.route import ComingTier
from tests.conftest import redis_server
from tests.gateway.conftest import EngineThread, Serve, Served, eventually

pytestmark = pytest.mark.anyio


async def get(served: Served, path: str, method: str = "GET") -> httpx2.Response:
    # Plain HTTP: reading the system's certificates would take longer than the request.
    async with httpx2.AsyncClient(base_url=served.url, verify=False) as client:
        return await client.request(method, path)


async def test_a_gateway_with_engines_and_redis_is_ready(serve: Serve) -> None:
    """And alive."""
    async with serve() as served:
        assert (await get(served, "/healthz")).status_code == 200
        ready = await get(served, "/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "problems": []})


async def test_vllms_names_are_served(serve: Serve) -> None:
    """Load tools ask for them before they begin."""
    async with serve() as served:
        health, version = await get(served, "/health"), await get(served, "/version")
    assert (health.status_code, health.json()["status"]) == (200, "ready")
    assert version.json() == {"version": __version__}


async def test_a_gateway_is_ready_while_models_of_other_tiers_are_coming(serve: Serve) -> None:
    """And says how far they are."""
    async with serve() as served:
        served.gateway.arrivals.coming["large"] = ComingTier(tier="large", model="l", size=1_117_320_768, here=5 << 26)
        ready = await get(served, "/readyz")
    assert ready.status_code == 200
    assert ready.json() == {"status": "ready", "problems": ["the large tier (l) is coming: 30 % of 1,117 MB"]}


async def test_a_gateway_whose_engines_are_gone_is_not_ready_but_alive(serve: Serve, model: Path) -> None:
    """It says which ones."""
    with EngineThread(model) as mortal:
        async with serve(engines={"small": [mortal.address]}) as served:
            await asyncio.to_thread(mortal.stop)
            await eventually(lambda: bool(served.gateway.engines.problems()))
            ready = await get(served, "/readyz")
            assert (await get(served, "/healthz")).status_code == 200
    assert ready.status_code == 503
    assert ready.json() == {
        "status": "not ready",
        "problems": ["no engine of the small tier (tiny-small) is connected"],
    }


async def test_a_gateway_with_the_engines_of_one_tier_is_degraded(serve: Serve, model: Path) -> None:
    """Turns for `auto` go on, so that it stays in its load balancer."""
    with EngineThread(model) as small, EngineThread(model) as large:
        async with serve(engines={"small": [small.address], "large": [large.address]}) as served:
            await asyncio.to_thread(large.stop)
            await eventually(lambda: bool(served.gateway.engines.problems()))
            ready = await get(served, "/readyz")
            answer = await served.client.responses.create(model="auto", input="hello", max_output_tokens=2)
    assert ready.status_code == 200
    assert ready.json() == {"status": "degraded", "problems": ["no engine of the large tier (tiny-large) is connected"]}
    assert answer.status == "incomplete"


async def test_a_gateway_without_redis_is_degraded(serve: Serve) -> None:
    """Until Redis answers again: turns go on, within limits of its own."""
    redis = redis_server()
    with redis as url:
        async with serve(redis_options={"url": url}) as served:
            await asyncio.to_thread(redis.stop)
            ready = await get(served, "/readyz")
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
            assert ready.json()["problems"] == [
                "Redis does not answer: limits are this gateway's own, and nothing is stored"
            ]
            await served.client.responses.create(model="small", input="hello", max_output_tokens=2)
            await asyncio.to_thread(redis.start)
            ready = await get(served, "/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "problems": []})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"limits": {"on_redis_down": "deny"}}, 'limits.on_redis_down is "deny"'),
        ({"tenants": []}, "no tenants have been read"),
    ],
)
async def test_a_gateway_that_answers_nobody_without_redis_is_not_ready(
    serve: Serve, changes: dict[str, Any], problem: str
) -> None:
    redis = redis_server()
    with redis as url:
        async with serve(redis_options={"url": url}, **changes) as served:
            await asyncio.to_thread(redis.stop)
            ready = await get(served, "/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
            assert problem in ready.json()["problems"][0]
            await asyncio.to_thread(redis.start)
            assert (await get(served, "/readyz")).status_code == 200


async def test_a_secret_that_could_not_be_compared_at_the_start_is_compared_once_redis_answers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway with another one than the others is not ready until it is theirs."""
    turn = asyncio.Lock()

    async def check_in_turn(redis: Redis, secret: bytes) -> bool | None:
        async with turn:
            return await check(redis, secret)

    monkeypatch.setattr("gateway.access.identity.secret.RETRY", 0.05)
    monkeypatch.setattr("gateway.access.identity.secret.check", check_in_turn)
    redis = redis_server()
    with redis as url, caplog.at_level(logging.ERROR, "roundhouse.identity"):
        await asyncio.to_thread(redis.stop)
        async with serve(redis_options={"url": url}) as served:
            assert (await get(served, "/readyz")).json()["status"] == "degraded"
            async with Redis.from_url(url) as client:
                async with turn:  # else the gateway may be the first to set the fingerprint
                    await asyncio.to_thread(redis.start)
                    await client.set(FINGERPRINT_KEY, "0" * 64)
                await eventually(lambda: served.gateway.comparison.same is False)
                ready = await get(served, "/readyz")
                assert (ready.status_code, ready.json()["problems"]) == (503, [DIFFERENT])
                assert "ROUNDHOUSE_SECRET" in caplog.text
                await client.delete(FINGERPRINT_KEY)
                await eventually(lambda: served.gateway.comparison.same is True)
            assert (await get(served, "/readyz")).status_code == 200


async def test_a_draining_gateway_is_not_ready(serve: Serve) -> None:
    """From the first moment on."""
    async with serve() as served:
        served.gateway.turns.draining = True
        ready = await get(served, "/readyz")
    assert (ready.status_code, ready.json()["problems"]) == (503, ["the server is restarting"])


async def test_metrics_show_engines_and_redis(serve: Serve) -> None:
    """In Prometheus' format."""
    async with serve() as served:
        page = await get(served, "/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert 'roundhouse_engine_up{model="tiny-small",replica="small-0",tier="small"} 1.0' in page.text
    assert "roundhouse_redis_up 1.0" in page.text
    assert 0 <= float(re.findall(r"^roundhouse_directory_age_seconds (\S+)", page.text, flags=re.MULTILINE)[0]) < 60


async def test_paths_and_methods_that_do_not_exist(serve: Serve) -> None:
    """In OpenAI's error shape too."""
    async with serve() as served:
        unknown = await get(served, "/v1/nothing")
        wrong = await get(served, "/v1/responses/resp_1", method="PUT")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_every_answer_says_what_the_gateway_itself_took(serve: Serve) -> None:
    async with serve() as served:
        answer = await served.client.responses.with_raw_response.create(
            model="small", input="hello", max_output_tokens=4
        )
        assert 0 < float(answer.headers["x-roundhouse-overhead-ms"]) < float("inf")
        page = (await get(served, "/metrics")).text
    counts = dict(re.findall(r'roundhouse_overhead_seconds_count\{stage="(\w+)"\} (\S+)', page))
    assert set(counts.values()) == {"1.0"}, counts
    assert 'roundhouse_breaker_state{target="small-0"} 0.0' in page
    assert 'roundhouse_breaker_state{target="limits"} 0.0' in page
    assert int(float(re.findall(r"^roundhouse_redis_seconds_count (\S+)", page, flags=re.MULTILINE)[0])) >= 2
