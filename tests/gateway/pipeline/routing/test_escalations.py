"""Another answer of the next tier where the first one looks bad: what clients see, what is owed, what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from gateway.billing import report
from gateway.billing.entry import LedgerEntry
from gateway.billing.report import ReportQuery
from gateway.config.settings import PriceSettings, RouterSettings
from gateway.pipeline.routing.decisions import read
from gateway.protocol.output_format import parse_structured_outputs
from gateway.protocol.requests import Sampling, TurnRequest
from router.route import RoutingPolicy
from router.tier import NOMINAL, TIERS, relative
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.pipeline.sources.conftest import DEMO, Speaker, ask, end_of, outcome, request, routes, said, text_of

pytestmark = pytest.mark.anyio

ON = RouterSettings(by_complexity=True, escalate=True, escalate_logprob=-2.0, sticky_seconds=0)
GOOD = "It keeps what was computed."
WHY = "Explain step by step why the proof holds."
REFUSAL = "I'm sorry, but I can't help with that."
Voices = dict[str, Speaker]


@pytest.fixture
async def voices(model: Path) -> AsyncIterator[Voices]:
    """An engine for each tier. The small one refuses, the others do well."""
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            found = {}
            for tier in TIERS:
                engine = FrameEngine(Path(folder) / tier[0], {})
                found[tier] = Speaker(await stack.enter_async_context(engine.serving()), model)
                found[tier].text = REFUSAL if tier == "small" else GOOD
            yield found


@contextlib.asynccontextmanager
async def speaking(serve: Serve, voices: Voices, router: RouterSettings = ON, **sections: Any) -> AsyncIterator[Served]:
    engines = {tier: [voice.engine.address] for tier, voice in voices.items()}
    async with serve(engines=engines, router=router, **sections) as served:
        yield served
        await served.settle()


def easy(text: str = "hello", **fields: Any) -> TurnRequest:
    """For the small tier."""
    return request(text, **fields)


async def wait(served: Served, asked: TurnRequest | None = None) -> list[Any]:
    """The events of a turn, for somebody who waits for its end."""
    async with asyncio.timeout(30):
        with await served.gateway.turns.start(asked or easy(), DEMO, live=False) as viewer:
            return [entry.event async for entry in viewer.entries() if entry.event is not None]


async def stream(served: Served, asked: TurnRequest | None = None) -> list[Any]:
    """The same, for somebody who reads along."""
    return await ask(served, asked or easy()).ended()


def tiers(events: list[Any]) -> list[tuple[str, str]]:
    return [(route.tier, route.reason) for route in routes(events)]


def counted(served: Served) -> dict[tuple[str, ...], float]:
    """Answers that looked bad."""
    samples = served.gateway.metrics.registry.collect()
    return {
        tuple(sample.labels.values()): sample.value
        for metric in samples
        if metric.name == "roundhouse_escalations"
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


ONCE = [("small", "complexity")]
TWICE = [("small", "complexity"), ("medium", "escalated")]


class TestSignals:
    """What looks bad."""

    @pytest.mark.parametrize("signal", ["empty", "schema", "refusal", "doubt"])
    async def test_each_has_the_next_tier_answer(self, serve: Serve, voices: Voices, signal: str) -> None:
        """Only that answer is seen; the route says what it takes the place of, and both are in the usage."""
        small, fields = voices["small"], dict[str, Any]()
        if signal == "schema":
            fields = {"format": parse_structured_outputs({"json_object": True})}
        small.text = {"empty": "", "schema": "perhaps", "refusal": REFUSAL, "doubt": "It forgets."}[signal]
        voices["medium"].text = "{}" if signal == "schema" else GOOD
        small.engine.logprob = -9.0 if signal == "doubt" else -0.1
        async with speaking(serve, voices) as served:
            events = await wait(served, easy(**fields))
            found = counted(served)
        assert tiers(events) == TWICE
        assert text_of(events) == voices["medium"].text
        earlier, usage = routes(events)[1].earlier, end_of(events).usage
        assert earlier is not None and (earlier.tier, earlier.model, earlier.signal) == ("small", "tiny-small", signal)
        tokens = [len(voice.tokenizer.encode(voice.text).ids) for voice in (small, voices["medium"])]
        assert earlier.usage.output_tokens == tokens[0]
        assert usage.output_tokens == sum(tokens)
        assert usage.input_tokens == sum(route.input_tokens for route in routes(events))
        assert found == {("small", signal, "escalated"): 1}

    async def test_there_is_one_second_answer_whatever_it_looks_like(self, serve: Serve, voices: Voices) -> None:
        voices["medium"].text = REFUSAL
        async with speaking(serve, voices) as served:
            assert tiers(await wait(served)) == TWICE
        assert [voice.asked for voice in voices.values()] == [1, 1, 0]

    async def test_a_good_answer_is_given_as_it_is(self, serve: Serve, voices: Voices) -> None:
        voices["small"].text = GOOD
        async with speaking(serve, voices) as served:
            events = await wait(served)
            assert (tiers(events), text_of(events), counted(served)) == (ONCE, GOOD, {})

    @pytest.mark.parametrize("logprob", [-2.0, None])
    async def test_log_probabilities_are_computed_only_where_they_count(
        self, serve: Serve, voices: Voices, logprob: float | None
    ) -> None:
        """And are not shown to who has not asked for them."""
        voices["small"].text = GOOD
        async with speaking(
            serve, voices, RouterSettings(by_complexity=True, escalate=True, escalate_logprob=logprob)
        ) as served:
            events = await wait(served)
        (asked,) = voices["small"].engine.generated
        assert asked.sampling.logprobs == (None if logprob is None else 0)
        assert not [event for event in events if getattr(event, "logprobs", ())]

    async def test_it_is_off_unless_switched_on(self, serve: Serve, voices: Voices) -> None:
        async with speaking(serve, voices, RouterSettings(by_complexity=True)) as served:
            events = await wait(served)
        assert (tiers(events), text_of(events)) == (ONCE, REFUSAL)

    async def test_who_names_a_tier_gets_its_answer(self, serve: Serve, voices: Voices) -> None:
        async with speaking(serve, voices) as served:
            assert tiers(await wait(served, easy(model="small"))) == [("small", "requested")]

    async def test_an_engine_tells_how_likely_its_tokens_were(self, serve: Serve, engine: EngineThread) -> None:
        """A real one: a random model finds nothing likely."""
        for bound, expected in ((-0.01, TWICE), (-100.0, ONCE)):
            router = RouterSettings(by_complexity=True, escalate=True, escalate_logprob=bound, sticky_seconds=0)
            async with serve(engines={tier: [engine.address] for tier in TIERS}, router=router) as served:
                asked = easy(sampling=Sampling(ignore_eos=True), max_output_tokens=8)
                events = await wait(served, asked)
                await served.settle()
            assert tiers(events) == expected
            assert end_of(events).usage.output_tokens == 8 * len(expected)


class TestWorth:
    """Only where the expected gain is more than the cost."""

    async def test_where_quality_costs_too_much_there_is_no_second_answer(self, serve: Serve, voices: Voices) -> None:
        """Nothing is held back either, where nothing would pay."""
        async with speaking(serve, voices) as served:
            events = await wait(served, easy(quality=0))
            assert (tiers(events), counted(served)) == (ONCE, {})

    async def test_doubt_pays_less_than_an_empty_answer(self, serve: Serve, voices: Voices) -> None:
        voices["medium"].text, voices["medium"].engine.logprob = GOOD, -9.0
        async with speaking(serve, voices) as served:
            doubtful = await wait(served, easy(WHY, quality=4))
            voices["medium"].text = ""
            empty = await wait(served, easy(WHY + " Really?", quality=4))
            found = counted(served)
        assert tiers(doubtful) == [("medium", "complexity")]
        assert tiers(empty) == [("medium", "complexity"), ("large", "escalated")]
        assert found == {("medium", "doubt", "not_worth_it"): 1, ("medium", "empty", "escalated"): 1}


class TestStreams:
    """Those who read along."""

    async def test_what_was_shown_is_not_taken_back(self, serve: Serve, voices: Voices) -> None:
        async with speaking(serve, voices) as served:
            events = await stream(served)
        assert (tiers(events), text_of(events)) == (ONCE, REFUSAL)

    async def test_an_empty_answer_shows_nothing(self, serve: Serve, voices: Voices) -> None:
        """Who streams is told what was given up."""
        voices["small"].text = ""
        async with speaking(serve, voices) as served:
            with await served.gateway.turns.start(easy(), DEMO) as viewer:
                shown = [viewer.turn.view.event(entry) async for entry in viewer.entries()]
        first, second = [event for event in shown if event["type"] == "roundhouse.route"]
        assert "earlier" not in first
        assert second["earlier"] == {
            "tier": "small",
            "model": "tiny-small",
            "signal": "empty",
            "input_tokens": len(voices["small"].engine.generated[0].prompt),
            "output_tokens": 0,
        }
        assert "the small tier's answer was empty" in second["reasons"][-1]
        assert shown[-1]["response"]["output"][0]["content"][0]["text"] == GOOD

    async def test_a_short_answer_can_be_held_back(self, serve: Serve, voices: Voices) -> None:
        async with speaking(
            serve, voices, RouterSettings(by_complexity=True, escalate=True, escalate_hold=256)
        ) as served:
            events = await stream(served)
        assert (tiers(events), text_of(events)) == (TWICE, GOOD)

    async def test_a_longer_one_is_shown_while_it_runs(self, serve: Serve, voices: Voices) -> None:
        """After so many tokens, all of them at once."""
        voices["small"].engine.gate.clear()
        async with speaking(
            serve, voices, RouterSettings(by_complexity=True, escalate=True, escalate_hold=5)
        ) as served:
            asked = ask(served, easy())
            await said(asked, REFUSAL)
            voices["small"].engine.gate.set()
            assert tiers(await asked.ended()) == ONCE


class TestChatCompletions:
    """OpenAI's older endpoint."""

    @pytest.mark.parametrize("stream", [False, True])
    async def test_only_the_second_answer_is_seen(self, serve: Serve, voices: Voices, stream: bool) -> None:
        """Under its model's name, also in a stream."""
        voices["small"].text = ""
        asked: Any = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
        async with speaking(serve, voices) as served:
            create = served.client.chat.completions.create
            if stream:
                chunks = [chunk async for chunk in await create(**asked, stream=True)]
                models = {chunk.model for chunk in chunks}
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            else:
                completion = await create(**asked)
                models, text = {completion.model}, completion.choices[0].message.content or ""
        assert (models, text) == ({"tiny-medium"}, GOOD)


