"""A judge compares answers of two tiers: unseen, on its own account, within its budget, and once."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from click.testing import CliRunner

from engine.wire import Generate
from gateway.access.identity import Principal
from gateway.billing import report
from gateway.billing.entry import LedgerEntry
from gateway.cli.root import main
from gateway.config.judge import JudgeSettings
from gateway.config.settings import CacheSettings, PriceSettings, RouterSettings
from gateway.pipeline.routing.decisions import Compared, read, read_feedback
from gateway.pipeline.routing.judge import ACCOUNT
from gateway.pipeline.routing.judge_days import read_days
from gateway.pipeline.routing.judgements import JudgeOpinion, read_judgements
from gateway.protocol.requests import Message
from gateway.protocol.tools import Tool, ToolUse
from gateway.records.directory import Tenant
from router.judging import FEWEST
from router.tier import TIERS
from tests.gateway.conftest import KEY, Serve, Served, eventually
from tests.gateway.frame_engine import LOAD, FrameEngine
from tests.gateway.pipeline.routing.learnt import configuration, learnt_from
from tests.gateway.pipeline.routing.test_tiers import EXAM
from tests.gateway.pipeline.sources.conftest import DEMO, Speaker, request, routes, run, text_of

pytestmark = pytest.mark.anyio

JUDGE = JudgeSettings(pool="tiny-large", share=1.0, dollars_per_day=100.0)
PRICES = [
    PriceSettings(name=f"tiny-{tier}", input=input, output=output)
    for tier, input, output in (("small", 1, 2), ("medium", 3, 5), ("large", 7, 11))
]
BUSY = msgspec.structs.replace(LOAD, predicted_queue_seconds=3.0)


class Voice(Speaker):
    """An engine that says its text, and what `judges` says of two answers where it is asked for a verdict."""

    def __init__(self, engine: FrameEngine, model: Path, text: str) -> None:
        super().__init__(engine, model)
        self.text = text
        self.judges: Callable[[str, str], str] = lambda first, second: "A" if "large" in first else "B"
        engine.script = self._say

    @property
    def verdicts(self) -> int:
        """Number of times that it was asked for one."""
        return sum("## Verdict" in self._read(asked) for asked in self.engine.generated)

    def _read(self, asked: Generate) -> str:
        return str(self.tokenizer.decode(asked.prompt, skip_special_tokens=False))

    def _say(self, asked: Generate) -> list[list[int]]:
        said, prompt = self.text, self._read(asked)
        if "## Verdict" in prompt:
            answers = prompt.partition("## Answer A")[2].partition("## Verdict")[0]
            first, _, second = answers.partition("## Answer B")
            said = self.judges(first, second)
        return [[token] for token in self.tokenizer.encode(said).ids]


Voices = dict[str, Voice]


@pytest.fixture
async def voices(model: Path) -> AsyncIterator[Voices]:
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # socket paths are short
        async with contextlib.AsyncExitStack() as stack:
            found = {}
            for tier in TIERS:
                engine = await stack.enter_async_context(FrameEngine(Path(folder) / tier[0], {}).serving())
                found[tier] = Voice(engine, model, f"The {tier} answer.")
            yield found


@contextlib.asynccontextmanager
async def judging(serve: Serve, voices: Voices, folder: Path, **changes: Any) -> AsyncIterator[Served]:
    sections: dict[str, Any] = {
        "engines": {tier: [voice.engine.address] for tier, voice in voices.items()},
        "router": RouterSettings(model=learnt_from(folder)),
        "cache": CacheSettings(enabled=False),
        "prices": PRICES,
        "judge": JUDGE,
    }
    async with serve(**{**sections, **changes}) as served:
        yield served
        await judged(served)
        await served.settle()


async def judged(served: Served) -> list[JudgeOpinion]:
    """All opinions, once there are no more to come, oldest first."""
    await eventually(lambda: served.gateway.judge.running == 0)
    await served.gateway.decisions.flush()
    return (await read_judgements(served.gateway.redis, "demo", 100))[::-1]


def counted(served: Served) -> dict[str, float]:
    """Pairs by outcome."""
    samples = served.gateway.metrics.registry.collect()
    return {
        sample.labels["outcome"]: sample.value
        for metric in samples
        if metric.name == "roundhouse_judged_pairs"
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


async def billed(served: Served) -> list[LedgerEntry]:
    """All that is in the ledger; its sums agree."""
    await served.gateway.ledger.flush()
    now = report.current_hour()
    always = report.ReportQuery(since=now - timedelta(days=1), until=now + timedelta(days=1))
    assert [each.problems async for each in report.verify(served.gateway.redis, always) if each.problems] == []
    return [entry async for entry in report.turns(served.gateway.redis, always)]


class TestShare:
    """A share of what `auto` answers."""

    async def test_the_next_tier_is_asked_and_both_answers_are_compared(
        self, serve: Serve, voices: Voices, tmp_path: Path
    ) -> None:
        """In both orders. Clients see one answer, and the log holds no text."""
        async with judging(serve, voices, tmp_path) as served:
            events = await run(served, request(EXAM))
            (found,) = await judged(served)
            (decision,) = await read(served.gateway.redis, "demo", 10)
            raw = await served.gateway.redis.xrange("rh1:route-judge:{demo}")
            assert counted(served) == {"preferred": 1}
        route = routes(events)[-1]
        assert (route.reason, text_of(events)) == ("learnt", f"The {route.tier} answer.")
        assert found.judge == "tiny-large" and voices["large"].verdicts == 2
        assert found.responses[0] == decision.response and found.tiers[0] == route.tier
        other = found.tiers[1]
        assert other != route.tier and found.responses[1] == f"{decision.response}+{other}"
        assert found.characters == tuple(len(f"The {tier} answer.") for tier in found.tiers)
        # Of two answers that are not the large tier's this judge names the second one, whichever that is.
        assert found.opinion == (0 if "large" not in found.tiers else 1 if route.tier == "large" else -1)
        assert b"answer" not in b"".join(fields[b"judgement"] for _, fields in raw)

    async def test_it_has_an_account_of_its_own(self, serve: Serve, voices: Voices, tmp_path: Path) -> None:
        """No tenant pays, and the day's budget knows what was spent."""
        async with judging(serve, voices, tmp_path) as served:
            await run(served, request(EXAM))
            await judged(served)
            entries = await billed(served)
            days = [each for each in await read_days(served.gateway.redis) if each.pairs]
        assert Counter(each.tenant for each in entries) == {"demo": 1, ACCOUNT: 3}
        own = [each for each in entries if each.tenant == ACCOUNT]
        prices = {price.name: price for price in PRICES}
        for each in own:
            price = prices[each.model]
            assert each.picodollars == each.input * price.input + each.output * price.output > 0
            assert (each.key, each.outcome) == ("demo", "completed")
        assert sum(each.spent for each in days) == sum(each.picodollars or 0 for each in own)
        assert [each.pairs for each in days] == [{"preferred": 1}]
        sent = [frame for voice in voices.values() for frame in voice.engine.generated if frame.tenant == ACCOUNT]
        assert len(sent) == 3 and {frame.service for frame in sent} == {"batch"}

    async def test_a_judge_that_favours_a_place_has_no_opinion(
        self, serve: Serve, voices: Voices, tmp_path: Path
    ) -> None:
        voices["large"].judges = lambda first, second: "A"
        async with judging(serve, voices, tmp_path) as served:
            await run(served, request(EXAM))
            (found,) = await judged(served)
            assert counted(served) == {"contradicted": 1}
        assert (found.said, found.opinion) == ((1, -1), 0)

    async def test_of_like_answers_nobody_is_asked(self, serve: Serve, voices: Voices, tmp_path: Path) -> None:
        for voice in voices.values():
            voice.text = "The same answer."
        async with judging(serve, voices, tmp_path) as served:
            await run(served, request(EXAM))
            (found,) = await judged(served)
            assert counted(served) == {"tie": 1}
        assert found.opinion == 0 and voices["large"].verdicts == 0

    @pytest.mark.parametrize(
        "fields",
        [
            {"model": "small"},
            {"messages": (Message("user", "hello"),)},
            {"tools": ToolUse(tools=(Tool(name="pay"),), allowed=("pay",))},
            {"max_output_tokens": 1},
        ],
        ids=["named", "nothing learnt", "tools", "cut off"],
    )
    async def test_what_cannot_teach_or_must_not_be_done_twice_is_left_alone(
        self, serve: Serve, voices: Voices, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        if "max_output_tokens" in fields:
            for voice in voices.values():
                voice.engine.finish = "length"
        async with judging(serve, voices, tmp_path) as served:
            await run(served, request(**{"text": EXAM, **fields}))
            assert (await judged(served), counted(served)) == ([], {})
        assert sum(voice.asked for voice in voices.values()) == 1

    @pytest.mark.parametrize("judge", [JudgeSettings(), msgspec.structs.replace(JUDGE, share=0.0)])
    async def test_it_is_off_unless_switched_on(
        self, serve: Serve, voices: Voices, tmp_path: Path, judge: JudgeSettings
    ) -> None:
        async with judging(serve, voices, tmp_path, judge=judge) as served:
            await run(served, request(EXAM))
            assert (await judged(served), counted(served)) == ([], {})

    async def test_a_tenant_without_the_judge_is_not_judged(self, serve: Serve, voices: Voices, tmp_path: Path) -> None:
        """What it sends reaches no model that it may not use."""
        async with judging(serve, voices, tmp_path) as served:
            tenant = Tenant(name="narrow", models=["tiny-small", "tiny-medium"])
            await served.gateway.directory.write(tenant, actor="test", expected=0)
            await served.gateway.view.refresh()
            await run(served, request(EXAM), Principal("narrow", "narrow"))
            await judged(served)
            assert counted(served) == {}
        assert voices["large"].asked == 0


class TestBounds:
    """Where it ends."""

    async def test_a_spent_budget_ends_it_quietly(self, serve: Serve, voices: Voices, tmp_path: Path) -> None:
        """Nobody is asked for what might cost more than there is, and nothing is owed."""
        little = msgspec.structs.replace(JUDGE, dollars_per_day=1e-12)
        async with judging(serve, voices, tmp_path, judge=little) as served:
            events = await run(served, request(EXAM))
            assert (await judged(served), counted(served)) == ([], {"budget": 1})
            assert [each.tenant for each in await billed(served)] == ["demo"]
            (day,) = [each for each in await read_days(served.gateway.redis) if each.pairs]
            assert (day.spent, day.pairs) == (0, {"budget": 1})
        assert events[-1].reason == "stop" and sum(voice.asked for voice in voices.values()) == 1

    async def test_without_prices_there_is_no_budget_to_keep(
        self, serve: Serve, voices: Voices, tmp_path: Path
    ) -> None:
        async with judging(serve, voices, tmp_path, prices=[]) as served:
            await run(served, request(EXAM))
            assert (await judged(served), counted(served)) == ([], {"unpriced": 1})

    async def test_it_is_given_up_where_others_would_wait(self, serve: Serve, voices: Voices, tmp_path: Path) -> None:
        """What was computed until then is in the ledger all the same."""

        def judges(first: str, second: str) -> str:
            for voice in voices.values():
                voice.engine.load = BUSY
            return "A"

        voices["large"].judges = judges
        async with judging(serve, voices, tmp_path) as served:
            await run(served, request(EXAM))
            assert (await judged(served), counted(served)) == ([], {"given_up": 1})
            own = [each.outcome for each in await billed(served) if each.tenant == ACCOUNT]
        assert own[0] == "completed" and set(own[1:]) <= {"cancelled"}

    async def test_a_judge_that_says_something_else_has_said_nothing(
        self, serve: Serve, voices: Voices, tmp_path: Path
    ) -> None:
        voices["large"].judges = lambda first, second: "Both!"
        async with judging(serve, voices, tmp_path) as served:
            await run(served, request(EXAM))
            assert (await judged(served), counted(served)) == ([], {"unreadable": 1})

    async def test_what_is_too_long_is_not_judged(
        self, serve: Serve, voices: Voices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.pipeline.routing.judge.MOST_CHARACTERS", len(EXAM))
        async with judging(serve, voices, tmp_path) as served:
            await run(served, request(EXAM))
            assert (await judged(served), counted(served)) == ([], {"too_long": 1})
        assert sum(voice.asked for voice in voices.values()) == 1

    async def test_it_ends_with_the_gateway(self, serve: Serve, voices: Voices, tmp_path: Path) -> None:
        """Which waits for no judge."""
        async with serve(
            engines={tier: [voice.engine.address] for tier, voice in voices.items()},
            router=RouterSettings(model=learnt_from(tmp_path)),
            prices=PRICES,
            judge=JUDGE,
        ) as served:
            await run(served, request(EXAM))
            gate = voices["large"].engine.gate
            gate.clear()
            await eventually(lambda: served.gateway.judge.running <= 1)
            judge = served.gateway.judge
        assert judge.running == 0


class TestPeople:
    """What people compare is judged as well, so that it shows whether the judge may be believed."""

    async def test_what_a_person_prefers_is_judged_once(self, serve: Serve, voices: Voices, tmp_path: Path) -> None:
        """Also if it is said again, or the other way round."""
        async with judging(serve, voices, tmp_path, judge=msgspec.structs.replace(JUDGE, share=0.0)) as served:
            small, large = [await run_id(served, model=tier) for tier in ("small", "large")]
            for _ in range(2):
                await prefer(served, large, small)
                await prefer(served, small, large)
            (found,) = await judged(served)
            feedback = await read_feedback(served.gateway.redis, "demo", 10)
        assert (found.responses, found.tiers, found.opinion) == ((large, small), ("large", "small"), 1)
        assert len(feedback) == 4 and feedback[-1].over == (Compared(small, "small"),)

    async def test_answers_of_one_tier_are_not_judged(self, serve: Serve, voices: Voices, tmp_path: Path) -> None:
        async with judging(serve, voices, tmp_path) as served:
            one, two = [await run_id(served, model="small") for _ in range(2)]
            await prefer(served, one, two)
            assert (await judged(served), counted(served)) == ([], {})


async def test_a_refit_learns_from_a_judge_whom_people_bear_out(
    serve: Serve, voices: Voices, redis_url: str, tmp_path: Path
) -> None:
    """`route stats` says how often both agree; before that, the judge teaches nothing."""
    file = learnt_from(tmp_path)
    async with judging(serve, voices, tmp_path) as served:
        await run(served, request(EXAM))
        (found,) = await judged(served)
        gateway = served.gateway
        voiced = msgspec.structs.replace(found, said=(1, 1))
        runner = CliRunner(env={"ROUNDHOUSE_REDIS_URL": redis_url, "ROUNDHOUSE_CONFIG": configuration(tmp_path, file)})

        async def command(*words: str) -> str:
            done = await asyncio.to_thread(runner.invoke, main, ["route", *words, "--tenant", "demo"])
            return done.output

        gateway.decisions.note("rh1:route-judge:{demo}", 1000, "judgement", voiced)
        await gateway.decisions.flush()
        before = await command("refit", "--output", str(tmp_path / "model"))
        assert "judge tiny-large: people have compared nothing of which it has an opinion" in before
        assert "nothing to learn from" in before
        for number in range(FEWEST):
            ids, side = (f"resp_a{number}", f"resp_b{number}"), number % 2
            both = msgspec.structs.replace(
                found, responses=ids, tiers=("small", "large"), said=(1, 1) if side else (-1, -1), characters=(5, 5)
            )
            gateway.decisions.note("rh1:route-judge:{demo}", 1000, "judgement", both)
            sides = [Compared(ids[0], "small"), Compared(ids[1], "large")]
            better, worse = sides if side else sides[::-1]
            gateway.decisions.prefer("demo", better, [worse])
        await gateway.decisions.flush()
        after = await command("refit", "--output", str(tmp_path / "model"))
        shown, plain = await command("stats"), msgspec.json.decode(await command("stats", "--json"))
    assert "0 opinions, 1 comparisons, 1 of them a judge's" in after
    assert f"judge tiny-large: agrees with people on 100% [93%, 100%] of {FEWEST} pairs" in after
    assert f"agrees with people on 100% [93%, 100%] of {FEWEST} pairs" in shown
    (judge,) = plain["judges"]
    assert (judge["judge"], judge["established"], judge["trust"]["pairs"]) == ("tiny-large", True, FEWEST)
    assert {(each["tier"], each["over"]): each["count"] for each in plain["preferred"]}["small", "large"] == FEWEST // 2


async def run_id(served: Served, **fields: Any) -> str:
    """Return the id of an answered response."""
    with await served.gateway.turns.start(request(**{"text": EXAM, **fields}), DEMO) as viewer:
        async for _ in viewer.entries():
            pass
        return viewer.turn.id


async def prefer(served: Served, better: str, worse: str) -> None:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
        body = {"rating": "preferred", "over": [worse]}
        said = await client.post(f"{served.base_url}/responses/{better}/feedback", json=body)
    assert said.status_code == 200, said.text
