"""Turns from request to answer, with real engines and a real Redis: cache, routing, fallback, failure."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.access.identity import Principal
from gateway.config.settings import CacheSettings, RouterSettings
from gateway.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, Unavailable
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message, Sampling, TurnRequest
from gateway.protocol.stream import Finished, TextDelta
from tests.conftest import redis_server
from tests.gateway.conftest import EngineThread, Serve, eventually
from tests.gateway.pipeline.turns import DEMO, OTHER, code_of, request, routes, run, stopping, text

pytestmark = pytest.mark.anyio


class TestRoute:
    """Which engine answers."""

    async def test_auto_goes_by_complexity_and_a_name_by_itself(self, serve: Serve, engine: EngineThread) -> None:
        """A tier's name, a model's name; the reasons are told."""
        tiers = {tier: [engine.address] for tier in ("small", "medium", "large")}
        hard = "Explain step by step why the proof holds, compare both methods and derive the result. " * 3
        async with serve(engines=tiers, router=RouterSettings(by_complexity=True)) as served:
            chosen = [
                routes(await run(served, asked))[0]
                for asked in (request(), request(hard), request(model="medium"), request(model="tiny-large"))
            ]
            await served.settle()
        assert [(route.tier, route.reason) for route in chosen] == [
            ("small", "complexity"),
            ("large", "complexity"),
            ("medium", "requested"),
            ("large", "requested"),
        ]
        assert chosen[1].reasons and chosen[1].complexity is not None

    async def test_an_unknown_model_is_refused_by_name(self, serve: Serve) -> None:
        """With the names that exist; nothing is charged."""
        async with serve() as served:
            with pytest.raises(ModelNotFound, match=r"'gpt-6' does not exist.*tiny-small"):
                await run(served, request(model="gpt-6"))
            await served.settle()

    async def test_a_prompt_that_does_not_fit_is_refused(self, serve: Serve) -> None:
        """So is an output limit beyond the context."""
        async with serve() as served:
            for asked in (request("long " * 4000), request(max_output_tokens=5000)):
                with pytest.raises(ContextLengthExceeded, match="4096 tokens"):
                    await run(served, asked)
            await served.settle()

    async def test_an_answer_without_a_limit_ends_at_the_context(self, serve: Serve) -> None:
        """The configured default never exceeds what is left of it."""
        async with serve(turns={"default_max_output_tokens": 100_000}) as served:
            events = await run(served, request("long " * 950, max_output_tokens=None))
            await served.settle()
        finished = events[-1]
        assert finished.reason == "length"
        assert finished.usage.total_tokens == 4096

    async def test_a_chat_template_may_refuse_and_an_empty_prompt_is_refused(self, serve: Serve) -> None:
        """A clear error instead of an engine's."""
        async with serve() as served:
            with pytest.raises(InvalidRequest, match="empty"):
                await run(served, TurnRequest(model="auto", prompt=()))
            await served.settle()


class TestFallback:
    """Engines that are away, or go."""

    async def test_the_next_tier_stands_in_for_one_that_is_down(
        self, serve: Serve, model: Path, engine: EngineThread
    ) -> None:
        """The route says so, and the answer is not stored."""
        with EngineThread(model) as mortal:
            async with serve(engines={"small": [mortal.address], "large": [engine.address]}) as served:
                await asyncio.to_thread(mortal.stop)
                await eventually(lambda: not served.gateway.engines["small-0"].client.connected)
                first = await run(served, request(model="small"))
                second = await run(served, request(model="small"))
                with pytest.raises(Unavailable, match="try again"):
                    await run(served, request(model="tiny-small"))
                page = served.gateway.metrics.page().decode()
                await served.settle()
        assert [(route.tier, route.reason) for route in routes(first)] == [("large", "fallback")]
        assert 'roundhouse_turns_total{outcome="unavailable",tier=""} 1.0' in page
        assert routes(second)[0].cache == "miss"
        assert isinstance(first[-1], Finished) and first[-1].reason == "length"

    async def test_an_engine_that_dies_before_its_first_token_is_replaced(
        self, serve: Serve, engine: EngineThread
    ) -> None:
        """The viewer sees two routes and one answer."""
        silent = await _silent_engine(engine)
        async with silent, serve(engines={"small": [_address(silent)], "large": [engine.address]}) as served:
            events = await run(served, request(model="small"))
            await served.settle()
        assert [(route.tier, route.reason) for route in routes(events)] == [
            ("small", "requested"),
            ("large", "fallback"),
        ]
        assert "small-0 did not answer, large-0 stands in" in routes(events)[1].reasons
        assert text(events)

    async def test_an_engine_that_dies_while_it_answers_fails_the_turn_only(
        self, serve: Serve, model: Path, engine: EngineThread
    ) -> None:
        """No engine of another model goes on with its text; the next turn is answered by the other tier."""
        with EngineThread(model) as mortal:
            engines = {"small": [mortal.address], "large": [engine.address]}
            async with serve(engines=engines, turns={"move_timeout": 0.1}) as served:
                with await served.gateway.turns.start(request(model="small", max_output_tokens=3000), DEMO) as viewer:
                    events = []
                    async for entry in viewer.entries():
                        events.append(entry.event)
                        if isinstance(entry.event, TextDelta) and len(events) < 12:
                            await asyncio.to_thread(mortal.stop)
                after = await run(served, request(model="small"))
                await served.settle()
        finished = events[-1]
        assert isinstance(finished, Finished)
        assert finished.error is not None and finished.error.code == "engine_failed"
        assert finished.usage.output_tokens > 0
        assert routes(after)[-1].tier == "large"