class TestAccounts:
    """Both answers are owed."""

    async def test_each_has_an_entry_at_its_own_price(self, serve: Serve, voices: Voices, redis_url: str) -> None:
        prices = [
            PriceSettings(name=f"tiny-{tier}", input=input, output=output)
            for tier, input, output in (("small", 1_000_000, 2_000_000), ("medium", 3_000_000, 5_000_000))
        ]
        async with speaking(serve, voices, prices=prices) as served:
            response = await served.client.responses.create(model="auto", input="hello")
            first, second = await _entries(served)
        assert response.output_text == GOOD and response.model == "tiny-medium"
        assert (first.outcome, first.model, second.outcome, second.model) == (
            *("escalated", "tiny-small"),
            *("completed", "tiny-medium"),
        )
        assert first.picodollars == 1_000_000 * first.input + 2_000_000 * first.output
        assert second.picodollars == 3_000_000 * second.input + 5_000_000 * second.output
        assert response.usage is not None
        assert response.usage.output_tokens == first.output + second.output
        assert response.usage.input_tokens == first.input + second.input
        owed = response.model_extra["roundhouse"]["cost_microdollars"] if response.model_extra else None
        assert owed == (first.picodollars + second.picodollars) // 1_000_000

    async def test_without_room_in_the_limits_the_first_answer_is_given(self, serve: Serve, voices: Voices) -> None:
        async with speaking(serve, voices, limits={"output_tokens_per_minute": 60}) as served:
            events = await wait(served, easy(max_output_tokens=40))
            found = counted(served)
        assert (tiers(events), text_of(events)) == (ONCE, REFUSAL)
        assert found == {("small", "refusal", "limited"): 1}

    async def test_limits_count_both(self, serve: Serve, voices: Voices) -> None:
        async with speaking(serve, voices, limits={"output_tokens_per_minute": 1000}) as served:
            events = await wait(served, easy(max_output_tokens=40))
        reading = next(r for event in events for r in getattr(event, "readings", ()) if r.name.startswith("output"))
        used = end_of(events).usage.output_tokens
        assert tiers(events) == TWICE
        assert reading.limit - reading.remaining == pytest.approx(used, abs=1)

    async def test_a_budget_pays_for_both(self, serve: Serve, voices: Voices) -> None:
        """Beside what the dearest tier would have cost for one answer."""
        async with speaking(
            serve, voices, RouterSettings(by_complexity=True, escalate=True, budget=0.5, sticky_seconds=0)
        ) as served:
            events = await wait(served)
            memory = served.gateway.turns._pipeline._tiers._memory  # type: ignore[attr-defined]
        small, medium, _ = relative(NOMINAL)
        earlier, usage, budget = routes(events)[1].earlier, end_of(events).usage, memory.budgets[0.5]
        assert earlier is not None
        second = usage.total_tokens - earlier.usage.total_tokens
        assert budget.spent == pytest.approx(small * earlier.usage.total_tokens + medium * second)
        assert budget.requests == 1 and budget.dearest > 0

    async def test_the_decision_is_logged_and_can_be_made_again(
        self, serve: Serve, voices: Voices, redis_url: str
    ) -> None:
        async with speaking(serve, voices) as served:
            events = await wait(served)
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            (entry,) = await read(client, "demo", 10)
        earlier = routes(events)[1].earlier
        assert entry.escalation is not None and earlier is not None
        assert (entry.choice.tier, entry.tier, entry.escalation.signal) == ("small", "medium", "refusal")
        assert entry.earlier_output_tokens == earlier.usage.output_tokens
        assert entry.reproducible


