"""The choice of a tier for a turn: knob, budget, conversations, and the learnt model, with real engines."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config.settings import EmbedderSettings, PoolSettings, RouterSettings, Settings
from gateway.pipeline.routing.calibration import read_model
from gateway.pipeline.routing.explaining import explain
from gateway.pipeline.routing.tiers import TierMemory, Tiers, _delays
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message
from gateway.protocol.stream import Routed
from router import features
from router.features import extract
from router.refit import Opinion, refit
from router.tier import NOMINAL, TIERS, relative
from tests.embedder import EmbedderProcess
from tests.gateway.conftest import EngineThread, Serve, Served, eventually
from tests.gateway.pipeline.routing.learnt import learnt_from
from tests.gateway.pipeline.turns import OTHER, request, routes, run

pytestmark = pytest.mark.anyio

HARD = "Explain step by step why the proof holds, compare both methods and derive the result. " * 3
EXAM = (
    "A gas expands at a constant pressure of 2 atm from 3 L to 9 L. What is the work done by it?\n"
    "1216 J\n600 J\n12 J\n1800 J\n304 J\n2432 J\n152 J\n900 J\n1000 J\n450 J"
)


@pytest.fixture
def tiers(engine: EngineThread) -> dict[str, list[str]]:
    return {tier: [engine.address] for tier in TIERS}


async def routed(served: Served, text: str = "hello", **fields: Any) -> Routed:
    return routes(await run(served, request(text, caching=Caching(no_store=True), **fields)))[0]


async def test_a_question_like_those_learnt_from_goes_by_what_was_learnt(
    serve: Serve, tiers: Any, tmp_path: Path
) -> None:
    """And says how well each tier is expected to answer."""
    async with serve(engines=tiers, router=RouterSettings(model=learnt_from(tmp_path))) as served:
        route = await routed(served, EXAM)
        chat = await routed(served, HARD)
    assert route.reason == "learnt" and route.probabilities is not None
    assert "expected to be answered well: small" in route.reasons[0]
    assert (chat.reason, chat.probabilities) == ("mixture", None)
    assert chat.reasons[1] == "it is unlike the questions that success was learnt from"


async def test_with_an_embedder_the_choice_rests_on_the_embedding_too(
    serve: Serve, tiers: Any, embedder: EmbedderProcess, tmp_path: Path
) -> None:
    """Which changes what is expected, and is the model's own prediction for both."""
    file = learnt_from(tmp_path)
    async with serve(
        engines=tiers,
        embedder=EmbedderSettings(address=f"unix://{embedder.socket}", timeout=30),
        router=RouterSettings(model=file),
    ) as served:
        client = served.gateway.embedder
        assert client is not None
        await eventually(lambda: client.hello is not None)
        route = await routed(served, f"Question: {EXAM}\nAnswer:")
        vector = (await client.embed([EXAM], seconds=30)).vectors[0]
    seen = extract([features.PromptMessage("user", EXAM)])
    model = read_model(file)
    assert route.probabilities == pytest.approx(model.predict(seen, vector).probabilities, abs=1e-4)
    assert route.probabilities != pytest.approx(model.predict(seen).probabilities, abs=1e-4)


async def test_it_can_be_switched_off_and_complexity_on(serve: Serve, tiers: Any, tmp_path: Path) -> None:
    file = learnt_from(tmp_path)
    for by_complexity, reason in ((False, "mixture"), (True, "complexity")):
        router = RouterSettings(learnt=False, model=file, by_complexity=by_complexity)
        async with serve(engines=tiers, router=router) as served:
            assert (await routed(served, EXAM)).reason == reason


