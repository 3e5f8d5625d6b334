"""Single flight: many ask the same at the same time, one engine answers once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.access.identity import Principal
from gateway.config.safety import SafetySettings
from gateway.config.settings import CacheSettings
from gateway.errors import ApiError, RateLimited
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Sampling
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.pipeline.sources.conftest import (
    DEMO,
    TEXT,
    Speaker,
    ask,
    counted,
    deltas_of,
    end_of,
    outcome,
    request,
    routes,
    run,
    said,
    speaking,
    text_of,
)
from tests.gateway.turns.test_across_gateways import two

pytestmark = pytest.mark.anyio

SLOW = CacheSettings(follow_seconds=0.3)


class TestFollowing:
    """Turns that get another one's answer."""

    async def test_a_hundred_identical_requests_cost_one_generation(self, serve: Serve, speaker: Speaker) -> None:
        """Each has its own events, its own entry in the books, and pays nothing but the first."""
        async with speaking(serve, speaker) as served:
            speaker.engine.gate.clear()
            every = [ask(served) for _ in range(100)]
            await asyncio.gather(*map(said, every))
            speaker.engine.gate.set()
            events = [await each.ended() for each in every]
            counters = await counted(served)
        assert speaker.asked == 1
        assert {text_of(each) for each in events} == {TEXT}
        assert {end_of(each).reason for each in events} == {"stop"}
        assert len({end_of(each).usage.output_tokens for each in events}) == 1
        outcomes = [outcome(each) for each in events]
        assert outcomes.count(("miss", "absent")) == 1
        assert outcomes.count(("hit", "joined")) == 99
        assert counters["exact_join"] == 99
        assert counters["tokens_saved"] == 99 * end_of(events[0]).usage.output_tokens
        assert (counters["exact_miss"], counters["exact_store"]) == (1, 1)

    async def test_a_follower_streams_along_live(self, serve: Serve, speaker: Speaker) -> None:
        """And one that comes later gets at once what was said before."""
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served:
            leader = ask(served)
            await said(leader)
            follower = ask(served)
            await said(follower)
            assert leader.turn is not None and not leader.turn.finished
            assert follower.turn is not None and not follower.turn.finished
            speaker.engine.gate.set()
            first, second = await leader.ended(), await follower.ended()
        assert end_of(first).usage.input_tokens == end_of(second).usage.input_tokens
        assert end_of(second).usage.cached_tokens == end_of(second).usage.input_tokens
        assert routes(second)[0].options == routes(first)[0].options != ()
        assert speaker.asked == 1

    async def test_a_follower_that_is_cancelled_leaves_the_leader_alone(self, serve: Serve, speaker: Speaker) -> None:
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served:
            leader = ask(served)
            await said(leader)
            follower = ask(served)
            await said(follower)
            assert follower.turn is not None
            follower.turn.cancel()
            assert end_of(await follower.ended()).reason == "cancelled"
            speaker.engine.gate.set()
            assert end_of(await leader.ended()).reason == "stop"

    async def test_followers_keep_a_leader_whose_client_has_gone(self, serve: Serve, speaker: Speaker) -> None:
        speaker.engine.gate.clear()
        async with speaking(serve, speaker, turns={"orphan_timeout": 0.0}) as served:
            leader = ask(served)
            await said(leader)
            follower = ask(served)
            await said(follower)
            await leader.gone()
            speaker.engine.gate.set()
            events = await follower.ended()
        assert (text_of(events), end_of(events).reason, speaker.asked) == (TEXT, "stop", 1)

    async def test_a_truncated_answer_is_followed_but_not_stored(self, serve: Serve, speaker: Speaker) -> None:
        """A run of the follower's own would have been cut off at the same place."""
        speaker.engine.finish = "length"
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served:
            every = [ask(served) for _ in range(5)]
            await asyncio.gather(*map(said, every))
            speaker.engine.gate.set()
            assert {end_of(await each.ended()).reason for each in every} == {"length"}
            assert speaker.asked == 1
            assert outcome(await run(served)) == ("miss", "absent")
        assert speaker.asked == 2

    async def test_each_follower_has_limits_of_its_own(self, serve: Serve, speaker: Speaker) -> None:
        """Turns are turns, whoever answers them."""
        speaker.engine.gate.clear()
        async with speaking(serve, speaker, limits={"concurrent_turns": 3}) as served:
            every = [ask(served) for _ in range(3)]
            await asyncio.gather(*map(said, every))
            with pytest.raises(RateLimited):
                await run(served)
            speaker.engine.gate.set()
            for each in every:
                await each.ended()

    @pytest.mark.parametrize(
        ("fields", "principal"),
        [
            ({"caching": Caching(no_store=True)}, DEMO),
            ({"caching": Caching(refresh=True)}, DEMO),
            ({"caching": Caching(tags=("faq",))}, DEMO),
            ({"instructions": "be brief"}, DEMO),
            ({"sampling": Sampling(temperature=1)}, DEMO),
            ({}, Principal("demo", "another key")),
            ({}, Principal("other", "demo")),
        ],
        ids=["no-store", "no-cache", "tag", "instructions", "random", "key", "tenant"],
    )
    async def test_whoever_asks_something_else_follows_nobody(
        self, serve: Serve, speaker: Speaker, fields: dict[str, Any], principal: Principal
    ) -> None:
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served:
            leader = ask(served)
            await said(leader)
            other = ask(served, request(**fields), principal)
            await said(other)
            speaker.engine.gate.set()
            await leader.ended()
            assert routes(await other.ended())[0].cache != "hit"
        assert speaker.asked == 2


