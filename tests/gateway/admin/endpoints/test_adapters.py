"""Adapters through the admin API: registered in the background, then listed, changed and deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from engine.adapters.registry import AdapterRegistry
from gateway.admin.call import Call
from gateway.errors import Unavailable
from gateway.storage.presence import FACTS
from tests.gateway.admin.conftest import Administer, problem
from tests.gateway.admin.endpoints.conftest import finished, form, registered, upload
from tests.gateway.conftest import EngineThread, eventually
from tests.gateway.frame_engine import FrameEngine

pytestmark = pytest.mark.anyio


async def test_an_upload_becomes_a_model(
    administer: Administer, frames: FrameEngine, folders: list[Path], model: Path, tmp_path: Path
) -> None:
    """The version is what `roundhouse adapter add` makes of the same files; an engine has answered with it; nothing
    is left where it was received."""
    expected = AdapterRegistry(str(tmp_path / "other")).add(folders[0], model).version
    async with administer(engines={"small": [frames.address]}) as api:
        accepted = await upload(api.acme, folders[0], name="acme:pirate", description="arr")
        assert accepted.json()["state"] == "queued"
        job = await finished(api.acme, accepted)
        assert (job["state"], job["progress"], job["error"]) == ("succeeded", 1.0, None)
        assert job["result"] == {"adapter": "acme:pirate", "version": expected, "loaded_on": "small-0"}
        assert [frame.adapter for frame in frames.generated] == [expected]
        shown = (await api.acme.get("/adapters/acme:pirate")).json()
        assert (shown["version"], shown["tenants"], shown["description"]) == (expected, ["acme"], "arr")
        assert shown["content"]["max_rank"] > 0
        assert shown["content"]["modules"] == ["q_proj"]
        assert api.served.gateway.adapters.resolve("acme:pirate", "acme") is not None
        assert api.served.gateway.adapters.resolve("acme:pirate", "other") is None
        assert [job["id"] for job in (await api.acme.get("/jobs")).json()["data"]] == [job["id"]]
        assert (await api.other.get("/jobs")).json()["data"] == []
        await eventually(lambda: not list((tmp_path / "data" / "uploads").iterdir()))


async def test_operators_register_from_allowed_stores(
    administer: Administer, frames: FrameEngine, folders: list[Path], tmp_path: Path
) -> None:
    """An address below a listed one is fetched; every other is refused before anything is opened."""
    store = folders[0].parent
    settings = {"sources": [f"file://{store}"]}
    async with administer(engines={"small": [frames.address]}, adapters=settings) as api:

        async def register(source: str, **fields: Any) -> httpx2.Response:
            return await api.operator.post("/adapters", json={"name": "pirate", "source": source, **fields})

        job = await finished(api.operator, await register(f"file://{folders[0]}/", pinned=True, tenants=["acme"]))
        assert job["state"] == "succeeded", job
        shown = (await api.operator.get("/adapters/pirate")).json()
        assert (shown["pinned"], shown["tenants"]) == (True, ["acme"])
        await eventually(lambda: frames.pinned != [] and frames.pinned[-1] == [shown["version"]])
        for source in (f"file://{store}-other/x", "file:///etc", "s3://bucket/x", f"http://127.0.0.1{store}"):
            problem(await register(source, name="other"), 403, "source_not_allowed")
        for source in (
            f"file://{store}/../secret",
            f"file://{store}/%2e%2e/x",
            f"file://{store}//x",
            str(store),
            "simplecache::file:///x",
        ):
            problem(await register(source, name="other"), 400, "invalid_value")
        (store / "link").symlink_to("/etc")
        job = await finished(api.operator, await register(f"file://{store}/link", name="other"))
        assert job["error"]["code"] in ("source_not_allowed", "adapter_refused")
        job = await finished(api.operator, await register(f"file://{store}/nothing", name="other"))
        assert (job["state"], job["error"]["code"]) == ("failed", "adapter_refused")
        problem(await register(f"file://{folders[1]}"), 409, "already_exists")
        job = await finished(api.operator, await register(f"file://{folders[1]}", replace=True))
        swapped = (await api.operator.get("/adapters/pirate")).json()
        assert (swapped["version"], swapped["pinned"], swapped["tenants"]) == (job["result"]["version"], True, ["acme"])
        assert swapped["version"] != shown["version"]


async def test_what_does_not_load_gets_no_name(
    administer: Administer, engine: EngineThread, folders: list[Path], tmp_path: Path
) -> None:
    """An engine that serves no adapters, and files that are no adapter."""
    async with administer() as api:
        job = await finished(api.acme, await upload(api.acme, folders[0], name="acme:pirate"))
        assert (job["state"], job["error"]["code"]) == ("failed", "adapter_not_loaded")
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "adapter_config.json").write_text("{}")
        (broken / "adapter_model.safetensors").write_bytes(b"no tensors")
        job = await finished(api.acme, await upload(api.acme, broken, name="acme:broken"))
        assert (job["state"], job["error"]["code"]) == ("failed", "adapter_refused")
        assert (await api.operator.get("/adapters")).json()["data"] == []


async def test_a_wrong_upload_is_refused_by_name(
    administer: Administer, frames: FrameEngine, folders: list[Path], tmp_path: Path
) -> None:
    """Missing, unknown, doubled and oversized parts; broken forms; and nothing stays on the disk."""
    settings = {"max_upload_bytes": 1000}
    async with administer(engines={"small": [frames.address]}, adapters=settings) as api:
        good = form(folders[0], name="acme:pirate")["files"]
        refused = await api.acme.post("/adapters", files=good)
        assert problem(refused, 413, "request_too_large")["param"] == "weights"
        small = good | {"weights": ("w", b"tiny")}
        for change, code, param in (
            ({"weights": None}, "missing_required_parameter", "weights"),
            ({"extra": ("e", b"")}, "unknown_parameter", "extra"),
            ({"request": (None, "[]")}, "invalid_value", "request"),
            ({"request": (None, '{"name": "acme:x", "source": "s3://a/b"}')}, "invalid_value", "request"),
        ):
            files = {name: part for name, part in (small | change).items() if part is not None}  # type: ignore[operator]
            assert problem(await api.acme.post("/adapters", files=files), 400, code)["param"] == param
        for content, media_type in (
            (b"--x\r\n", "multipart/form-data; boundary=x"),
            (b"nothing of the kind", "multipart/form-data; boundary=x"),
            (b"", "multipart/form-data"),
        ):
            headers = {"content-type": media_type}
            problem(await api.acme.post("/adapters", content=content, headers=headers), 400, "invalid_multipart")
        assert not list((tmp_path / "data" / "uploads").iterdir())


async def test_what_only_operators_may(administer: Administer, frames: FrameEngine, folders: list[Path]) -> None:
    """Names outside of the tenant's own, fetching, pinning, and other tenants."""
    async with administer(engines={"small": [frames.address]}) as api:
        for fields in (
            {"name": "pirate"},
            {"name": "other:pirate"},
            {"name": "acme:pirate", "pinned": True},
            {"name": "acme:pirate", "tenants": ["acme", "other"]},
        ):
            problem(await upload(api.acme, folders[0], **fields), 403, "forbidden")
        source = {"name": "acme:pirate", "source": "s3://bucket/x"}
        problem(await api.acme.post("/adapters", json=source), 403, "forbidden")
        for fields, code in (({"name": "tiny-small"}, "invalid_value"), ({"name": "auto"}, "invalid_value")):
            problem(await upload(api.operator, folders[0], **fields), 400, code)


