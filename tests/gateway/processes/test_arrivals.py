"""Models that are fetched while `serve` runs: by real processes, from a server that speaks the hub's API."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.default_pools import default_pools
from gateway.config.model_store import ModelStoreSettings
from gateway.config.settings import PoolSettings, Settings
from gateway.models.store import ModelStore
from gateway.processes import arrivals as arrivals_module
from gateway.processes.arrivals import Arrivals, NoneFetched
from router.route import ComingTier
from tests.gateway.conftest import eventually
from tests.gateway.models.catalogues import write_catalogue
from tests.gateway.models.servers import FileServer, file_server

pytestmark = pytest.mark.anyio

FILES = {
    tier: random.Random(tier).randbytes(20_000 * size) for tier, size in (("small", 1), ("medium", 2), ("large", 3))
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    with file_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        yield server


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    models = ModelStoreSettings(
        store=str(tmp_path / "store"), catalogue=str(write_catalogue(tmp_path / "catalogue.toml", FILES))
    )
    return Settings(pools=default_pools(models), models=models)


class Served:
    """Remembers which tiers were put into service, and what was said."""

    def __init__(self) -> None:
        self.tiers: list[str] = []
        self.lines: list[str] = []

    async def __call__(self, pool: PoolSettings) -> None:
        self.tiers.append(pool.tier)

    def say(self, line: str) -> None:
        self.lines.append(line)


async def test_the_smallest_comes_first_and_each_is_served_when_it_is_whole(
    server: FileServer, settings: Settings
) -> None:
    for tier, data in FILES.items():
        server.publish(f"{tier}.gguf", data, hold=tier == "medium")
    served = Served()
    arrivals = Arrivals(settings, served.say)
    coming = arrivals.state.coming
    assert [each.tier for each in coming.values()] == ["small", "medium", "large"]
    await arrivals.first()
    assert [each.tier for each in coming.values()] == ["medium", "large"]
    rest = asyncio.create_task(arrivals.rest(served))
    await eventually(lambda: coming["tiny-medium"].here > 0, seconds=60)
    assert coming["tiny-medium"] == ComingTier(tier="medium", model="tiny-medium", size=40_000, here=20_000)
    assert served.tiers == []
    assert arrivals.state.problems(unusable=False)[0] == "the medium tier (tiny-medium) is coming: 50 % of 0 MB"
    server.release("medium.gguf")
    await rest
    assert (served.tiers, coming) == (["medium", "large"], {})
    assert [model.name for model in ModelStore(Path(settings.models.store or "")).models()] == [
        "tiny-large",
        "tiny-medium",
        "tiny-small",
    ]


async def test_one_that_cannot_be_had_does_not_hold_up_the_others_and_is_tried_again(
    server: FileServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals_module, "FIRST_PAUSE", 0.5)
    for tier in ("small", "large"):
        server.publish(f"{tier}.gguf", FILES[tier])
    served = Served()
    arrivals = Arrivals(settings, served.say)
    rest = asyncio.create_task(arrivals.rest(served))
    await eventually(lambda: served.tiers == ["small", "large"], seconds=60)
    await eventually(lambda: any("tried again in" in line for line in served.lines), seconds=60)
    assert any("the medium tier is not coming yet" in line and "has no file medium" in line for line in served.lines)
    assert arrivals.state.coming["tiny-medium"].failed
    server.publish("medium.gguf", FILES["medium"])
    await rest
    assert (served.tiers, arrivals.state.coming) == (["small", "large", "medium"], {})


async def test_without_a_network_the_first_that_cannot_be_reached_tells_of_all(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    served = Served()
    with pytest.raises(NoneFetched, match=r"tiny-small cannot be pulled: .*the hub does not answer"):
        await Arrivals(settings, served.say).first()
    assert not any("medium" in line for line in served.lines)


async def test_where_the_smallest_is_refused_another_one_may_be_the_first(
    server: FileServer, settings: Settings
) -> None:
    server.publish("small.gguf", bytes(20_000))
    server.publish("medium.gguf", FILES["medium"])
    arrivals = Arrivals(settings, Served().say)
    await arrivals.first()
    assert list(arrivals.state.coming) == ["tiny-small", "tiny-large"]
    assert arrivals.state.coming["tiny-small"].failed


async def test_ending_ends_the_process_and_keeps_what_has_come(server: FileServer, settings: Settings) -> None:
    server.publish("small.gguf", FILES["small"], hold=True)
    arrivals = Arrivals(settings, Served().say)
    first = asyncio.create_task(arrivals.first())
    await eventually(lambda: arrivals.state.coming["tiny-small"].here > 0, seconds=60)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert ModelStore(Path(settings.models.store or "")).partial(hashlib.sha256(FILES["small"]).hexdigest()).exists()