class TestTakingOver:
    """Leaders that do not make it."""

    async def test_a_leader_that_is_cancelled(self, serve: Serve, speaker: Speaker) -> None:
        """One of its followers goes on where it was, word for word; the others follow that one."""
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served:
            leader = ask(served)
            await said(leader)
            followers = [ask(served) for _ in range(5)]
            await asyncio.gather(*map(said, followers))
            assert leader.turn is not None
            leader.turn.cancel()
            assert end_of(await leader.ended()).reason == "cancelled"
            await eventually(lambda: speaker.asked == 2)
            speaker.engine.gate.set()
            events = [await each.ended() for each in followers]
            counters = await counted(served)
        assert speaker.asked == 2
        assert {text_of(each) for each in events} == {TEXT}
        assert {end_of(each).reason for each in events} == {"stop"}
        assert counters["exact_takeover"] == 5
        assert counters["exact_join"] == 4

    async def test_one_that_takes_over_with_another_answer_fails(self, serve: Serve, speaker: Speaker) -> None:
        """Rather than mix two answers."""
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served:
            leader = ask(served)
            await said(leader)
            follower = ask(served)
            await said(follower)
            speaker.text = "A prefix cache forgets what it knows."
            assert leader.turn is not None
            leader.turn.cancel()
            speaker.engine.gate.set()
            end = end_of(await follower.ended())
        assert end.error is not None and end.error.code == "engine_failed"
        assert TEXT.startswith(follower.text)

    async def test_a_leader_that_stands_still(self, serve: Serve, speaker: Speaker) -> None:
        """It is not waited for for ever; what it says later is its own affair."""
        speaker.wordless = lambda number: number == 1
        speaker.engine.gate.clear()
        async with speaking(serve, speaker, cache=SLOW) as served:
            leader = ask(served)
            await eventually(lambda: speaker.asked == 1)
            followers = [ask(served) for _ in range(3)]
            await asyncio.gather(*map(said, followers))
            assert speaker.asked == 2
            speaker.engine.gate.set()
            for each in followers:
                assert end_of(await each.ended()).reason == "stop"
            await leader.ended()

    async def test_a_leader_whose_engine_fails(self, serve: Serve, speaker: Speaker) -> None:
        """Nobody fails because somebody else did, or waits for ever: each tries for itself."""
        speaker.engine.failing = True
        speaker.engine.script = None
        speaker.engine.gate.clear()
        async with speaking(serve, speaker) as served:
            every = [ask(served) for _ in range(4)]
            await eventually(lambda: speaker.asked == 1)
            speaker.engine.gate.set()
            for each in every:
                try:
                    error = end_of(await each.ended()).error
                except ApiError as refusal:  # there was no engine left to go to
                    error = refusal
                assert error is not None and error.code == "unavailable"
            assert speaker.asked <= 4

    async def test_an_answer_of_a_stand_in_is_nobody_elses(
        self, serve: Serve, speaker: Speaker, model: Any, engine: EngineThread
    ) -> None:
        with EngineThread(model) as mortal:
            engines = {"small": [mortal.address], "large": [speaker.engine.address]}
            async with speaking(serve, speaker, engines=engines) as served:
                await asyncio.to_thread(mortal.stop)
                await eventually(lambda: not served.gateway.engines["small-0"].client.connected)
                speaker.engine.gate.clear()
                every = [ask(served, request(model="small")) for _ in range(4)]
                await asyncio.gather(*map(said, every))
                speaker.engine.gate.set()
                outcomes = [outcome(await each.ended())[0] for each in every]
        assert (outcomes, speaker.asked) == (["miss"] * 4, 4)

    async def test_an_answer_that_a_rule_ends_is_found_by_everybody(self, serve: Serve, speaker: Speaker) -> None:
        """So that each caller's finding is written down."""
        speaker.text = "Write to bob.smith@example.com, he knows."
        async with speaking(serve, speaker, safety=SafetySettings(output={"email": "block"})) as served:
            speaker.engine.gate.clear()
            every = [ask(served) for _ in range(3)]
            await eventually(lambda: speaker.asked == 3)
            speaker.engine.gate.set()
            for each in every:
                assert end_of(await each.ended()).reason == "content_filter"
                assert each.text == "Write to "
        assert speaker.asked == 3


