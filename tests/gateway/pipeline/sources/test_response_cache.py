"""Stored answers: replayed as they were streamed, on conditions, to whom they belong."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from cache.shape import MAX_DELTAS
from gateway.access.identity import Principal
from gateway.config.safety import SafetyPattern, SafetySettings
from gateway.config.settings import CacheSettings, PriceSettings
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message, Sampling
from tests.gateway.conftest import Serve, Served, receive, send, until_end
from tests.gateway.pipeline.sources.conftest import (
    DEMO,
    TEXT,
    Speaker,
    counted,
    deltas_of,
    end_of,
    outcome,
    request,
    routes,
    run,
    speaking,
    text_of,
)

pytestmark = pytest.mark.anyio

CHAT: Any = {"model": "auto", "messages": [{"role": "user", "content": "What is a prefix cache?"}]}
SHARED = CacheSettings(scope="tenant")
CUSTOMER = SafetyPattern(name="customer", pattern="ACME-[0-9]{4}")


class TestReplay:
    """A hit looks as the answer did when it was made."""

    async def test_has_the_same_deltas_usage_and_end(self, serve: Serve, speaker: Speaker) -> None:
        price = PriceSettings(name="tiny-small", input=9_000_000, output=9_000_000)
        async with speaking(serve, speaker, prices=[price]) as served:
            first, second = await run(served), await run(served)
            counters = await counted(served)
        assert (outcome(first), outcome(second)) == (("miss", "absent"), ("hit", "stored"))
        assert [delta.token_ids for delta in deltas_of(second)] != []
        assert text_of(second) == text_of(first) == TEXT
        made, replayed = end_of(first), end_of(second)
        assert replayed.reason == made.reason == "stop"
        assert replayed.usage.input_tokens == replayed.usage.cached_tokens == made.usage.input_tokens
        assert replayed.usage.output_tokens == made.usage.output_tokens
        assert (made.cost, replayed.cost) == (counters["microdollars_saved"], 0)
        assert counters["tokens_saved"] == made.usage.output_tokens
        assert counters["prompt_tokens_saved"] == made.usage.input_tokens

    async def test_says_what_the_tiers_came_to_when_it_was_made(self, serve: Serve, speaker: Speaker) -> None:
        """Of a request that left its tier open; of one that names it nothing was compared."""
        async with speaking(serve, speaker) as served:
            first, second = [routes(await run(served))[0] for _ in range(2)]
            named = [routes(await run(served, request(model="small")))[0] for _ in range(2)]
        assert (first.cache, second.cache, named[1].cache) == ("miss", "hit", "hit")
        assert [each.tier for each in first.options if each.chosen] == [first.tier]
        assert second.options == first.options
        assert [each.options for each in named] == [(), ()]

    async def test_is_streamed_in_the_same_chunks_by_every_endpoint(self, serve: Serve, speaker: Speaker) -> None:
        """WebSocket, server-sent events, chat completions."""
        async with speaking(serve, speaker) as served:
            made = await run(served)
            pieces = [delta.text for delta in _unmerged(served)]
            assert len(pieces) > 5 and "".join(pieces) == text_of(made)

            async with served.connect() as socket:
                await send(socket, type="response.create", model="auto", input="What is a prefix cache?")
                events = await until_end(lambda: receive(socket))
            assert events[2]["cache"] == "hit" and events[2]["cache_reason"] == "stored"
            by_socket = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]

            stream = await served.client.responses.create(model="auto", input="What is a prefix cache?", stream=True)
            by_sse = [event.delta async for event in stream if event.type == "response.output_text.delta"]

            options: Any = {"include_usage": True, "continuous_usage_stats": True}
            chat = await served.client.chat.completions.create(**CHAT, stream=True, stream_options=options)
            chunks = [chunk async for chunk in chat]
            by_chat = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
            sums = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
        assert by_socket == by_sse == pieces
        assert [piece for piece in by_chat if piece] == [piece for piece in pieces if piece]
        assert sums == sorted(sums) and len(set(sums)) > 5  # tokens come with the deltas that they came with
        assert speaker.asked == 1

    async def test_of_a_long_answer_has_a_bounded_number_of_deltas(self, serve: Serve, speaker: Speaker) -> None:
        speaker.text = "word " * 600
        async with speaking(serve, speaker) as served:
            await run(served)
            second = await run(served)
        assert outcome(second) == ("hit", "stored")
        assert text_of(second) == speaker.text
        assert MAX_DELTAS / 2 <= len(deltas_of(second)) <= MAX_DELTAS

    async def test_can_be_resumed_after_any_delta(self, serve: Serve, speaker: Speaker) -> None:
        async with speaking(serve, speaker) as served:
            await run(served)
            async with served.connect() as socket:
                await send(socket, type="response.create", model="auto", input="What is a prefix cache?")
                events = await until_end(lambda: receive(socket))
                id = events[0]["response"]["id"]
                for after in range(events[-1]["sequence_number"]):
                    await send(socket, type="response.resume", response_id=id, starting_after=after)
                    resumed = await until_end(lambda: receive(socket))
                    assert resumed == [event for event in events if event["sequence_number"] > after]

    async def test_of_an_empty_answer_is_empty(self, serve: Serve, speaker: Speaker) -> None:
        speaker.text = ""
        async with speaking(serve, speaker) as served:
            await run(served)
            second = await run(served)
        assert (outcome(second), text_of(second), end_of(second).reason) == (("hit", "stored"), "", "stop")


class TestConditions:
    """`Cache-Control`, over HTTP and WebSocket."""

    async def test_each_has_its_outcome(self, serve: Serve, speaker: Speaker) -> None:
        async with speaking(serve, speaker) as served:

            async def ask(control: str | None) -> tuple[str, str]:
                headers = {} if control is None else {"cache-control": control}
                raw = await served.client.chat.completions.with_raw_response.create(**CHAT, extra_headers=headers)
                return raw.headers["x-roundhouse-cache"], raw.headers["x-roundhouse-cache-reason"]

            with pytest.raises(openai.InternalServerError) as caught:
                await ask("only-if-cached")
            assert (caught.value.status_code, caught.value.code) == (504, "not_cached")
            assert [await ask(None), await ask(None)] == [("miss", "absent"), ("hit", "stored")]
            assert await ask("only-if-cached") == ("hit", "stored")
            assert await ask("no-store") == ("bypass", "no_store")
            assert await ask("no-cache") == ("miss", "refresh")
            assert await ask("max-age=100") == ("hit", "stored")
            assert await ask("max-age=0") == ("miss", "refresh")
            await _age(served, 50)
            assert await ask("max-age=49") == ("miss", "stale")
            assert await ask("max-age=49") == ("hit", "stored")
            assert speaker.asked == 5

    async def test_a_websocket_says_it_in_the_body(self, serve: Serve, speaker: Speaker) -> None:
        async with speaking(serve, speaker) as served, served.connect() as socket:

            async def ask(**options: Any) -> dict[str, Any]:
                await send(socket, type="response.create", model="auto", input="What is a cache?", roundhouse=options)
                events = await until_end(lambda: receive(socket))
                return next((each for each in events if each["type"] == "roundhouse.route"), events[-1])

            refused = await ask(cache="only-if-cached")
            assert (refused["status"], refused["error"]["code"]) == (504, "not_cached")
            for options, said in (
                ({"cache_tags": ["faq"]}, ("miss", "absent")),
                ({"cache_tags": ["faq"], "cache": "only-if-cached"}, ("hit", "stored")),
                ({"cache": "no-store"}, ("bypass", "no_store")),
                ({"cache_tags": ["faq"], "cache": "no-cache"}, ("miss", "refresh")),
                ({}, ("miss", "absent")),
            ):
                route = await ask(**options)
                assert (route["cache"], route["cache_reason"]) == said

    async def test_a_refused_request_is_not_charged(self, serve: Serve, speaker: Speaker) -> None:
        async with speaking(serve, speaker) as served:
            with pytest.raises(openai.InternalServerError):
                await served.client.chat.completions.create(**CHAT, extra_headers={"cache-control": "only-if-cached"})
        assert speaker.asked == 0


class TestNever:
    """What is not looked up or not stored; rules that need no gateway are in tests/cache/test_policy.py."""

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"caching": Caching(no_store=True)}, "no_store"),
            ({"caching": Caching(several=True)}, "several"),
            ({"generate": False}, "warm_up"),
            ({"sampling": Sampling(logprobs=0)}, "logprobs"),
            ({"sampling": Sampling(temperature=0.5)}, "random"),
            ({"messages": (Message("user", "What's the weather today?"),)}, "time"),
            ({"messages": (Message("user", "News?"), Message("assistant", "No."), Message("user", "Ok"))}, "time"),
            ({"messages": (Message("user", "Tell me another joke"),)}, "chance"),
            ({"messages": (), "prompt": "The latest price is"}, "time"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_requests(self, serve: Serve, speaker: Speaker, fields: dict[str, Any], reason: str) -> None:
        async with speaking(serve, speaker) as served:
            for _ in range(2):
                assert outcome(await run(served, request(**fields))) == ("bypass", reason)
            counters = await counted(served)
        assert counters[f"exact_bypass.{reason}"] == 2
        assert "exact_store" not in counters

    @pytest.mark.parametrize(
        ("text", "sections", "reason"),
        [
            ("I'm sorry, but I can't help with that.", {}, "refusal"),
            ("x" * 70, {"cache": CacheSettings(max_entry_bytes=64)}, "too_large"),
            ("Write to bob@example.com.", {"safety": SafetySettings(output={"email": "block"})}, "blocked"),
            (
                "Write to bob@example.com.",
                {"safety": SafetySettings(output={"email": "flag"}), "cache": SHARED},
                "personal",
            ),
            ("Write to bob@example.com.", {"cache": SHARED}, "personal"),
        ],
    )
    async def test_answers(
        self, serve: Serve, speaker: Speaker, text: str, sections: dict[str, Any], reason: str
    ) -> None:
        speaker.text = text
        async with speaking(serve, speaker, **sections) as served:
            for _ in range(2):
                assert outcome(await run(served))[0] == "miss"
            counters = await counted(served)
            assert not await served.gateway.redis.keys("rh1:resp:*")
        assert counters[f"exact_reject.{reason}"] == 2

    async def test_several_answers_to_one_prompt(self, serve: Serve, speaker: Speaker) -> None:
        """Each is made, though they are the same."""
        async with speaking(serve, speaker) as served:
            for asked in (2, 4):
                raw = await served.client.chat.completions.with_raw_response.create(**CHAT, n=2)
                assert raw.headers["x-roundhouse-cache"] == "bypass"
                assert speaker.asked == asked


class TestScope:
    """Who is given an answer."""

    BOB, ANN = Principal("demo", "demo", "bob"), Principal("demo", "demo", "ann")

    async def test_is_the_user(self, serve: Serve, speaker: Speaker) -> None:
        async with speaking(serve, speaker) as served:
            outcomes = [outcome(await run(served, None, each))[0] for each in (self.BOB, self.ANN, DEMO, self.BOB)]
        assert outcomes == ["miss", "miss", "miss", "hit"]

    async def test_is_the_tenant_if_that_is_configured(self, serve: Serve, speaker: Speaker) -> None:
        everybody = (self.BOB, self.ANN, DEMO, Principal("demo", "other"))
        async with speaking(serve, speaker, cache=CacheSettings(tenant_scopes={"demo": "tenant"})) as served:
            outcomes = [outcome(await run(served, None, each))[0] for each in everybody]
            others = [outcome(await run(served, None, Principal("other", key)))[0] for key in ("a", "b")]
        assert outcomes == ["miss", "hit", "hit", "hit"]
        assert others == ["miss", "miss"]

    @pytest.mark.parametrize(
        ("fields", "sections"),
        [
            ({"messages": (Message("user", "Where is my parcel?"),)}, {}),
            ({"messages": (Message("user", "Who is bob@example.com?"),)}, {}),
            ({"instructions": "You talk to bob@example.com."}, {}),
            (
                {"messages": (Message("user", "Who has ACME-1234?"),)},
                {"safety": SafetySettings(input={"customer": "flag"}, patterns=[CUSTOMER])},
            ),
        ],
        ids=["words", "question", "instructions", "rule"],
    )
    async def test_is_the_user_for_what_is_personal(
        self, serve: Serve, speaker: Speaker, fields: dict[str, Any], sections: dict[str, Any]
    ) -> None:
        async with speaking(serve, speaker, cache=SHARED, **sections) as served:
            asked = request(**fields)
            outcomes = [outcome(await run(served, asked, each))[0] for each in (self.BOB, self.ANN, self.BOB)]
        assert outcomes == ["miss", "miss", "hit"]

    async def test_tenants_never_share(self, serve: Serve, speaker: Speaker) -> None:
        """Whatever is configured: not an answer, not a digest."""
        principals = [Principal(tenant, "k", "bob") for tenant in ("a", "b", "c")]
        async with speaking(serve, speaker, cache=SHARED) as served:
            outcomes = [outcome(await run(served, None, each))[0] for each in principals]
            keys = [key.decode() for key in await served.gateway.redis.keys("rh1:resp:*")]
        assert outcomes == ["miss"] * 3
        assert len({key.rpartition(":")[2] for key in keys}) == len(keys) == 3


async def test_a_cancelled_answer_is_not_stored(serve: Serve, speaker: Speaker) -> None:
    speaker.engine.gate.clear()
    async with speaking(serve, speaker) as served:
        with await served.gateway.turns.start(request(), DEMO) as viewer:
            viewer.turn.cancel()
            async for _ in viewer.entries():
                pass
        await asyncio.sleep(0)
        speaker.engine.gate.set()
        assert outcome(await run(served))[0] == "miss"
        counters = await counted(served)
    assert counters["exact_reject.unfinished"] == 1


def _unmerged(served: Served) -> list[Any]:
    """The deltas of the first turn, each by itself."""
    (turn,) = [served.gateway.turns.get(id) for id in served.gateway.turns._turns]
    assert turn is not None
    item = turn.log.messages[0]
    return [item.merged(number, number + 1) for number in range(item.deltas)]


async def _age(served: Served, seconds: int) -> None:
    """Make all stored answers older."""
    for key in await served.gateway.redis.keys("rh1:resp:*"):
        made = await served.gateway.redis.hget(key, "created")
        assert made is not None
        await served.gateway.redis.hset(key, "created", str(float(made) - seconds))