class TestCache:
    """The exact response cache."""

    async def test_the_same_question_is_answered_from_the_cache(self, serve: Serve) -> None:
        """Word for word, without an engine, and free of charge; other questions are not."""
        async with serve() as served:
            asked = await stopping(served)
            first = await run(served, asked)
            second = await run(served, asked)
            other = await run(served, await stopping(served, messages=(Message("user", "other"),)))
            await served.settle()
        assert first[-1].reason == "stop"
        assert text(first)
        assert (routes(first)[0].cache, routes(second)[0].cache, routes(other)[0].cache) == ("miss", "hit", "miss")
        assert text(second) == text(first)
        assert second[-1].usage.output_tokens == first[-1].usage.output_tokens
        assert routes(second)[0].model == "tiny-small"

    @pytest.mark.parametrize(
        ("change", "principal"),
        [
            ({"instructions": "be brief"}, DEMO),
            ({"model": "small"}, DEMO),
            ({"stop": ("zzz",)}, DEMO),
            ({"max_output_tokens": 2001}, DEMO),
            ({"sampling": Sampling(temperature=0, top_p=0.5)}, DEMO),
            ({}, OTHER),
        ],
        ids=lambda value: value.tenant if isinstance(value, Principal) else str(value),
    )
    async def test_whatever_may_change_the_answer_makes_another_key(
        self, serve: Serve, change: dict[str, Any], principal: Principal
    ) -> None:
        """Instructions, model, stop strings, limits, sampling, tenant."""
        async with serve() as served:
            await run(served, await stopping(served))
            events = await run(served, await stopping(served, **change), principal)
        assert routes(events)[0].cache == "miss"

    @pytest.mark.parametrize(
        "change",
        [
            {"caching": Caching(no_store=True)},
            {"sampling": Sampling(temperature=1)},
            {"sampling": Sampling(temperature=0, logprobs=1)},
        ],
        ids=str,
    )
    async def test_some_requests_bypass_it(self, serve: Serve, change: dict[str, Any]) -> None:
        """Who opts out, what is random, what asks for log-probabilities."""
        async with serve() as served:
            for _ in range(2):
                events = await run(served, await stopping(served, **change))
                assert routes(events)[0].cache == "bypass"

    async def test_a_seed_makes_a_random_request_cacheable(self, serve: Serve) -> None:
        """It always gives the same answer."""
        async with serve() as served:
            asked = await stopping(served, sampling=Sampling(temperature=1, seed=7))
            first, second = await run(served, asked), await run(served, asked)
        assert routes(second)[0].cache == "hit"
        assert text(first) == text(second)

    async def test_a_truncated_answer_is_not_stored(self, serve: Serve) -> None:
        """Nor one that was cancelled or failed: the rule asks for a natural end."""
        async with serve() as served:
            for _ in range(2):
                assert routes(await run(served, request()))[0].cache == "miss"

    async def test_it_can_be_switched_off(self, serve: Serve) -> None:
        """In the configuration."""
        async with serve(cache=CacheSettings(enabled=False)) as served:
            for _ in range(2):
                assert routes(await run(served, await stopping(served)))[0].cache == "bypass"

    async def test_another_policy_makes_another_key(self, serve: Serve) -> None:
        """`auto` may mean another model then."""
        async with serve() as served:
            await run(served, await stopping(served))
        async with serve(router=RouterSettings(medium_from=0.9, large_from=0.95)) as served:
            assert routes(await run(served, await stopping(served)))[0].cache == "miss"


async def test_turns_go_on_without_redis(serve: Serve) -> None:
    """Limits are kept within the process, the cache misses; nothing leaks when Redis comes back."""
    redis = redis_server()
    with redis as url:
        async with serve(redis_options={"url": url}) as served:
            await asyncio.to_thread(redis.stop)
            down = await run(served, request(sampling=Sampling(temperature=0)))
            await asyncio.to_thread(redis.start)
            up = await run(served, request(sampling=Sampling(temperature=0)))
            await served.settle()
    assert text(down) == text(up)


async def test_metrics_and_statistics_count_turns(serve: Serve) -> None:
    """Without a tenant in any label; per-tenant numbers are in Redis."""
    async with serve() as served:
        asked = await stopping(served)
        for _ in range(2):
            await run(served, asked)
        await code_of(served, request(model="nope"))
        page = await served.client.with_options(base_url=served.url).get("/metrics", cast_to=str)
        await served.settle()
    assert 'roundhouse_turns_total{outcome="completed",tier="small"} 2.0' in page
    assert 'roundhouse_turns_total{outcome="incomplete",tier="small"} 1.0' in page
    assert 'roundhouse_turns_total{outcome="refused",tier=""} 1.0' in page
    assert 'roundhouse_response_cache_requests_total{result="hit"} 1.0' in page
    assert "roundhouse_turns_running 0.0" in page
    assert "demo" not in page


async def _silent_engine(engine: EngineThread) -> Any:
    """Something that introduces itself as an engine and hangs up on the first request."""
    from websockets.asyncio.server import ServerConnection, serve

    from engine.wire import PROTOCOL_MIN, Ready, encode

    async def handle(connection: ServerConnection) -> None:
        await connection.send(encode(Ready(PROTOCOL_MIN, engine.core.model, engine.core.load())))
        await connection.recv()
        await connection.close()

    return serve(handle, "127.0.0.1", 0)


def _address(server: Any) -> str:
    host, port = next(iter(server.server.sockets)).getsockname()[:2]
    return f"ws://{host}:{port}"
