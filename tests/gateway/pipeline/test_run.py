"""The road of a turn, with real engines and a real Redis: limits, cache, routing, fallback, failure, settlement."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.text.processor import TextProcessor
from gateway.access.identity import Principal
from gateway.config.safety import SafetySettings
from gateway.config.settings import CacheSettings, PriceSettings, RouterSettings
from gateway.errors import ApiError, ContextLengthExceeded, InvalidRequest, ModelNotFound, Unavailable
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message, Sampling, TurnRequest
from gateway.protocol.stream import Finished, LimitState, Routed, TextDelta
from gateway.safety.guard import Guard
from gateway.tools.answer import AnswerReader
from tests.conftest import redis_server
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.limits.use import STILL
from tests.gateway.limits.use import used as used_by

pytestmark = pytest.mark.anyio

DEMO = Principal("demo", "demo")
OTHER = Principal("other", "other")


def request(text: str = "hello", **fields: Any) -> TurnRequest:
    defaults: dict[str, Any] = {
        "model": "auto",
        "messages": (Message("user", text),),
        "sampling": Sampling(ignore_eos=True),
        "max_output_tokens": 4,
    }
    return TurnRequest(**{**defaults, **fields})


async def run(served: Served, asked: TurnRequest, principal: Principal = DEMO) -> list[Any]:
    """The neutral events of one turn."""
    with await served.gateway.turns.start(asked, principal) as viewer:
        return [entry.event async for entry in viewer.entries() if entry.event is not None]


def routes(events: list[Any]) -> list[Routed]:
    return [event for event in events if isinstance(event, Routed)]


def text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def stopping(served: Served, **changes: Any) -> TurnRequest:
    """A request whose greedy answer soon ends of itself: its stop string is in the answer."""
    fields: dict[str, Any] = {"sampling": Sampling(temperature=0), "max_output_tokens": 50, **changes}
    whole = text(await run(served, request(**{**fields, "max_output_tokens": 12, "caching": Caching(no_store=True)})))
    return request(**{"stop": (whole[2:4],), **fields})


class TestRoute:
    """Which engine answers."""

    async def test_auto_goes_by_complexity_and_a_name_by_itself(self, serve: Serve, engine: EngineThread) -> None:
        """A tier's name, a model's name; the reasons are told."""
        tiers = {tier: [engine.address] for tier in ("small", "medium", "large")}
        hard = "Explain step by step why the proof holds, compare both methods and derive the result. " * 3
        async with serve(engines=tiers) as served:
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
                await served.settle()
        assert [(route.tier, route.reason) for route in routes(first)] == [("large", "fallback")]
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
        """No other engine goes on with its text; the next turn is answered by the other tier."""
        with EngineThread(model) as mortal:
            async with serve(engines={"small": [mortal.address], "large": [engine.address]}) as served:
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


class TestLimits:
    """Reserve and settle."""

    async def test_a_turn_is_charged_for_what_it_used(self, serve: Serve) -> None:
        """Reserved was more."""
        async with serve(limits=STILL) as served:
            events = await run(served, request(max_output_tokens=4))
            (state,) = (event for event in events if isinstance(event, LimitState))
            used = await used_by(served)
            assert used["output_tokens_per_minute"] == 4
            assert used["input_tokens_per_minute"] == events[-1].usage.input_tokens
            assert {each.name: each.limit - each.remaining for each in state.readings} == used
            refused = await _code(served, request("no such model", model="nope"))
            assert refused == "model_not_found"
            assert await used_by(served) == used
            await served.settle()

    @pytest.mark.parametrize("limit", ["requests_per_minute", "concurrent_turns"])
    async def test_cheap_limits_come_before_work(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch, limit: str
    ) -> None:
        """Nothing reads the text of who has sent too many requests: no rule, no template, no tokenizer."""
        read: list[str] = []

        def note(owner: type, name: str) -> None:
            real = getattr(owner, name)

            def called(*arguments: Any, **options: Any) -> Any:
                read.append(name)
                return real(*arguments, **options)

            monkeypatch.setattr(owner, name, called)

        note(Guard, "admit")
        note(TextProcessor, "encode_chat")
        safety = SafetySettings(input={"email": "redact"})
        async with serve(limits={limit: 1, "burst_seconds": 1}, safety=safety) as served:
            with await served.gateway.turns.start(request(max_output_tokens=3000), DEMO) as viewer:
                async for entry in viewer.entries():
                    if isinstance(entry.event, TextDelta):
                        break
                assert read == ["admit", "encode_chat"]
                for text in ("second", "long " * 1000):
                    assert await _code(served, request(text)) == "rate_limit_exceeded"
                assert read == ["admit", "encode_chat"]
                viewer.turn.cancel()
            await served.settle()

    async def test_a_request_that_is_refused_for_its_text_or_size_is_one_request_and_nothing_else(
        self, serve: Serve
    ) -> None:
        """What it had taken beside that comes back."""
        limits = {**STILL, "requests_per_minute": 10, "concurrent_turns": 1}
        async with serve(limits=limits, safety=SafetySettings(input={"email": "block"})) as served:
            before = await used_by(served)
            assert await _code(served, request("write to a@example.com " + "long " * 500)) == "content_blocked"
            assert await _code(served, request("long " * 2000)) == "request_exceeds_limit"
            after = await used_by(served)
            assert {name: after[name] - before[name] for name in after} == {
                **dict.fromkeys(after, 0), "requests_per_minute": 2,
            }  # fmt: skip
            await served.settle()

    async def test_what_was_not_used_comes_back_when_a_turn_is_cancelled(self, serve: Serve) -> None:
        """Only the tokens that were computed count."""
        async with serve(limits=STILL) as served:
            with await served.gateway.turns.start(request(max_output_tokens=3000), DEMO) as viewer:
                async for entry in viewer.entries():
                    if isinstance(entry.event, TextDelta):
                        viewer.turn.cancel()
            finished = viewer.turn.log.finished
            assert finished is not None and finished.reason == "cancelled"
            used = await used_by(served)
            assert used["output_tokens_per_minute"] == finished.usage.output_tokens < 3000
            assert used["input_tokens_per_minute"] == finished.usage.input_tokens
            await served.settle()

    async def test_the_mode_expected_reserves_what_answers_mostly_need(self, serve: Serve) -> None:
        """The output limit as long as little is known."""
        limits = {"output_tokens_per_minute": 100, "mode": "expected"}
        async with serve(limits=limits, turns={"default_max_output_tokens": 50}) as served:
            assert await _code(served, request(max_output_tokens=101)) == "request_exceeds_limit"
            for _ in range(100):
                served.gateway.limiter.expectations.observe("demo", "auto", 3)
            events = await run(served, request(max_output_tokens=101, sampling=Sampling(ignore_eos=True)))
            assert events[-1].usage.output_tokens == 101
            assert await _code(served, request(max_output_tokens=101)) == "rate_limit_exceeded"
            await served.settle()

    async def test_a_warm_up_is_charged_for_its_prompt(self, serve: Serve) -> None:
        """Nothing was generated for anybody."""
        async with serve() as served:
            events = await run(served, request("warm " * 50, generate=False))
        assert events[-1].reason == "stop"
        assert events[-1].usage.output_tokens == 0 < events[-1].usage.input_tokens
        assert not text(events)


class TestCost:
    """What a turn costs, told at its end."""

    PRICE = PriceSettings(name="tiny-small", input=1_000_000, output=3_000_000)

    async def test_a_turn_costs_its_tokens_and_a_stored_answer_nothing(self, serve: Serve) -> None:
        """Here a micro-dollar per token of input and three per token of output."""
        async with serve(prices=[self.PRICE]) as served:
            asked = await stopping(served)
            first, again = await run(served, asked), await run(served, asked)
            await served.settle()
        assert first[-1].cost == first[-1].usage.input_tokens + 3 * first[-1].usage.output_tokens > 0
        assert (routes(again)[0].cache, again[-1].cost) == ("hit", 0)

    async def test_clients_are_told(self, serve: Serve) -> None:
        """In the response and a header; nothing is told of a model without a price."""
        async with serve(prices=[self.PRICE]) as served:
            raw = await served.client.responses.with_raw_response.create(input="hello", max_output_tokens=3)
            answer = await served.client.chat.completions.with_raw_response.create(
                model="auto", messages=[{"role": "user", "content": "hello"}], max_tokens=3, n=2
            )
            response: Any = raw.parse()
            stored: Any = await served.client.responses.retrieve(response.id)
        owed = response.usage.input_tokens + 3 * response.usage.output_tokens
        assert response.roundhouse == stored.roundhouse == {"cost_microdollars": owed}
        assert raw.headers["x-roundhouse-cost-microdollars"] == str(owed)
        # Two answers are two turns, each with its prompt.
        usage = answer.parse().usage
        assert usage is not None
        assert int(answer.headers["x-roundhouse-cost-microdollars"]) == (
            2 * usage.prompt_tokens + 3 * usage.completion_tokens
        )
        async with serve() as served:
            raw = await served.client.responses.with_raw_response.create(input="hello", max_output_tokens=3)
        assert "roundhouse" not in raw.parse().to_dict()
        assert "x-roundhouse-cost-microdollars" not in raw.headers

    async def test_what_was_delivered_is_owed_when_the_gateway_itself_fails(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Told, charged, and no reservation is left behind."""
        broken = AnswerReader.read
        seen: list[int] = []

        def read(reader: AnswerReader, text: str, tokens: Sequence[int], logprobs: Any) -> Any:
            if len(seen) > 20:
                raise RuntimeError("a fault of ours")
            seen.extend(tokens)
            return broken(reader, text, tokens, logprobs)

        monkeypatch.setattr(AnswerReader, "read", read)
        async with serve(prices=[self.PRICE], limits=STILL) as served:
            events = await run(served, request(max_output_tokens=2000))
            used = await used_by(served)
            await served.settle()
        finished = events[-1]
        assert finished.reason == "error" and finished.error.status == 500
        # With the last delta may have come the first bytes of a character, which are not shown yet.
        assert len(seen) <= finished.usage.output_tokens <= len(seen) + 3
        assert used["output_tokens_per_minute"] == finished.usage.output_tokens
        assert finished.cost == finished.usage.input_tokens + 3 * finished.usage.output_tokens


