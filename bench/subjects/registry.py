"""The subjects: what each can do and where it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import msgspec

from bench.cells import ADAPTERS, PREFIX
from bench.subjects.interface import PRECISIONS, Precision, Subject, SubjectSetup

_LOADS = ("1", "8", "32", PREFIX)


class SubjectKind(msgspec.Struct, frozen=True):
    """How to measure a subject."""

    module: str
    """Name of the module below `bench.subjects`."""
    load: str
    """Name of the function that loads a model."""
    libraries: tuple[str, ...]
    """Libraries imported before memory is counted: code is not what the column compares."""
    precisions: tuple[Precision, ...]
    cells: tuple[str, ...] = _LOADS
    environment: str | None = None
    """The section of bench/peers.toml that it needs; None is the environment of this project."""
    converts: bool = False
    """Whether the subject reads a format of its own."""
    variables: dict[str, str] = {}
    """Environment variables that its process needs unless they are set."""

    def loaded(self, setup: SubjectSetup) -> AbstractContextManager[Subject]:
        function: Callable[[SubjectSetup], AbstractContextManager[Subject]] = getattr(self.imported(), self.load)
        return function(setup)

    def imported(self) -> Any:
        return import_module(f"bench.subjects.{self.module}")


_LLAMA = "transformers.models.llama.modeling_llama"
_OURS = ("torch", "engine.core", "engine.execution.runner")
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads sleep, as in `engine.server`; in-process it must be set before torch is loaded. Peers keep their defaults."""
SUBJECTS = {
    "transformers generate": SubjectKind("hugging_face", "generate", ("torch", _LLAMA), ("fp32", "bf16")),
    "transformers continuous batching": SubjectKind(
        "hugging_face",
        "continuous_batching",
        ("torch", _LLAMA, "transformers.generation.continuous_batching"),
        ("fp32", "bf16"),
    ),
    "peft": SubjectKind("hugging_face", "peft", ("torch", _LLAMA, "peft"), ("fp32", "bf16"), ("32", ADAPTERS)),
    "OpenVINO": SubjectKind(
        "openvino", "load", ("openvino_genai",), ("bf16", "int8", "int4"), environment="openvino", converts=True
    ),
    "llama.cpp": SubjectKind(
        "llama_cpp", "load", ("llama_cpp",), ("bf16", "int8", "int4", "stored"), environment="llama.cpp", converts=True
    ),
    "llama.cpp, served": SubjectKind("llama_server", "load", (), ("stored",), environment="llama.cpp"),
    "onnxruntime": SubjectKind(
        "onnxruntime",
        "load",
        ("onnxruntime_genai",),
        ("fp32", "int8", "int4"),
        environment="onnxruntime",
        converts=True,
        variables={"ORT_DISABLE_TELEMETRY": "1"},
    ),
    "ctranslate2": SubjectKind(
        "ctranslate2", "load", ("ctranslate2",), ("fp32", "int8"), environment="ctranslate2", converts=True
    ),
    "vLLM": SubjectKind("vllm", "load", ("vllm",), ("bf16",), environment="vllm"),
    "Roundhouse": SubjectKind(
        "roundhouse", "in_process", _OURS, (*PRECISIONS, "stored"), (*_LOADS, ADAPTERS), variables=_WAITING
    ),
    "Roundhouse, served": SubjectKind(
        "roundhouse", "served", (*_OURS, "engine.server"), (*PRECISIONS, "stored"), variables=_WAITING
    ),
}
OURS = "Roundhouse"
"""First word of our subjects' names."""
