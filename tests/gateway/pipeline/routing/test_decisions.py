"""The decision log: what is in it, what is not, and that its decisions can be made again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
import redis.asyncio
from click.testing import CliRunner, Result

from gateway.cli.root import main
from gateway.config.settings import RouterSettings, SettingsError
from gateway.pipeline.routing.calibration import read_model
from gateway.pipeline.routing.decisions import (
    FEEDBACK_KEY,
    KEY,
    Compared,
    DecisionLog,
    Feedback,
    LoggedDecision,
    judged_answers,
    preferences,
    read,
    read_feedback,
)
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message
from router.refit import read_suite
from router.success import Basis, Prediction, SuccessModel, shipped
from router.tier import TIERS, Outlook, ValueSource, choose
from tests.gateway.conftest import KEY as KEY_OF_DEMO
from tests.gateway.conftest import EngineThread, Serve
from tests.gateway.pipeline.routing.learnt import configuration, learnt_from
from tests.gateway.pipeline.routing.test_tiers import EXAM, HARD
from tests.gateway.pipeline.turns import request, routes, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def tiers(engine: EngineThread) -> dict[str, list[str]]:
    return {tier: [engine.address] for tier in ("small", "medium", "large")}


@pytest.fixture
def learnt(tmp_path: Path) -> RouterSettings:
    """A model for the pools of `tiers`."""
    return RouterSettings(model=learnt_from(tmp_path))


async def command(redis_url: str, *words: str, config: str | None = None) -> Result:
    """`roundhouse route <words>`; it has an event loop of its own."""
    served = {"ROUNDHOUSE_CONFIG": config} if config else {"ROUNDHOUSE_MODELS_SERVE": ""}
    runner = CliRunner(env={"ROUNDHOUSE_REDIS_URL": redis_url, **served})
    return await asyncio.to_thread(runner.invoke, main, ["route", *words])


async def test_a_logged_decision_can_be_made_again_and_holds_no_text(
    serve: Serve, tiers: Any, redis_url: str, learnt: RouterSettings
) -> None:
    """Of `auto` only; with exploration, whose draw is logged."""
    async with serve(engines=tiers, router=msgspec.structs.replace(learnt, explore=0.2)) as served:
        for text in (HARD, EXAM, "hello xyzzy"):
            await run(served, request(text))
        await run(served, request("named", model="small"))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        found = await read(client, "demo", 10)
        raw = str(await client.xrange(KEY.format(tenant="demo")))
        assert 0 < await client.ttl(KEY.format(tenant="demo")) <= 35 * 24 * 3600
    assert len(found) == 3 and all(each.reproducible for each in found)
    assert found[1].choice.outlook.prediction is not None and found[1].choice.outlook.prediction.probabilities
    assert [each.features["lines"] for each in found] == [1, 11, 1]
    assert all(0 < each.choice.propensity <= 1 for each in found)
    assert not any(word in raw for word in ("xyzzy", "proof", "gas"))
    assert "3 decisions, 3 made again alike" in (await command(redis_url, "replay", "--tenant", "demo")).output


async def test_a_decision_that_comes_out_differently_is_reported(serve: Serve, tiers: Any, redis_url: str) -> None:
    async with serve(engines=tiers) as served:
        await run(served, request(HARD))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        (entry,) = await read(client, "demo", 1)
        other = "large" if entry.choice.tier == "small" else "small"
        forged = msgspec.structs.replace(entry, choice=msgspec.structs.replace(entry.choice, tier=other))
        await client.xadd(KEY.format(tenant="demo"), {"decision": msgspec.json.encode(forged)})
    result = await command(redis_url, "replay", "--tenant", "demo")
    assert result.exit_code == 1 and entry.response in result.output


async def test_the_log_is_capped_and_can_be_switched_off(serve: Serve, tiers: Any, redis_url: str) -> None:
    async with serve(engines=tiers, router=RouterSettings(log_entries=0)) as served:
        await run(served, request(HARD))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert not await client.exists(KEY.format(tenant="demo"))
        async with serve(engines=tiers) as served:
            await run(served, request("another " + HARD))
        (entry,) = await read(client, "demo", 1)
        log = DecisionLog(client)
        for _ in range(1000):
            log.add("demo", entry, keep=100)
        await log.flush()
        assert await client.xlen(KEY.format(tenant="demo")) < 300


async def test_what_redis_does_not_take_is_written_later(serve: Serve, tiers: Any, redis_url: str) -> None:
    async with serve(engines=tiers) as served:
        await run(served, request(HARD))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        (entry,) = await read(client, "demo", 1)
        log = DecisionLog(redis.asyncio.Redis.from_url("redis://127.0.0.1:1"))
        log.add("late", entry, keep=100)
        await log.flush()
        log._redis = client
        await log.flush()
        assert await read(client, "late", 10) == [entry]


@pytest.mark.parametrize(("quality", "tier"), [("0", "small"), ("100", "large")])
def test_explain_shows_values_costs_and_the_choice(quality: str, tier: str, tmp_path: Path) -> None:
    """Or why nothing is known of the models."""
    config = configuration(tmp_path, learnt_from(tmp_path))
    result = CliRunner().invoke(main, ["route", "explain", "--config", config, "--quality", quality, EXAM])
    assert result.exit_code == 0, result.output
    other = configuration(tmp_path, learnt_from(tmp_path, ("others",)))
    unknown = CliRunner().invoke(main, ["route", "explain", "--config", other, "--quality", quality, EXAM])
    assert f"chosen: {tier}, by mixture" in unknown.output
    assert "not calibrated for these models: router.model" in unknown.output
    assert f"chosen: {tier}, by learnt" in result.output
    assert ("cost alone counts" in result.output) == (quality == "0") and "e+0" not in result.output
    for shown in ("value", "cost", "strangeness", "features: words", "small", "medium", "large"):
        assert shown in result.output


@pytest.mark.parametrize("key", [KEY, FEEDBACK_KEY])
def test_the_keys_are_documented(key: str) -> None:
    assert f"`{key.format(tenant='<tenant>')}`" in Path("docs/redis-keys.md").read_text("utf-8")


async def test_thumbs_and_what_is_done_next_are_noted(serve: Serve, tiers: Any, redis_url: str) -> None:
    """Asked again in the same words, and in other words at the same place; thumbs of the own tenant only."""
    first, said = Message("user", HARD), Message("assistant", "Because.")
    no_store = Caching(no_store=True)
    async with serve(engines=tiers) as served:
        answer = await served.client.responses.create(model="auto", input=HARD, max_output_tokens=4)
        url = f"{served.base_url}/responses/{answer.id}/feedback"
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY_OF_DEMO}"}) as client:
            assert (await client.post(url, json={"rating": "up"})).json()["rating"] == "up"
            refused = await client.post(url, json={"rating": "sideways"})
            unknown = await client.post(url.replace(answer.id, "resp_unknown"), json={"rating": "up"})
        await run(served, request(HARD, caching=no_store))
        await run(served, request(messages=(first, said, Message("user", "And then?")), caching=no_store))
        await run(served, request(messages=(first, said, Message("user", "And before?")), caching=no_store))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "rating")
    assert unknown.status_code == 404
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        decisions = [each.response for each in reversed(await read(client, "demo", 10))]
        noted = [(each.response, each.signal) for each in reversed(await read_feedback(client, "demo", 10))]
    assert noted == [(answer.id, "up"), (decisions[0], "regenerate"), (decisions[2], "edit")]


async def test_thumbs_know_completions_by_their_ids(serve: Serve, tiers: Any, redis_url: str) -> None:
    """Of several choices the first one's response counts."""
    async with serve(engines=tiers) as served:
        said: list[Any] = [{"role": "user", "content": "Hello"}]
        chat = await served.client.chat.completions.create(model="auto", messages=said, max_tokens=4)
        text = await served.client.completions.create(model="auto", prompt="Hello", max_tokens=4, n=2)
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY_OF_DEMO}"}) as client:
            for id in (chat.id, text.id):
                url = f"{served.base_url}/responses/{id}/feedback"
                answer = await client.post(url, json={"rating": "down"})
                assert answer.json()["response_id"] == "resp_" + id.rpartition("-")[2]
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        noted = {each.response for each in await read_feedback(client, "demo", 10) if each.signal == "down"}
        assert noted == {"resp_" + id.rpartition("-")[2] for id in (chat.id, text.id)}
        assert noted <= {each.response for each in await read(client, "demo", 10)}


