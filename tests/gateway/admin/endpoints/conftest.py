"""Adapters to register, and functions that register them."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.text.processor import TextProcessor
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.admin.conftest import Administered
from tests.gateway.frame_engine import FrameEngine


@pytest.fixture(scope="session")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters of the tests' model."""
    folder = tmp_path_factory.mktemp("store")
    return [write_adapter(folder / f"pirate-{seed}", model, "only q_proj", seed=seed) for seed in range(2)]


@pytest.fixture
async def frames(tmp_path: Path, model: Path) -> AsyncIterator[FrameEngine]:
    """An engine that answers with whatever adapter it is asked for."""
    token = TextProcessor.from_path(model).encode("a")[-1]
    async with FrameEngine(tmp_path / "one.sock", defaultdict(lambda: token)).serving() as engine:
        yield engine


async def finished(client: httpx2.AsyncClient, response: httpx2.Response) -> dict[str, Any]:
    """Return the job that a response names, when it has ended."""
    assert response.status_code == 202, response.text
    path = response.headers["location"].removeprefix("/admin/v1")
    async with asyncio.timeout(60):
        while True:
            job: dict[str, Any] = (await client.get(path)).json()
            if job["state"] in ("succeeded", "failed"):
                return job
            await asyncio.sleep(0.01)


def form(folder: Path, **request: Any) -> dict[str, Any]:
    """Return the arguments of an upload."""
    return {
        "files": {
            "request": (None, json.dumps(request), "application/json"),
            "config": ("../../etc/passwd", (folder / "adapter_config.json").read_bytes(), "application/json"),
            "weights": ("weights", (folder / "adapter_model.safetensors").read_bytes(), "application/octet-stream"),
        }
    }


async def upload(client: httpx2.AsyncClient, folder: Path, **request: Any) -> httpx2.Response:
    return await client.post("/adapters", **form(folder, **request))


async def registered(
    api: Administered, folder: Path, name: str = "acme:pirate", by: httpx2.AsyncClient | None = None
) -> httpx2.Response:
    """Register an adapter of acme's, or of another tenant whose admin registers it."""
    client = by or api.acme
    job = await finished(client, await upload(client, folder, name=name))
    assert job["state"] == "succeeded", job
    return await client.get(f"/adapters/{name}")
