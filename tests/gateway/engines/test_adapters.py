"""Names of adapters as models: who may use them, which version a turn gets, and what a swap changes."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.adapters.registry import AdapterRegistry
from engine.text.processor import TextProcessor
from engine.wire import Announce, Generate
from gateway.config.settings import ApiKeySettings, TenantSettings, demo_settings
from gateway.engines import adapters as adapters_module
from gateway.errors import ModelNotFound, RateLimited, Unavailable
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Sampling
from gateway.protocol.stream import Finished
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.conftest import Serve, Served, eventually
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.pipeline.turns import DEMO, OTHER, request, routes, run, text

pytestmark = pytest.mark.anyio

OTHER_KEY = "other-key"
TENANTS = [
    *demo_settings().tenants,
    TenantSettings(
        name="other", keys=[ApiKeySettings(id="other", sha256=hashlib.sha256(OTHER_KEY.encode()).hexdigest())]
    ),
]


@pytest.fixture(scope="session")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters of the tests' model."""
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / str(seed), model, "only q_proj", seed=seed) for seed in range(3)]


@pytest.fixture
def registry(tmp_path: Path) -> AdapterRegistry:
    return AdapterRegistry(str(tmp_path / "adapters"))


@pytest.fixture
def versions(registry: AdapterRegistry, folders: list[Path], model: Path) -> list[str]:
    return [registry.add(folder, model).version for folder in folders]


@pytest.fixture
def tokens(model: Path, versions: list[str]) -> dict[str | None, int]:
    """What each version says: a, b, c; the base model says x."""
    processor = TextProcessor.from_path(model)
    letters: list[tuple[str | None, str]] = [(None, "x"), *zip(versions, "abc", strict=True)]
    return {version: processor.encode(letter)[-1] for version, letter in letters}


@pytest.fixture
async def engine(tmp_path: Path, tokens: dict[str | None, int]) -> AsyncIterator[FrameEngine]:  # type: ignore[override]
    async with FrameEngine(tmp_path / "one.sock", tokens).serving() as engine:
        yield engine


@pytest.fixture
async def second(tmp_path: Path, tokens: dict[str | None, int]) -> AsyncIterator[FrameEngine]:
    async with FrameEngine(tmp_path / "two.sock", tokens).serving() as engine:
        yield engine


def ask(**fields: Any) -> Any:
    return request(**{"model": "pirate", "max_output_tokens": 4, **fields})


async def leads_to(served: Served, version: str | None, name: str = "pirate") -> None:
    """Wait until the gateway has seen that the name leads there."""

    def current() -> str | None:
        found = served.gateway.adapters.resolve(name, "demo")
        return found.version if found else None

    await eventually(lambda: current() == version, current)


async def test_a_name_is_a_model(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    async with serve(engines={"small": [engine.address]}) as served:
        events = await run(served, ask())
        answer = await served.client.responses.create(model="pirate", input="hello", max_output_tokens=3)
        await served.settle()
    assert [(route.model, route.tier, route.reason) for route in routes(events)] == [("pirate", "small", "requested")]
    assert routes(events)[0].reasons == ("the request names pirate", "it is an adapter of tiny-small")
    assert text(events) == "aaaa"
    assert (answer.model, answer.output_text) == ("pirate", "aaa")
    assert [frame.adapter for frame in engine.generated] == [versions[0]] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_adapter_completes_prompts(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str], stream: bool
) -> None:
    """Its tokens, which an echo needs, are those of its base model."""
    registry.point("pirate", versions[0], model="tiny-small")
    async with serve(engines={"small": [engine.address]}) as served:
        await leads_to(served, versions[0])
        answer: Any = await served.client.completions.create(
            model="pirate", prompt="hello", max_tokens=3, echo=True, stream=stream
        )
        choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
        await served.settle()
    assert "".join(choice.text for choice in choices) == "helloaaa"


