"""Pools and replicas through the admin API, and what turns make of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from redis.asyncio import Redis

from engine.wire import Output
from gateway.access.identity.secret import installation_secret
from gateway.config.settings import PoolSettings
from gateway.records.directory import ReplicaControl
from gateway.scaling.controller import Controller
from tests.gateway.admin.conftest import Administer, problem
from tests.gateway.conftest import EngineThread, eventually
from tests.gateway.engines.test_leases import Board, board

__all__ = ["board"]

pytestmark = pytest.mark.anyio


async def test_pools_show_what_their_engines_report(administer: Administer, engine: EngineThread) -> None:
    """Addresses stay inside."""
    async with administer() as api:
        (pool,) = (await api.operator.get("/pools")).json()["data"]
        assert pool == (await api.operator.get("/pools/small")).json()
        (replica,) = pool["replicas"]
        load = api.served.gateway.engines["small-0"].client.load
        assert load is not None
        assert (pool["tier"], pool["model"]) == ("small", "tiny-small")
        assert (replica["name"], replica["connected"], replica["circuit"]) == ("small-0", True, "closed")
        assert (replica["weight"], replica["drained"], replica["turns"]) == (1.0, False, 0)
        assert replica["load"]["total_blocks"] == load.total_blocks
        assert engine.address not in str(pool)
        problem(await api.operator.get("/pools/large"), 404, "not_found")
        problem(await api.operator.get("/pools/small/replicas/small-7"), 404, "not_found")


async def test_what_an_engine_tells_of_its_machine_is_shown(
    administer: Administer, board: Board, engine: EngineThread
) -> None:
    await board.announce("small-00000a", engine.address, zone="eu-1a", spot=True)
    async with administer(engines={"small": []}, pool={"registered": True}) as api:
        [replica] = (await api.operator.get("/pools/small")).json()["replicas"]
        shown = {name: replica[name] for name in ("name", "connected", "registered", "zone", "spot")}
        assert shown == {"name": "small-00000a", "connected": True, "registered": True, "zone": "eu-1a", "spot": True}


async def test_operators_set_how_many_engines_a_pool_may_have(administer: Administer, redis_url: str) -> None:
    """From the next look of its controller on; what does not go together is refused."""
    pool = {"registered": True, "min_replicas": 0, "max_replicas": 4}
    async with administer(engines={"small": []}, pool=pool) as api, Redis.from_url(redis_url) as redis:
        assert (await api.operator.get("/pools/small")).json()["size"] is None
        settings = api.served.gateway.settings
        controller = Controller(lambda: settings, redis, installation_secret(settings))
        await controller.leadership.renew()
        changed = await api.operator.patch("/pools/small", json={"min_replicas": 2}, headers={"if-match": "*"})
        assert changed.status_code == 200, changed.text
        await controller.look()
        shown = await api.operator.get("/pools/small")
        size = shown.json()["size"]
        assert (size["desired"], size["min_replicas"], size["max_replicas"]) == (2, 2, 4)
        assert shown.headers["etag"] == changed.headers["etag"]
        for wrong in ({"min_replicas": 5}, {"max_replicas": 1}):
            refused = await api.operator.patch("/pools/small", json=wrong, headers={"if-match": "*"})
            problem(refused, 400, "invalid_request")
        taken_back = await api.operator.patch(
            "/pools/small", json={"min_replicas": None}, headers={"if-match": shown.headers["etag"]}
        )
        assert taken_back.status_code == 200
        await controller.look()
        assert (await api.operator.get("/pools/small")).json()["size"]["min_replicas"] == 0


async def test_a_pool_without_a_controller_has_no_bounds(administer: Administer) -> None:
    async with administer() as api:
        refused = await api.operator.patch("/pools/small", json={"max_replicas": 2}, headers={"if-match": "*"})
        problem(refused, 409, "conflict")


async def test_a_drained_replica_gets_no_turns(
    administer: Administer, engine: EngineThread, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one takes them; those that run there finish; with both drained there is no answer."""
    path = "/pools/small/replicas/small-{}"
    with EngineThread(model) as second:
        go, step = threading.Event(), second.core.step

        def held_step() -> list[Output]:
            assert go.wait(30)
            return step()

        monkeypatch.setattr(second.core, "step", held_step)
        async with administer(engines={"small": [engine.address, second.address]}) as api:
            view, client, engines = api.served.gateway.view, api.served.client, api.served.gateway.engines

            async def set_drained(index: int, drained: bool) -> None:
                shown = await api.operator.get(path.format(index))
                headers = {"if-match": shown.headers["etag"]}
                changed = await api.operator.patch(path.format(index), json={"drained": drained}, headers=headers)
                assert changed.json()["drained"] is drained
                assert (await api.operator.get(path.format(index))).headers["etag"] == changed.headers["etag"]
                name = f"small-{index}"
                await eventually(lambda: name in view.replicas() and view.replicas()[name].drained is drained)

            async def start(text: str) -> Any:
                stream = await client.responses.create(model="small", input=text, max_output_tokens=400, stream=True)
                assert (await anext(aiter(stream))).type == "response.created"
                return stream

            await set_drained(0, True)
            streams = [await start(f"hello {index}") for index in range(4)]
            await eventually(lambda: engines["small-1"].client.live == 4)
            assert engines["small-0"].client.live == 0
            await set_drained(1, True)
            with pytest.raises(openai.InternalServerError) as caught:
                await client.responses.create(model="small", input="nobody", max_output_tokens=2)
            assert caught.value.code == "unavailable"
            go.set()
            for stream in streams:
                assert [event.type async for event in stream][-1] in ("response.completed", "response.incomplete")
            await set_drained(0, False)
            await client.responses.create(model="small", input="again", max_output_tokens=2)


