"""The engines behind a gateway: load, candidates, readiness."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import msgspec
import pytest

from gateway.config.settings import PoolSettings, RouterSettings
from gateway.engines.pools import Engines
from router.route import ComingTier
from tests.gateway.conftest import CONTEXT, EngineThread, eventually

pytestmark = pytest.mark.anyio


def engines(model: Path, **addresses: list[str]) -> Engines:
    pools = [
        PoolSettings(tier=tier, name=f"tiny-{tier}", model=str(model), engines=at) for tier, at in addresses.items()
    ]
    return Engines(pools, RouterSettings())


async def test_pools_without_a_connected_engine_are_problems(model: Path, engine: EngineThread) -> None:
    """Of which another tier makes up for one."""
    with EngineThread(model) as mortal:
        behind = engines(model, small=[engine.address], large=[mortal.address])
        assert (len(behind.problems()), behind.serves) == (2, False)
        await behind.start()
        await eventually(lambda: not behind.problems(), behind.problems)
        await asyncio.to_thread(mortal.stop)
        await eventually(lambda: not behind["large-0"].client.connected)
        assert behind.problems() == ["no engine of the large tier (tiny-large) is connected"]
        assert behind.serves
        await behind.aclose()
        assert (len(behind.problems()), behind.serves) == (2, False)


async def test_a_pool_is_added_when_its_model_has_come(model: Path, engine: EngineThread) -> None:
    """In its place, and without being a problem until it answers."""
    pools = [
        PoolSettings(tier=tier, name=f"tiny-{tier}", model=path, engines=[engine.address])
        for tier, path in (("small", "/gone"), ("large", str(model)))
    ]
    coming = {"tiny-small": ComingTier(tier="small", model="tiny-small", size=1)}
    behind = Engines(pools, RouterSettings(), coming=coming)
    await behind.start()
    await eventually(lambda: not behind.problems())
    behind.configure(pools, RouterSettings())
    assert [pool.name for pool in behind.pools] == ["tiny-large"]
    added = await behind.add(msgspec.structs.replace(pools[0], model=str(model)), RouterSettings())
    assert [pool.name for pool in behind.pools] == ["tiny-small", "tiny-large"]
    assert behind.problems() == []
    await added.engines[0].client.wait_connected()
    coming.clear()
    assert (behind.problems(), behind["small-0"]) == ([], added.engines[0])
    await behind.aclose()


async def test_candidates_show_what_the_router_must_know(model: Path, engine: EngineThread) -> None:
    """Connection, breaker, context, the prompt's length and the load."""
    behind = engines(model, small=[engine.address, "ws://127.0.0.1:1"])
    await behind.start()
    await eventually(lambda: behind["small-0"].client.connected)
    with behind["small-0"].carrying(20, 10):
        up, down = behind.candidates({"tiny-small": 5})
        assert (up.replica, up.connected, up.load, up.prompt_tokens) == ("small-0", True, 30, 5)
    assert up.context == engine.core.model.context
    assert (down.connected, down.context, down.load) == (False, CONTEXT, 0)
    assert behind["small-0"].load == 0
    for _ in range(3):
        behind["small-0"].breaker.failed(monotonic())
    assert [candidate.tripped for candidate in behind.candidates({})] == [True, False]
    await behind.aclose()


async def test_pools_with_the_same_tokenizer_share_a_vocabulary(model: Path) -> None:
    """So that a prompt is tokenised once for all of them."""
    behind = engines(model, small=[], large=[])
    assert behind.pools[0].vocabulary == behind.pools[1].vocabulary
    assert [pool.name for pool in behind.pools_for("tiny-large")] == ["tiny-large"]
    assert [pool.name for pool in behind.pools_for("auto")] == ["tiny-small", "tiny-large"]


async def test_a_checkpoint_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    """At start, not at the first request."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        engines(tmp_path, small=[])
