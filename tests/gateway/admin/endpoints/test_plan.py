"""Plans for a load, through the admin API."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli.root import main
from gateway.config.model_store import ModelStoreSettings
from gateway.models.store import StoredModel
from tests.gateway.admin.conftest import Administer

pytestmark = pytest.mark.anyio

LOAD: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "hardware": "h100",
    "rate": 20,
    "input": 1200,
    "output": 250,
    "shared": 0.4,
}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"itl": 0.05, "ttft": 1, "weights": "int4", "kv": "int8", "devices": 2, "price": 2.5, "spare": 0, "peak": 2.5},
    ],
)
async def test_a_plan_is_that_of_the_command_that_it_names(administer: Administer, more: dict[str, Any]) -> None:
    async with administer() as api:
        found = (await api.operator.get("/plan", params={**LOAD, **more})).json()
        program, *words = shlex.split(found["command"])
        told = json.loads(CliRunner().invoke(main, [*words, "--bounds-only", "--json"]).output)
        assert program == "roundhouse"
        assert found["plan"].items() <= told["plan"].items()
        assert len(found["alternatives"]) > 5
        for one, other in zip(found["alternatives"], told["alternatives"], strict=True):
            assert one.items() <= other.items()


async def test_without_a_model_it_says_which_there_are(administer: Administer) -> None:
    async with administer() as api:
        found = (await api.operator.get("/plan")).json()
        assert "llama-3.1-8b" in found["models"] and "h100" in found["hardware"]
        assert (found["plan"], found["alternatives"], found["command"]) == (None, [], None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "../secret"}, "no model of the store"),
        ({"hardware": "abacus"}, "no known device"),
        ({"model": "llama-3.1-70b", "hardware": "l4"}, "needs"),
        ({"itl": 0.0001}, "ITL of 0.0001 s"),
    ],
)
async def test_what_cannot_be_served_is_told(administer: Administer, wrong: dict[str, Any], message: str) -> None:
    async with administer() as api:
        found = (await api.operator.get("/plan", params={**LOAD, **wrong})).json()
        assert message in found["problem"]
        assert found["detail"] is None
        assert (found["plan"], found["command"]) == (None, None)


async def test_a_checkpoint_that_cannot_be_used_is_told_with_what_is_wrong(
    administer: Administer, tmp_path: Path
) -> None:
    stored = StoredModel(name="broken", file="broken.gguf", bytes=4, sha256="0" * 64, source="here")
    folder = tmp_path / "models" / stored.name
    folder.mkdir(parents=True)
    (folder / "model.json").write_bytes(msgspec.json.encode(stored))
    (folder / stored.file).write_bytes(b"junk")
    async with administer(models=ModelStoreSettings(store=str(tmp_path))) as api:
        found = (await api.operator.get("/plan", params={**LOAD, "model": "broken"})).json()
        assert found["problem"] == "the checkpoint of broken cannot be used"
        assert "GGUF" in found["detail"]
        assert (found["plan"], found["command"]) == (None, None)


async def test_it_is_for_operators(administer: Administer) -> None:
    async with administer() as api:
        assert (await api.acme.get("/plan")).status_code == 403