async def test_turns_go_on_without_redis(serve: Serve) -> None:
    """Limits are kept within the process, the cache misses; nothing leaks when Redis comes back."""
    redis = redis_server()
    with redis as url:
        async with serve(redis_at=url) as served:
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
        await _code(served, request(model="nope"))
        page = await served.client.with_options(base_url=served.url).get("/metrics", cast_to=str)
        await served.settle()
    assert 'roundhouse_turns_total{outcome="completed",tier="small"} 2.0' in page
    assert 'roundhouse_turns_total{outcome="incomplete",tier="small"} 1.0' in page
    assert 'roundhouse_turns_total{outcome="refused",tier=""} 1.0' in page
    assert 'roundhouse_response_cache_requests_total{result="hit"} 1.0' in page
    assert "roundhouse_turns_running 0.0" in page
    assert "demo" not in page


async def _code(served: Served, asked: TurnRequest) -> str:
    with pytest.raises(ApiError) as caught:
        await run(served, asked)
    return caught.value.code


async def _silent_engine(engine: EngineThread) -> Any:
    """Something that introduces itself as an engine and hangs up on the first request."""
    from websockets.asyncio.server import ServerConnection, serve

    from engine.wire import PROTOCOL_VERSION, Ready, encode

    async def handle(connection: ServerConnection) -> None:
        await connection.send(encode(Ready(PROTOCOL_VERSION, engine.core.model, engine.core.load())))
        await connection.recv()
        await connection.close()

    return serve(handle, "127.0.0.1", 0)


def _address(server: Any) -> str:
    host, port = next(iter(server.server.sockets)).getsockname()[:2]
    return f"ws://{host}:{port}"