async def test_pin_swap_drain_delete(administer: Administer, frames: FrameEngine, folders: list[Path]) -> None:
    """Each under the state that was read; a drained one takes no new requests."""
    async with administer(engines={"small": [frames.address]}) as api:
        first = await registered(api, folders[0])
        second = await registered(api, folders[1], "acme:second")
        path, adapter = "/adapters/acme:pirate", api.served.gateway.adapters
        problem(await api.acme.patch(path, json={"drained": True}), 428, "precondition_required")
        problem(await api.acme.patch(path, json={}, headers={"if-match": '"x"'}), 412, "revision_mismatch")
        tag = {"if-match": first.headers["etag"]}
        problem(await api.acme.patch(path, json={"pinned": True}, headers=tag), 403, "forbidden")
        problem(await api.acme.patch(path, json={"version": "0" * 64}, headers=tag), 400, "invalid_value")
        version = second.json()["version"]
        swapped = await api.acme.patch(path, json={"version": version}, headers=tag)
        assert swapped.json()["version"] == version
        found = adapter.resolve("acme:pirate", "acme")
        assert found is not None
        assert found.version == version
        problem(await api.acme.patch(path, json={"version": version}, headers=tag), 412, "revision_mismatch")
        tag = {"if-match": swapped.headers["etag"]}
        pinned = await api.operator.patch(path, json={"pinned": True}, headers=tag)
        assert pinned.json()["pinned"] is True
        tag = {"if-match": pinned.headers["etag"]}
        drained = await api.acme.patch(path, json={"drained": True}, headers=tag)
        assert drained.json()["drained"] is True
        with pytest.raises(Unavailable):
            adapter.resolve("acme:pirate", "acme")
        problem(await api.acme.delete(path, headers=tag), 412, "revision_mismatch")
        assert (await api.acme.delete(path, headers={"if-match": drained.headers["etag"]})).status_code == 204
        problem(await api.acme.get(path), 404, "not_found")
        entries = (await api.acme.get("/tenants/acme/audit")).json()["data"]
        assert [entry["action"] for entry in entries] == [
            "adapter.delete",
            "adapter.update",
            "adapter.update",
            "adapter.update",
            "adapter.point",
            "adapter.register",
            "adapter.point",
            "adapter.register",
        ]
        people = {entry["actor"] for entry in entries if entry["action"] != "adapter.point"}
        assert people == {"acme/key:acme-admin", "operations/key:root"}
        assert entries[-2]["changes"] == {"version": first.json()["version"]}
        assert entries[-2]["actor"].startswith("job:job_")


