"""Weights that a file stores in few bits are served as they are: what answers is transformers on the same numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

import kernels
from engine.checkpoint.errors import CheckpointError
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.model.layers import Linear
from kernels.formats.groups import GroupedWeight
from tests.amounts import some_of
from tests.engine.checkpoint.gguf.miniature import write_gguf
from tests.engine.checkpoints import VOCABULARY, oracle_greedy, oracle_logits, random_prompt, write_checkpoint
from tests.engine.driver import BLOCKS, drive, request, tokens_of

TYPES = {"attn_q": Type.Q5_0, "attn_k": Type.Q5_0, "attn_v": Type.Q8_0, "ffn_gate": Type.Q4_1, "ffn_up": Type.Q4_1}
"""As mixes of types have them: one for queries and keys, and another for values."""


def type_of(name: str) -> Type:
    return next((kind for part, kind in TYPES.items() if part in name), Type.Q4_0)


def write(folder: Path, architecture: str, kind: Type | None = None) -> tuple[Path, Path]:
    """A GGUF file in one type, or in several; and the folder of a model with the numbers that these stand for."""
    directory = write_checkpoint(folder / "model", architecture, intermediate_size=128)
    path = write_gguf(folder / "model.gguf", directory, type_of=lambda name: kind or type_of(name))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3)
    dense = load_file(directory / "model.safetensors")
    for name, tensor in dense.items():
        if tensor.dim() == 2:
            stored = kind or type_of(names.get_name(name, try_suffixes=(".weight",)) or "")
            rounded = gguf.dequantize(gguf.quantize(tensor.numpy(), stored), stored)
            dense[name] = torch.from_numpy(rounded).view(tensor.shape)
    rounded_model = Path(shutil.copytree(directory, folder / "rounded"))
    save_file(dense, rounded_model / "model.safetensors", metadata={"format": "pt"})
    return path, rounded_model


def load(path: Path) -> ModelRunner:
    """With nothing rounded behind the weights."""
    return ModelRunner(path, blocks=BLOCKS, precision=Precision("float32", kv_dtype="fp32"))


def logprobs(runner: ModelRunner, prompt: list[int]) -> torch.Tensor:
    """Of every token after the prompt -> [vocabulary]."""
    ((*_, last),) = drive(runner, [request(prompt, max_tokens=1, logprobs=VOCABULARY)])
    found = torch.full((VOCABULARY,), torch.nan)
    for token, value in (last.logprobs or ())[0].top:
        found[token] = value
    return found


@pytest.mark.parametrize(
    "architecture", some_of([("llama",), ("llama-tied",), ("llama-bias",), ("qwen2",), ("qwen3",)], 2)
)
def test_a_file_of_several_types_answers_as_transformers_does(tmp_path: Path, architecture: str) -> None:
    path, rounded = write(tmp_path, architecture)
    runner, prompt = load(path), random_prompt(20)
    assert tokens_of(runner, [request(prompt, max_tokens=12)])[0] == oracle_greedy(rounded, prompt, 12)
    expected = oracle_logits(rounded, prompt)[-1].log_softmax(-1)
    # Activations are rounded to 16 bits per 128 inputs, the last of which such narrow random layers magnify.
    found = logprobs(runner, prompt)
    assert torch.allclose(found, expected, atol=5e-3)
    assert float((expected.exp() * (expected - found)).sum()) < 1e-6


@pytest.mark.parametrize(
    "kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4, Type.F16, Type.BF16]
)
def test_a_file_of_one_type_answers_as_transformers_does(tmp_path: Path, kind: Type) -> None:
    path, rounded = write(tmp_path, "llama", kind)
    prompt = random_prompt(20)
    assert tokens_of(load(path), [request(prompt, max_tokens=8)])[0] == oracle_greedy(rounded, prompt, 8)


@pytest.mark.parametrize("kind", some_of([(Type.Q4_0,), (Type.Q8_0,), (Type.MXFP4,)], 2))
def test_experts_are_served_as_they_are_stored(tmp_path: Path, kind: Type) -> None:
    path, rounded = write(tmp_path, "mixtral", kind)
    prompt = random_prompt(20)
    assert tokens_of(load(path), [request(prompt, max_tokens=8)])[0] == oracle_greedy(rounded, prompt, 8)


@pytest.mark.parametrize(
    ("dtype", "precision", "error"),
    [
        ("auto", Precision("float32", kv_dtype="fp16"), 0.0005),
        ("bfloat16", Precision("bfloat16", kv_dtype="bf16"), 0.05),
    ],
)
def test_nothing_is_rounded_to_bf16_unless_asked_for(
    tmp_path: Path, dtype: Literal["auto", "bfloat16"], precision: Precision, error: float
) -> None:
    path, rounded = write(tmp_path, "llama")
    runner, prompt = ModelRunner(path, blocks=BLOCKS, precision=Precision(dtype)), random_prompt(20)
    assert runner.precision == precision
    expected = oracle_logits(rounded, prompt)[-1].log_softmax(-1)
    assert float((logprobs(runner, prompt) - expected).abs().mean()) < error


def test_every_linear_layer_keeps_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tied head too, beside an embedding that is not read as a whole."""
    path, _ = write(tmp_path, "llama-tied")
    packed: list[kernels.PackedWeight] = []
    pack = Linear.pack

    def noted(self: Linear, quantize: kernels.Quantization | None) -> None:
        pack(self, quantize)
        assert self._packed is not None
        packed.extend(getattr(self._packed, "parts", [self._packed]))

    monkeypatch.setattr(Linear, "pack", noted)
    runner = load(path)
    # Three layers of queries with keys, values, output, gate with up, and down; and the head.
    assert len(packed) == 3 * 5 + 1
    assert all(isinstance(one, GroupedWeight) for one in packed)
    assert runner._model._embedding.part.unpack is not None


def test_what_is_quantised_is_not_quantised_again(tmp_path: Path) -> None:
    path, _ = write(tmp_path, "llama")
    with pytest.raises(CheckpointError, match="weights are quantised already; leave out quantize = 'int8'"):
        ModelRunner(path, blocks=BLOCKS, precision=Precision(quantize="int8"))