class TestFailure:
    """A second answer never costs the first one."""

    async def test_a_next_tier_that_gives_nothing_changes_nothing(self, serve: Serve, voices: Voices) -> None:
        """It is not asked of a third tier either."""
        voices["medium"].engine.failing = True
        async with speaking(serve, voices) as served:
            events = await wait(served)
            found, entries = counted(served), await _entries(served)
        assert (tiers(events), text_of(events), end_of(events).reason) == (ONCE, REFUSAL, "stop")
        assert found == {("small", "refusal", "unavailable"): 1}
        assert [(entry.outcome, entry.tier) for entry in entries] == [("completed", "small")]
        assert voices["large"].asked == 0

    async def test_a_client_that_cancels_gets_no_second_answer(self, serve: Serve, voices: Voices) -> None:
        voices["small"].engine.gate.clear()
        async with speaking(serve, voices) as served:
            with await served.gateway.turns.start(easy(), DEMO, live=False) as viewer:
                await eventually(lambda: voices["small"].asked == 1)
                viewer.turn.cancel()
                voices["small"].engine.gate.set()
                async for _ in viewer.entries():
                    pass
            assert viewer.turn.log.finished is not None and viewer.turn.log.finished.reason == "cancelled"
        assert voices["medium"].asked == 0


class TestCache:
    """What `auto` gave is what is stored."""

    async def test_the_second_answer_is_stored_under_the_request(self, serve: Serve, voices: Voices) -> None:
        async with speaking(serve, voices) as served:
            asked = easy(sampling=Sampling(temperature=0))
            await wait(served, asked)
            again = await wait(served, asked)
        assert (outcome(again)[0], text_of(again), routes(again)[0].tier) == ("hit", GOOD, "medium")
        assert end_of(again).usage.output_tokens == len(voices["medium"].tokenizer.encode(GOOD).ids)

    async def test_those_who_follow_a_turn_get_its_second_answer(self, serve: Serve, voices: Voices) -> None:
        """And no usage of the first one."""
        engine = voices["small"].engine
        engine.gate.clear()
        async with speaking(serve, voices) as served:
            asked = easy(sampling=Sampling(temperature=0))
            every = [asyncio.create_task(wait(served, asked)) for _ in range(5)]
            await eventually(lambda: voices["small"].asked == 1)
            engine.gate.set()
            events = await asyncio.gather(*every)
        assert {text_of(each) for each in events} == {GOOD}
        assert [voice.asked for voice in voices.values()] == [1, 1, 0]
        hits = [each for each in events if outcome(each)[0] == "hit"]
        assert len(hits) == 4
        assert {routes(each)[-1].tier for each in events} == {"medium"}
        tokens = len(voices["medium"].tokenizer.encode(GOOD).ids)
        assert {end_of(each).usage.output_tokens for each in hits} == {tokens}

    def test_the_setting_is_a_part_of_the_key(self) -> None:
        changed = [RoutingPolicy(escalate=True), RoutingPolicy(escalate_hold=1), RoutingPolicy(escalate_logprob=-1.0)]
        assert len({policy.digest for policy in (RoutingPolicy(), *changed)}) == 4


async def _entries(served: Served) -> list[LedgerEntry]:
    """The ledger's entries of the tenant, what was given up first; the sums agree with them."""
    await served.gateway.ledger.flush()
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    query = ReportQuery(since=now - timedelta(hours=1), until=now + timedelta(hours=1))
    assert [each.problems async for each in report.verify(served.gateway.redis, query)] == [[]]
    return sorted(
        [each async for each in report.turns(served.gateway.redis, query)], key=lambda each: each.outcome != "escalated"
    )
