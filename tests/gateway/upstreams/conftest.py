"""Servers that need more than a model of the tests: ONNX Runtime, and vLLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.checkpoints import cache_folder
from bench.peers import python_of
from tests.gateway.upstreams import subjects

ONNX_CONTEXT = 2**13
"""So long that no answer that fills it has ended before a test is done with it: the model writes thousands of tokens a
second."""


@pytest.fixture(scope="session")
def onnx_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of the gateway's tests with a longer context, as ONNX Runtime's own builder converts it."""
    if find_spec("onnxruntime_genai") is None:
        pytest.skip("not here: pip install onnxruntime-genai onnx onnx-ir")
    place = tmp_path_factory.mktemp("onnx")
    source, folder = place / "source", place / "tiny"
    shutil.copytree(model, source)
    config = json.loads((source / "config.json").read_bytes())
    (source / "config.json").write_text(json.dumps(config | {"max_position_embeddings": ONNX_CONTEXT}))
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(folder)]
    command += ["-c", str(place / "cache"), "-p", "fp32", "-e", "cpu"]
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def onnxruntime(onnx_model: Path) -> Iterator[str]:
    with subjects.onnx_server(onnx_model) as address:
        yield address


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's own server, which ends with the file whose tests ask it: it takes more than a gigabyte."""
    python = python_of("vllm", cache_folder())
    if python is None:
        pytest.skip("not here: .venv/bin/python -m bench.peers vllm")
    with subjects.vllm_server(python, tmp_path_factory.mktemp("vllm") / "log") as address:
        yield address