async def test_running_turns_of_all_gateways_are_counted(
    administer: Administer, frames: FrameEngine, folders: list[Path], tmp_path: Path
) -> None:
    """Until they have ended, drained or not. Who may not change the adapter is not told."""
    engines = {"small": [frames.address]}
    async with administer(engines=engines) as api, administer(engines=engines) as second:
        shared = await registered(api, folders[0])
        path = "/adapters/acme:pirate"
        assert shared.json()["running_turns"] == 0
        both = {"tenants": ["acme", "demo"]}
        await api.operator.patch(path, json=both, headers={"if-match": shared.headers["etag"]})
        frames.gate.clear()

        async def running(expected: int) -> Any:
            """What is shown once so many run and the second gateway has told it."""
            counts = [each.served.gateway.metrics.activity.adapters for each in (api, second)]
            await eventually(lambda: sum(count["acme:pirate"] for count in counts) == expected)
            for _ in range(FACTS):
                await second.served.gateway.presence.beat()
            return (await api.operator.get(path)).json()["running_turns"]

        names = second.served.gateway.adapters
        await eventually(lambda: "acme:pirate" in names.visible("demo"))
        asked = [
            asyncio.create_task(
                each.served.client.responses.create(model="acme:pirate", input=word, max_output_tokens=4)
            )
            for each, word in ((api, "one"), (second, "two"), (second, "three"))
        ]
        assert await running(3) == 3
        tag = (await api.operator.get(path)).headers["etag"]
        drained = await api.operator.patch(path, json={"drained": True}, headers={"if-match": tag})
        assert drained.json()["running_turns"] == 3
        assert (await api.acme.get(path)).json()["running_turns"] is None
        frames.gate.set()
        await asyncio.gather(*asked)
        assert await running(0) == 0


async def test_others_adapters_are_not_there(administer: Administer, frames: FrameEngine, folders: list[Path]) -> None:
    """Nor shared ones to be changed, nor who shares them."""
    async with administer(engines={"small": [frames.address]}) as api:
        await registered(api, folders[0])
        path = "/adapters/acme:pirate"
        problem(await api.other.get(path), 404, "not_found")
        problem(await api.other.patch(path, json={}, headers={"if-match": "*"}), 404, "not_found")
        problem(await api.other.delete(path, headers={"if-match": "*"}), 404, "not_found")
        shared = await api.operator.patch(path, json={"tenants": ["acme", "other"]}, headers={"if-match": "*"})
        assert shared.json()["tenants"] == ["acme", "other"]
        assert (await api.other.get(path)).json()["tenants"] == ["other"]
        problem(await api.other.delete(path, headers={"if-match": "*"}), 403, "forbidden")
        problem(await api.acme.delete(path, headers={"if-match": "*"}), 403, "forbidden")


