"""Tenants that may use some models and adapters only, at a real gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from engine.adapters.registry import AdapterRegistry
from gateway.access.identity.secret import installation_secret
from gateway.records.api_keys import new_key
from gateway.records.directory import Key, Tenant
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.conftest import EngineThread, Serve, Served, eventually

pytestmark = pytest.mark.anyio


async def client(served: Served, models: list[str] | None, **fields: Any) -> openai.AsyncOpenAI:
    """Of a tenant that may use these."""
    text, digest = new_key(installation_secret(served.gateway.settings))
    await served.gateway.directory.write(Tenant(name="acme", models=models), actor="test")
    await served.gateway.directory.write(Key(id="k", tenant="acme", digest=digest, **fields), actor="test")
    await served.gateway.view.refresh()
    return served.client.with_options(api_key=text)


async def names(client: openai.AsyncOpenAI) -> list[str]:
    return [model.id async for model in client.models.list()]


async def test_others_do_not_exist_for_it(serve: Serve, engine: EngineThread) -> None:
    async with serve(engines={"small": [engine.address], "large": [engine.address]}) as served:
        acme = await client(served, ["tiny-large"])
        assert await names(acme) == ["auto", "large", "tiny-large"]
        for name in ("auto", "large", "tiny-large"):
            answer = await acme.completions.create(model=name, prompt="hello", max_tokens=1)
            assert answer.model == "tiny-large"
        said = set()
        for name in ("small", "tiny-small", "nothing"):
            with pytest.raises(openai.NotFoundError) as caught:
                await acme.completions.create(model=name, prompt="hello", max_tokens=1)
            assert caught.value.code == "model_not_found"
            said.add(caught.value.message.replace(f"'{name}'", "*"))
            with pytest.raises(openai.NotFoundError):
                await acme.models.retrieve(name)
        assert len(said) == 1  # one that others may use looks like one that never was
        assert "tiny-small" not in said.pop()
        await served.settle()


async def test_nothing_is_left_of_an_empty_list(serve: Serve) -> None:
    async with serve() as served:
        acme = await client(served, [])
        assert await names(acme) == []
        for name in ("auto", "small", "tiny-small"):
            with pytest.raises(openai.NotFoundError):
                await acme.completions.create(model=name, prompt="hello", max_tokens=1)


@pytest.fixture
def adapters(tmp_path: Path, model: Path) -> list[str]:
    """Names of two adapters that everybody may use."""
    registry = AdapterRegistry(str(tmp_path / "adapters"))
    for seed, name in enumerate(("tone", "law")):
        folder = write_adapter(tmp_path / name, model, "only q_proj", seed=seed)
        registry.point(name, registry.add(folder, model).version, model="tiny-small")
    return ["tone", "law"]


async def test_adapters_are_named_in_the_list(serve: Serve, adapters: list[str]) -> None:
    async with serve() as served:
        await eventually(lambda: set(served.gateway.adapters.visible("acme")) == set(adapters))
        acme = await client(served, ["tone"])
        assert await names(acme) == ["tone"]
        for name in ("law", "auto"):
            with pytest.raises(openai.NotFoundError) as caught:
                await acme.completions.create(model=name, prompt="hello", max_tokens=1)
            assert "tone" in caught.value.message


async def test_an_adapter_needs_its_scope(serve: Serve, adapters: list[str]) -> None:
    async with serve() as served:
        await eventually(lambda: set(served.gateway.adapters.visible("acme")) == set(adapters))
        acme = await client(served, None, scopes=["chat", "models"])
        assert await names(acme) == ["auto", "small", "tiny-small"]
        with pytest.raises(openai.PermissionDeniedError) as caught:
            await acme.completions.create(model="tone", prompt="hello", max_tokens=1)
        assert caught.value.code == "insufficient_scope" and "'adapters'" in caught.value.message