async def test_the_base_model_stays_itself(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    async with serve(engines={"small": [engine.address]}) as served:
        for name in ("tiny-small", "small", "auto"):
            assert text(await run(served, ask(model=name))) == "xxxx"
    assert engine.announced == []


async def test_an_adapter_is_announced_before_its_request(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    async with serve(engines={"small": [engine.address]}) as served:
        await run(served, ask())
    assert [type(frame) for frame in engine.frames] == [Announce, Generate]
    assert engine.announced == [versions[0]]


@pytest.mark.parametrize("limits", [{"requests_per_minute": 1}, {"output_tokens_per_minute": 10}], ids=str)
async def test_who_is_over_a_limit_makes_no_engine_load_anything(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str], limits: dict[str, int]
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    async with serve(engines={"small": [engine.address]}, limits=limits) as served:
        await run(served, ask(max_output_tokens=8))
        engine.frames.clear()
        with pytest.raises(RateLimited):
            await run(served, ask(max_output_tokens=8))
        assert engine.frames == []
        await served.settle()


async def test_models_list_what_a_tenant_may_use(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    registry.point("pirate", versions[0], model="tiny-small", description="Arr.")
    registry.point("secret", versions[1], model="tiny-small", tenants=("other",))
    async with serve(engines={"small": [engine.address]}, tenants=TENANTS) as served:
        mine = [model.to_dict() async for model in served.client.models.list()]
        stranger = served.client.with_options(api_key=OTHER_KEY)
        theirs = [model.id async for model in stranger.models.list()]
        one = (await served.client.models.retrieve("pirate")).to_dict()
        with pytest.raises(openai.NotFoundError, match="secret"):
            await served.client.models.retrieve("secret")
    assert [model["id"] for model in mine] == ["auto", "small", "tiny-small", "pirate"]
    assert theirs == ["auto", "small", "tiny-small", "pirate", "secret"]
    assert one == mine[-1]
    assert (one["parent"], one["root"], one["description"], one["tier"]) == (
        "tiny-small",
        "tiny-small",
        "Arr.",
        "small",
    )


async def test_a_name_of_others_is_as_unknown_as_no_name(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    registry.point("pirate", versions[0], model="tiny-small", tenants=("demo",))
    registry.point("secret", versions[1], model="tiny-small", tenants=("other",))
    async with serve(engines={"small": [engine.address]}, tenants=TENANTS) as served:
        said = []
        for name in ("secret", "nosuch"):
            with pytest.raises(ModelNotFound) as refused:
                await run(served, ask(model=name), DEMO)
            said.append(str(refused.value).replace(name, "*"))
        assert text(await run(served, ask(model="secret"), OTHER)) == "bbbb"
        with pytest.raises(openai.NotFoundError) as caught:
            await served.client.responses.create(model="secret", input="hello")
    assert said[0] == said[1] == "the model '*' does not exist; available: auto, small, tiny-small, pirate"
    assert caught.value.code == "model_not_found"


async def test_a_swap_is_in_force_without_a_restart(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    async with serve(engines={"small": [engine.address]}) as served:
        with pytest.raises(ModelNotFound):
            await run(served, ask())
        registry.point("pirate", versions[0], model="tiny-small")
        await leads_to(served, versions[0])
        assert text(await run(served, ask())) == "aaaa"
        registry.swap("pirate", versions[1])
        await leads_to(served, versions[1])
        assert text(await run(served, ask())) == "bbbb"
        registry.remove("pirate")
        await leads_to(served, None)
        with pytest.raises(ModelNotFound):
            await run(served, ask())


async def test_a_turn_keeps_its_version_when_another_replica_takes_over(
    serve: Serve, engine: FrameEngine, second: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    """The name was swapped, and removed, between the two."""
    registry.point("pirate", versions[0], model="tiny-small")
    replicas = [engine, second]
    for each in replicas:
        each.gate.clear()
    async with serve(engines={"small": [engine.address, second.address]}) as served:
        await eventually(lambda: all(each.client.connected for each in served.gateway.engines.pools[0].engines))
        turn = asyncio.create_task(run(served, ask()))
        await eventually(lambda: any(each.generated for each in replicas))
        first, other = sorted(replicas, key=lambda each: not each.generated)
        first.failing = True
        registry.swap("pirate", versions[1])
        await leads_to(served, versions[1])
        registry.remove("pirate")
        await leads_to(served, None)
        for each in replicas:
            each.gate.set()
        events = await turn
        await served.settle()
    assert [frame.adapter for frame in (*first.generated, *other.generated)] == [versions[0]] * 2
    assert [route.model for route in routes(events)] == ["pirate"] * 2
    assert {route.replica for route in routes(events)} == {"small-0", "small-1"}
    assert text(events) == "aaaa"


async def test_no_other_tier_stands_in_for_an_adapters_base(
    serve: Serve,
    engine: FrameEngine,
    tmp_path: Path,
    tokens: dict[str | None, int],
    registry: AdapterRegistry,
    versions: list[str],
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    other = FrameEngine(tmp_path / "gone.sock", tokens)
    async with (
        other.serving() as mortal,
        serve(engines={"small": [mortal.address], "large": [engine.address]}) as served,
    ):
        mortal.failing = True
        failed = (await run(served, ask()))[-1]
        assert text(await run(served, ask(model="large"))) == "xxxx"
        await served.settle()
    assert isinstance(failed, Finished)
    assert isinstance(failed.error, Unavailable)
    assert all(frame.adapter is None for frame in engine.generated)


async def test_swaps_under_load_never_mix_versions(
    serve: Serve, engine: FrameEngine, second: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    letters = dict(zip(versions, "abc", strict=True))
    async with serve(engines={"small": [engine.address, second.address]}) as served:
        seen: Counter[str] = Counter()

        async def client(number: int) -> None:
            # How soon the gateway hears of a swap depends on the machine: load goes on until it has heard of each.
            for turn in range(500):
                seen[text(await run(served, ask(text=f"{number} {turn}", caching=Caching(no_store=True))))] += 1
                if turn >= 12 and len(seen) >= len(versions):
                    return

        clients = [asyncio.create_task(client(number)) for number in range(6)]
        swaps = 0
        while not all(task.done() for task in clients):
            swaps += 1
            await asyncio.to_thread(registry.swap, "pirate", versions[swaps % 3])
            await asyncio.sleep(0.01)
        await asyncio.gather(*clients)
        await leads_to(served, versions[swaps % 3])
        assert text(await run(served, ask())) == 4 * letters[versions[swaps % 3]]
        await served.settle()
    assert set(seen) == {"aaaa", "bbbb", "cccc"}


async def test_a_stored_answer_belongs_to_its_version(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    engine.finish = "stop"
    asked = ask(sampling=Sampling(temperature=0))
    async with serve(engines={"small": [engine.address]}) as served:
        assert [routes(await run(served, asked))[0].cache for _ in range(2)] == ["miss", "hit"]
        assert routes(await run(served, asked))[0].model == "pirate"
        registry.swap("pirate", versions[1])
        await leads_to(served, versions[1])
        assert routes(await run(served, asked))[0].cache == "miss"
        registry.swap("pirate", versions[0])
        await leads_to(served, versions[0])
        assert routes(await run(served, asked))[0].cache == "hit"


async def test_engines_are_told_what_to_keep_loaded(
    serve: Serve, engine: FrameEngine, second: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    """Of their own model only; on connecting and on every change."""
    registry.point("one", versions[0], model="tiny-small", pinned=True)
    registry.point("two", versions[1], model="tiny-small")
    async with serve(engines={"small": [engine.address], "large": [second.address]}):
        await eventually(lambda: engine.pinned == [[versions[0]]], lambda: engine.pinned)
        registry.pin("two")
        await eventually(lambda: engine.pinned[1:] == [[versions[0], versions[1]]], lambda: engine.pinned)
        registry.pin("one", False)
        registry.swap("two", versions[2])
        await eventually(lambda: engine.pinned[-1] == [versions[2]], lambda: engine.pinned)
    assert second.pinned == []


async def test_a_registry_that_is_damaged_leaves_everything_as_it_was(
    serve: Serve,
    engine: FrameEngine,
    registry: AdapterRegistry,
    versions: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    names = tmp_path / "adapters" / "names.json"
    content = names.read_text()
    async with serve(engines={"small": [engine.address]}) as served:
        names.write_text("{")
        await eventually(lambda: "cannot be read" in caplog.text)
        assert text(await run(served, ask())) == "aaaa"
        names.write_text(content)
        registry.swap("pirate", versions[1])
        await leads_to(served, versions[1])


async def test_a_registry_that_is_slow_is_not_waited_for(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.point("pirate", versions[0], model="tiny-small")
    answering = threading.Event()
    stamp = AdapterRegistry.stamp

    def slow(self: AdapterRegistry) -> str | None:
        assert answering.wait(30)
        return stamp(self)

    monkeypatch.setattr(AdapterRegistry, "stamp", slow)
    monkeypatch.setattr(adapters_module, "_START_SECONDS", 0.05)
    async with serve(engines={"small": [engine.address]}) as served:
        assert text(await run(served, ask(model="small"))) == "xxxx"
        answering.set()
        await leads_to(served, versions[0])


async def test_names_that_would_be_ambiguous_or_lead_nowhere_are_left_out(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    registry.point("tiny-small", versions[0], model="elsewhere")
    registry.point("lost", versions[0], model="elsewhere")
    async with serve(engines={"small": [engine.address]}) as served:
        assert served.gateway.adapters.visible("demo") == {}
        assert text(await run(served, ask(model="tiny-small"))) == "xxxx"
    assert "has the name of a model" in caplog.text
    assert "unknown model" in caplog.text


async def test_metrics_name_the_base_model(
    serve: Serve, engine: FrameEngine, registry: AdapterRegistry, versions: list[str]
) -> None:
    """An adapter's name may tell whose it is."""
    registry.point("pirate", versions[0], model="tiny-small")
    async with serve(engines={"small": [engine.address]}) as served:
        await run(served, ask())
        shown = served.gateway.metrics.page().decode()
    assert 'model="tiny-small"' in shown
    assert "pirate" not in shown