async def test_a_name_can_be_led_back(administer: Administer, frames: FrameEngine, folders: list[Path]) -> None:
    """By its own tenant, to what it has led to before; a tenant that only may use it is not shown that."""
    async with administer(engines={"small": [frames.address]}) as api:
        first = await registered(api, folders[0])
        accepted = await upload(api.acme, folders[1], name="acme:pirate", replace=True)
        assert (await finished(api.acme, accepted))["state"] == "succeeded"
        path, old = "/adapters/acme:pirate", first.json()["version"]
        current, before = (await api.acme.get(f"{path}/versions")).json()["data"]
        assert (before["version"], before["current"], before["present"]) == (old, False, True)
        assert (current["current"], current["until"]) == (True, None) and before["until"] > 0
        tag = {"if-match": (await api.acme.get(path)).headers["etag"]}
        assert (await api.acme.patch(path, json={"version": old}, headers=tag)).json()["version"] == old
        shown = (await api.operator.get(f"{path}/versions")).json()["data"]
        assert [each["version"] for each in shown] == [old, current["version"]]
        problem(await api.other.get(f"{path}/versions"), 404, "not_found")
        await api.operator.patch(path, json={"tenants": ["acme", "other"]}, headers={"if-match": "*"})
        await api.operator.patch(path, json={"version": current["version"]}, headers={"if-match": "*"})
        assert len((await api.operator.get(f"{path}/versions")).json()["data"]) == 2
        for client in (api.acme, api.other):
            assert len((await client.get(f"{path}/versions")).json()["data"]) == 1


async def test_a_digest_is_no_permission(administer: Administer, frames: FrameEngine, folders: list[Path]) -> None:
    """A name can be led only to versions that an adapter of the tenant's leads to, as of now."""
    async with administer(engines={"small": [frames.address]}) as api:
        own = await registered(api, folders[0])
        job = await finished(api.operator, await upload(api.operator, folders[1], name="gold", tenants=["acme"]))
        assert job["state"] == "succeeded", job
        gold = (await api.acme.get("/adapters/gold")).json()["version"]
        await api.operator.patch("/adapters/gold", json={"tenants": ["other"]}, headers={"if-match": "*"})
        path, tag = "/adapters/acme:pirate", {"if-match": own.headers["etag"]}
        problem(await api.acme.patch(path, json={"version": gold}, headers=tag), 400, "invalid_value")
        assert (await api.acme.get(path)).json()["version"] == own.json()["version"]
        await api.operator.patch("/adapters/gold", json={"tenants": None}, headers={"if-match": "*"})
        assert (await api.acme.patch(path, json={"version": gold}, headers=tag)).json()["version"] == gold


async def test_versions_of_adapters_that_the_tenant_may_not_use_are_refused(
    administer: Administer, frames: FrameEngine, folders: list[Path]
) -> None:
    """Also where the adapter is open to all, and only the tenant's list of models lacks it."""
    async with administer(engines={"small": [frames.address]}) as api:
        await api.operator.post("/tenants", json={"name": "shop", "models": ["shop:pirate"]})
        made = (await api.operator.post("/tenants/shop/keys", json={"scopes": ["admin:read", "admin:write"]})).json()
        async with api.client(made["key"]) as shop:
            own = await registered(api, folders[0], "shop:pirate", by=shop)
            job = await finished(api.operator, await upload(api.operator, folders[1], name="gold"))
            assert job["state"] == "succeeded", job
            gold = (await api.operator.get("/adapters/gold")).json()["version"]
            headers = {"if-match": own.headers["etag"]}
            swap = await shop.patch("/adapters/shop:pirate", json={"version": gold}, headers=headers)
            problem(swap, 400, "invalid_value")


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_name_that_is_shared_meanwhile_is_not_changed(
    administer: Administer, frames: FrameEngine, folders: list[Path], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Also if the caller takes any state of it: whose it is is asked when it is changed."""
    async with administer(engines={"small": [frames.address]}) as api:
        await registered(api, folders[0])
        registry, noted = api.served.gateway.adapters.registry, Call.note

        async def shared(call: Call, action: str, *what: Any, **more: Any) -> bool:
            if not action.endswith(".failed"):
                both = ("acme", "other")
                registry.edit("acme:pirate", lambda pointer: msgspec.structs.replace(pointer, tenants=both))
            return await noted(call, action, *what, **more)

        monkeypatch.setattr(Call, "note", shared)
        body = {"json": {"drained": True}} if method == "PATCH" else {}
        path = "/adapters/acme:pirate"
        problem(await api.acme.request(method, path, headers={"if-match": "*"}, **body), 403, "forbidden")
        assert (await api.operator.get(path)).json()["drained"] is False