async def test_judged_answers_are_those_of_decisions_of_the_same_model(
    serve: Serve, tiers: Any, redis_url: str, learnt: RouterSettings
) -> None:
    """A thumb outweighs what was done next; decisions by no model say nothing."""
    async with serve(engines=tiers, router=learnt) as served:
        await run(served, request(EXAM))
        await run(served, request(HARD))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        dealt, judged = await read(client, "demo", 10)
    thoughts = [
        Feedback(response=each.response, at=at, signal=signal)
        for each in (judged, dealt)
        for at, signal in ((3, "regenerate"), (2, "up"), (1, "down"))
    ]
    (answer,) = judged_answers([judged, dealt], thoughts, judged.model)
    assert (answer.choice, answer.good) == (judged.choice, True)
    assert judged_answers([judged], thoughts, "another model") == []
    taken_back = Feedback(response=judged.response, at=4, signal="withdrawn")
    (answer,) = judged_answers([judged], [*thoughts, taken_back], judged.model)
    assert not answer.good, "what was done next counts again"
    assert judged_answers([judged], [taken_back], judged.model) == []
    slow = Feedback(response=judged.response, at=5, signal="down", reason="too_slow")
    assert judged_answers([judged], [*thoughts, slow], judged.model) == [], "that is nothing about what was answered"
    wrong = Feedback(response=judged.response, at=6, signal="down", reason="wrong")
    (answer,) = judged_answers([judged], [*thoughts, slow, wrong], judged.model)
    assert not answer.good