@contextlib.asynccontextmanager
async def two_speaking(serve: Serve, speaker: Speaker, **sections: Any) -> AsyncIterator[tuple[Served, Served]]:
    async with two(serve, engines={"small": [speaker.engine.address]}, **sections) as (one, other):
        yield one, other
        speaker.engine.gate.set()
        for served in (one, other):
            await served.settle()


class TestAcrossGateways:
    """Two gateways on one Redis."""

    async def test_identical_requests_cost_one_generation(self, serve: Serve, speaker: Speaker) -> None:
        """Followers stream along there too."""
        speaker.engine.gate.clear()
        async with two_speaking(serve, speaker) as (one, other):
            every = [ask(served) for _ in range(10) for served in (one, other)]
            await asyncio.gather(*map(said, every))
            speaker.engine.gate.set()
            events = [await each.ended() for each in every]
        assert speaker.asked == 1
        assert {text_of(each) for each in events} == {TEXT}
        assert [outcome(each)[0] for each in events].count("hit") == 19

    async def test_a_leader_that_is_cancelled_there(self, serve: Serve, speaker: Speaker) -> None:
        speaker.engine.gate.clear()
        async with two_speaking(serve, speaker) as (one, other):
            leader = ask(one)
            await said(leader)
            followers = [ask(other) for _ in range(3)]
            await asyncio.gather(*map(said, followers))
            assert leader.turn is not None
            leader.turn.cancel()
            await leader.ended()
            await eventually(lambda: speaker.asked == 2)
            speaker.engine.gate.set()
            for each in followers:
                assert (text_of(await each.ended()), end_of(each.events).reason) == (TEXT, "stop")
        assert speaker.asked == 2

    async def test_deletion_and_invalidation_are_visible_at_once(self, serve: Serve, speaker: Speaker) -> None:
        """Of one answer, of a tag, of all."""
        asked = request(caching=Caching(tags=("faq",)))
        async with two_speaking(serve, speaker) as (one, other):
            cache = one.gateway.response_cache
            (first,) = [outcome(await run(one, asked))]
            assert first == ("miss", "absent")
            for forget, reason in (
                (lambda: cache.invalidate("demo"), "invalidated"),
                (lambda: cache.invalidate("demo", "faq"), "invalidated"),
                (lambda: _remove_all(one), "absent"),
            ):
                assert outcome(await run(other, asked)) == ("hit", "stored")
                await forget()
                assert outcome(await run(other, asked)) == ("miss", reason)
                assert outcome(await run(one, asked)) == ("hit", "stored")


async def _remove_all(served: Served) -> None:
    for key in await served.gateway.redis.keys("rh1:resp:{demo}:*"):
        assert await served.gateway.response_cache.remove("demo", key.decode().rpartition(":")[2])


async def test_deltas_are_not_merged_for_a_follower_that_keeps_up(serve: Serve, speaker: Speaker) -> None:
    """It sees the stream as the leader's client does."""
    async with speaking(serve, speaker) as served:
        leader, follower = ask(served), ask(served)
        shown = 0

        async def both_have_seen_it() -> None:
            nonlocal shown
            await eventually(lambda: len(leader.text) > shown and follower.text == leader.text, lambda: leader.text)
            shown = len(leader.text)

        speaker.engine.pace = both_have_seen_it
        first, second = await leader.ended(), await follower.ended()
    assert len(deltas_of(first)) > 3
    assert [delta.text for delta in deltas_of(second)] == [delta.text for delta in deltas_of(first)]