async def test_settings_of_processes_that_are_long_gone_are_deleted(
    administer: Administer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next change; those of the last days stay, as another gateway may know their process."""
    async with administer() as api:
        view, directory = api.served.gateway.view, api.served.gateway.directory
        for name in ("small-00000a", "small-00000b"):
            await directory.write(ReplicaControl(name=name, drained=True), actor="test")
        await eventually(lambda: len(view.replicas()) == 2)
        path, anyway = "/pools/small/replicas/small-0", {"if-match": "*"}
        assert (await api.operator.patch(path, json={"weight": 2}, headers=anyway)).status_code == 200
        await eventually(lambda: len(view.replicas()) == 3)
        monkeypatch.setattr("gateway.admin.endpoints.pools._KEPT_SECONDS", -10)
        assert (await api.operator.patch(path, json={"weight": 3}, headers=anyway)).status_code == 200
        await eventually(lambda: [*view.replicas()] == ["small-0"], lambda: view.replicas())


async def test_of_two_admins_one_sets_a_weight(administer: Administer) -> None:
    """Also when nothing was set before."""
    async with administer() as api:
        path = "/pools/small/replicas/small-0"
        tag = (await api.operator.get(path)).headers["etag"]
        answers = await asyncio.gather(
            *(api.operator.patch(path, json={"weight": w}, headers={"if-match": tag}) for w in (1, 2, 3, 4))
        )
        assert sorted(answer.status_code for answer in answers)[0] == 200
        assert all(answer.status_code in (409, 412) for answer in answers if answer.status_code != 200)
        (won,) = (answer for answer in answers if answer.status_code == 200)
        assert (await api.operator.get(path)).json()["weight"] == won.json()["weight"]
        problem(await api.operator.patch(path, json={"weight": 0}, headers={"if-match": "*"}), 400, "invalid_value")
        (entry,) = (await api.operator.get("/audit")).json()["data"]
        assert (entry["action"], entry["subject"], entry["actor"]) == (
            "replica.create",
            "small-0",
            "operations/key:root",
        )


async def test_the_second_pool_of_a_tier_has_a_label_of_its_own(
    administer: Administer, engine: EngineThread, model: Path
) -> None:
    """What a controller sets for the tier is not shown for it: nobody starts engines of it."""
    first = PoolSettings(tier="small", name="first", model=str(model), engines=[engine.address])
    second = msgspec.structs.replace(first, name="second", weight=3)
    async with administer(pools=[first, second]) as api:
        shown = (await api.operator.get("/pools")).json()["data"]
        assert [(pool["pool"], pool["tier"], pool["model"], pool["weight"]) for pool in shown] == [
            ("small", "small", "first", 1),
            ("small2", "small", "second", 3),
        ]
        one = (await api.operator.get("/pools/small2")).json()
        assert (one["model"], one["size"], [each["name"] for each in one["replicas"]]) == ("second", None, ["small2-0"])
        path, anyway = "/pools/small2/replicas/small2-0", {"if-match": "*"}
        changed = await api.operator.patch(path, json={"weight": 2}, headers=anyway)
        assert (changed.json()["pool"], changed.json()["weight"]) == ("small2", 2.0)
        problem(await api.operator.patch("/pools/small2", json={"max_replicas": 2}, headers=anyway), 409, "conflict")