async def test_a_preference_is_about_both_tiers_of_a_routed_question(
    serve: Serve, tiers: Any, redis_url: str, learnt: RouterSettings
) -> None:
    """By what was believed of them when it was routed; the newest opinion on two answers counts."""
    async with serve(engines=tiers, router=learnt) as served:
        await run(served, request(EXAM))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        (decision,) = await read(client, "demo", 1)
    prediction = decision.choice.outlook.prediction
    assert prediction is not None and prediction.probabilities is not None
    small, _, large = prediction.probabilities
    routed = Compared(decision.response, "small")
    first = Feedback(response="resp_large", at=1, signal="preferred", tier="large", over=(routed,))
    (found,) = preferences([decision], [first], decision.model)
    assert (found.better, found.worse, found.probabilities) == ("large", "small", (large, small))
    assert found.propensity == decision.choice.propensity
    again = Feedback(
        response=decision.response, at=2, signal="preferred", tier="small", over=(Compared("resp_large", "large"),)
    )
    (found,) = preferences([decision], [again, first], decision.model)
    assert (found.better, found.probabilities) == ("small", (small, large))
    adapter = Feedback(response="resp_pirate", at=3, signal="preferred", over=(routed, Compared("resp_other", "small")))
    assert preferences([decision], [adapter], decision.model) == []
    assert preferences([decision], [first], "another model") == preferences([], [first], decision.model) == []
    assert judged_answers([decision], [first], decision.model) == []


async def log_opinions(
    redis_url: str, entry: LoggedDecision, good: Callable[[float], float], explore: float = 0.0
) -> None:
    """600 answers to questions of the frozen suite, and thumbs that are up as often as `good` of the probability."""
    suite, generator = read_suite(shipped()), np.random.default_rng(0)
    believed = shipped().estimate(suite.vectors, suite.projected)[0]
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        log = DecisionLog(client)
        for number, row in enumerate(believed[:600].tolist()):
            prediction = Prediction((row[0], row[1], row[2]), Basis.EMBEDDING, 0.5)
            outlook = Outlook(ValueSource.LEARNT, 0.5, prediction)
            choice = choose(
                outlook, msgspec.structs.replace(entry.choice.terms, explore=explore), draw=generator.random()
            )
            logged = msgspec.structs.replace(
                entry, response=f"resp_{number}", at=entry.at + number, choice=choice, tier=choice.tier
            )
            log.add("taught", logged, keep=10_000)
            up = generator.random() < good(row[TIERS.index(choice.tier)])
            log.think("taught", logged.response, "up" if up else "down")
        await log.flush()


async def forget(redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.delete(KEY.format(tenant="taught"), FEEDBACK_KEY.format(tenant="taught"))


async def test_a_refit_writes_a_model_that_is_no_worse_and_refuses_another(
    serve: Serve, tiers: Any, redis_url: str, tmp_path: Path, learnt: RouterSettings
) -> None:
    async with serve(engines=tiers, router=learnt) as served:
        await run(served, request(EXAM))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        (entry,) = await read(client, "demo", 1)
    file = tmp_path / "model.safetensors"
    config = configuration(tmp_path, str(learnt.model))
    words = ("refit", "--tenant", "taught", "--output", str(file))
    unknown = await command(redis_url, *words)
    assert unknown.exit_code == 1 and "there is nothing to correct" in unknown.output
    nothing = await command(redis_url, *words, config=config)
    assert nothing.exit_code == 1 and "nothing to learn from" in nothing.output
    await log_opinions(redis_url, entry, lambda said: 1 - said)
    worse = await command(redis_url, *words, config=config)
    assert worse.exit_code == 1 and "worse on the frozen suite" in worse.output and not file.exists()
    await forget(redis_url)
    await log_opinions(redis_url, entry, lambda said: said, explore=1.0)
    same = await command(redis_url, *words, config=config)
    assert same.exit_code == 1 and "not have chosen better" in same.output and not file.exists()
    await forget(redis_url)
    await log_opinions(redis_url, entry, lambda said: said)
    fine = await command(redis_url, *words, config=config)
    assert fine.exit_code == 0, fine.output
    assert SuccessModel.read(file.read_bytes()).metadata.corrected_by == 600
    async with serve(engines=tiers, router=RouterSettings(model=str(file))) as served:
        assert routes(await run(served, request(EXAM)))[0].reason == "learnt"


async def test_a_file_that_is_no_model_is_refused_by_name(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "model").write_text("none")
    with pytest.raises(SettingsError, match=r"router\.model: .*no router model"):
        read_model(str(tmp_path / "model"))