class TestMixture:
    """Requests of which nothing is learnt."""

    async def test_what_was_learnt_from_other_models_is_not_used(
        self, serve: Serve, tiers: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Which is said at the start and in the reasons."""
        file = learnt_from(tmp_path, ("tiny-small", "tiny-medium", "another"))
        async with serve(engines=tiers, router=RouterSettings(model=file)) as served:
            route = await routed(served, EXAM)
        assert route.reason == "mixture" and "not calibrated for these models" in route.reasons[0]
        (record,) = [each for each in caplog.records if each.name == "roundhouse.routing"]
        assert record.getMessage() == "auto is not calibrated for these models"
        assert "was learnt from tiny-small, tiny-medium, another" in str(vars(record)["why"])

    async def test_a_request_that_comes_again_goes_the_same_way(self, serve: Serve, tiers: Any) -> None:
        """For the same user, also at another gateway; about as many as the knob says go to each tier."""
        texts = [f"question {number}" for number in range(60)]
        runs = []
        for _ in range(2):
            async with serve(engines=tiers, router=RouterSettings(sticky_seconds=0)) as served:
                runs.append([(await routed(served, text)).tier for text in texts])
        assert runs[0] == runs[1]
        costs = dict(zip(TIERS, relative(NOMINAL), strict=True))
        spent = sum(costs[tier] for tier in runs[0]) / len(texts)
        assert spent == pytest.approx(costs["small"] + 0.5 * (1 - costs["small"]), abs=0.2)

    async def test_a_conversation_keeps_its_lot(self, serve: Serve, tiers: Any) -> None:
        """So that its tier does not rise with each of its messages."""
        async with serve(engines=tiers) as served:
            for number in range(8):
                said = [Message("user", f"question {number}")]
                first = await routed(served, messages=tuple(said))
                for more in range(3):
                    said += [Message("assistant", "Yes."), Message("user", f"and {more}?")]
                    assert (await routed(served, messages=tuple(said))).tier == first.tier

    async def test_a_budget_is_kept(self, serve: Serve, tiers: Any) -> None:
        async with serve(engines=tiers, router=RouterSettings(budget=0.3, sticky_seconds=0)) as served:
            spent = partial(served.gateway.metrics.registry.get_sample_value, "roundhouse_route_budget_spent_ratio")
            for number in range(120):
                await routed(served, f"question {number}", max_output_tokens=1)
            assert spent() == pytest.approx(0.3, abs=0.08)


@pytest.mark.parametrize("text", ["hello", HARD, EXAM])
async def test_a_request_may_turn_the_knob_where_the_server_lets_it(serve: Serve, tiers: Any, text: str) -> None:
    async with serve(engines=tiers) as served:
        assert [(await routed(served, text, quality=knob)).tier for knob in (0, 100)] == ["small", "large"]
    async with serve(engines=tiers, router=RouterSettings(quality_by_request=False, quality=0)) as served:
        assert (await routed(served, text, quality=100)).tier == "small"


async def test_the_knob_of_the_configuration_is_the_same(serve: Serve, tiers: Any) -> None:
    for knob, tier in ((0, "small"), (100, "large")):
        async with serve(engines=tiers, router=RouterSettings(quality=knob)) as served:
            assert (await routed(served, HARD)).tier == tier


async def test_a_long_text_that_is_no_chat_goes_to_medium(serve: Serve, tiers: Any) -> None:
    async with serve(engines=tiers, router=RouterSettings(by_complexity=True)) as served:
        route = await routed(served, "lorem ipsum " * 400)
    assert (route.tier, route.reason) == ("medium", "uncertain")


async def test_a_conversation_does_not_fall_below_a_tier_that_it_has_used(serve: Serve, tiers: Any) -> None:
    """Whoever else begins with the same words has a conversation of his own."""
    first = Message("user", HARD)
    follow_up = (first, Message("assistant", "Because."), Message("user", "thanks"))
    async with serve(engines=tiers, router=RouterSettings(by_complexity=True)) as served:
        assert (await routed(served, HARD)).tier == "large"
        later = await routed(served, messages=follow_up)
        other = routes(await run(served, request(messages=follow_up, caching=Caching(no_store=True)), OTHER))[0]
        anew = await routed(served, "thanks")
    assert later.tier == "large"
    assert "does not go below it" in " ".join(later.reasons)
    assert (other.tier, anew.tier) == ("small", "small")
    async with serve(engines=tiers, router=RouterSettings(by_complexity=True, sticky_seconds=0)) as served:
        assert (await routed(served, HARD)).tier == "large"
        assert (await routed(served, messages=follow_up)).tier == "small"


async def test_a_budget_makes_quality_dearer_when_it_is_overspent(serve: Serve, tiers: Any) -> None:
    """The same hard question again and again: large until the price has risen, then as often as the budget allows."""
    router = RouterSettings(budget=0.5, sticky_seconds=0, by_complexity=True)
    async with serve(engines=tiers, router=router) as served:
        spent = partial(served.gateway.metrics.registry.get_sample_value, "roundhouse_route_budget_spent_ratio")
        assert math.isnan(spent() or 0.0)
        chosen = [(await routed(served, HARD)).tier for _ in range(60)]
        await served.settle()
        told = spent()
    steady = chosen[next(number for number, tier in enumerate(chosen) if tier != "large") :]
    costs = dict(zip(TIERS, relative(NOMINAL), strict=True))
    assert chosen[0] == "large" and len(steady) > 20
    assert told == pytest.approx(sum(costs[tier] for tier in chosen) / len(chosen), abs=0.02)
    assert sum(costs[tier] for tier in steady) / len(steady) == pytest.approx(0.5, abs=0.1)


async def test_without_the_medium_tier_there_are_two(serve: Serve, engine: EngineThread) -> None:
    engines = {"small": [engine.address], "large": [engine.address]}
    async with serve(engines=engines, router=RouterSettings(by_complexity=True)) as served:
        assert [(await routed(served, text)).tier for text in ("hello", HARD)] == ["small", "large"]


def test_predictions_and_prices_are_those_of_the_configured_model(tmp_path: Path) -> None:
    """One that was refitted to opinions that find the small tier bad."""
    learnt, file = learnt_from(tmp_path, ("a", "", "b")), tmp_path / "router.safetensors"
    file.write_bytes(refit(read_model(learnt), [Opinion("small", 0.9, 1.0, False)] * 50))
    pools = (PoolSettings(tier="small", name="a", model="m"), PoolSettings(tier="large", name="b", model="m"))
    before, after = (
        Tiers(Settings(pools=list(pools), router=RouterSettings(model=path)), TierMemory(), None)
        for path in (learnt, str(file))
    )
    seen = extract([features.PromptMessage("user", EXAM)])
    old, new = before.predict(seen), after.predict(seen)
    assert old is not None and old.probabilities is not None and new is not None and new.probabilities is not None
    assert new.probabilities[0] < 0.95 * old.probabilities[0]
    assert new.probabilities[2] == pytest.approx(old.probabilities[2], abs=0.01)
    assert after.price(50) != before.price(50)
    assert after.policy.model != before.policy.model


def test_what_waits_at_a_tier_is_what_waits_at_the_least_busy_engine_of_all_of_its_pools() -> None:
    def pool(tier: str, *loads: int, connected: bool = True) -> Any:
        engines = [SimpleNamespace(load=load, client=SimpleNamespace(connected=connected)) for load in loads]
        return SimpleNamespace(tier=tier, routable=engines)

    gone = pool("small", 0, connected=False)
    pools = [pool("small", 5000, 2000), gone, pool("small", 9000), pool("large", 1000), pool("large")]
    assert _delays(pools) == (2.0, 0.0, 1.0)


def test_an_explanation_draws_no_tier() -> None:
    """Nobody would see by it where the text goes."""
    pools = [PoolSettings(tier=tier, name=f"tiny-{tier}", model="m") for tier in ("small", "large")]
    tiers = Tiers(Settings(pools=pools, router=RouterSettings(explore=1.0)), TierMemory(), None)
    choices = [explain(tiers, HARD, 0).choice for _ in range(10)]
    assert {choice.tier for choice in choices} == {"small"} and choices[0].terms.explore == 1.0
