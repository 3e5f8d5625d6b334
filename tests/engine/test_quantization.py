"""Engines with quantised weights: what they say, and that nobody takes their KV for that of the plain model."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

import kernels
from engine.cache.prefix_keys import chain_root
from engine.checkpoint.files import revision_digest
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from kernels import Quantization, library
from tests.amounts import some_of
from tests.engine.checkpoints import VOCABULARY, oracle_logits, random_prompt, write_checkpoint
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request

QUANTIZATIONS = get_args(Quantization)


def load(directory: Path, quantize: Quantization | None, device: str = "cpu") -> ModelRunner:
    return ModelRunner(directory, blocks=BLOCKS, device=device, precision=Precision("bfloat16", quantize=quantize))


def logprobs(runner: ModelRunner, prompt: list[int]) -> torch.Tensor:
    """Of every token after each of the prompt's -> [tokens, vocabulary]."""
    asked = request(prompt, max_tokens=1, prompt_logprobs=VOCABULARY, logprobs=VOCABULARY)
    ((*chunks, last),) = drive(runner, [asked])
    entries = [*(entry for each in (*chunks, last) for entry in each.prompt_logprobs or []), *(last.logprobs or ())]
    found = torch.full((len(prompt), VOCABULARY), torch.nan)
    for row, entry in zip(found, entries, strict=True):
        for token, value in entry.top:
            row[token] = value
    return found


@pytest.mark.parametrize(
    "architecture", some_of([("llama",), ("llama-tied",), ("llama-bias",), ("qwen3",), ("mixtral",)], 2)
)
def test_int4_is_the_model_whose_weights_are_what_quantisation_left(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, architecture: str
) -> None:
    directory = checkpoint(architecture, dtype=torch.bfloat16)
    prompt, pack = random_prompt(60), kernels.pack_weight
    if device == "cpu" and library.cpu is not None and library.cpu.isa == "avx2":
        pytest.skip("AVX2 multiplies with weights that are not rounded: the next test is of the same model")
    found = logprobs(load(directory, "int4", device), prompt)
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight") or ".experts." in name:
            tensors[name] = pack(tensor, "int4").dense()
    rounded = Path(shutil.copytree(directory, tmp_path / "rounded"))
    save_file(tensors, rounded / "model.safetensors", metadata={"format": "pt"})
    # The head alone is int8, and the only weight with so many outputs.
    monkeypatch.setattr(kernels, "pack_weight", lambda w, _=None: pack(w, "int8" if len(w) == VOCABULARY else None))
    assert torch.equal(found, logprobs(load(rounded, None, device), prompt))


@pytest.mark.parametrize(
    ("quantize", "architecture"),
    some_of([*product(QUANTIZATIONS, ["llama", "llama-bias", "mistral", "qwen3"])], 3),
)
def test_log_probabilities_are_those_of_transformers_with_the_same_rounding(
    checkpoint: Checkpoint, device: str, architecture: str, quantize: Quantization
) -> None:
    """What bf16 makes of it apart, which is as much as of the plain model."""
    directory, prompt = checkpoint(architecture, dtype=torch.bfloat16), random_prompt(60)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def distance(quantize: Quantization | None) -> float:
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        return float((logprobs(load(directory, quantize, device), prompt) - expected).norm())

    plain = distance(None)
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        kind = "int8" if quantize == "int4" and name == "lm_head" else quantize
        packed = kernels.pack_weight(module.weight.detach().bfloat16(), kind)
        # To within a rounding to bf16 that int4 weights have on all but AVX2.
        rounded = packed.dense().float() if kind == "int4" else packed.numbers() * packed.scales[:, None]
        module.weight = nn.Parameter(rounded, requires_grad=False)
    assert distance(quantize) < 1.5 * plain


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
def test_log_probabilities_are_near_those_of_fp32(checkpoint: Checkpoint, device: str, quantize: Quantization) -> None:
    directory, prompt = checkpoint("llama"), random_prompt(60)
    # A random model of this size is at the mercy of every weight; the demo's models are in docs/engine.md.
    expected = oracle_logits(directory, prompt).log_softmax(-1)
    found = logprobs(load(directory, quantize, device), prompt)
    spread = (expected - expected.mean(-1, keepdim=True)).norm()
    assert float((found - expected).norm() / spread) < {"int8": 0.06, "w8a16": 0.06, "int4": 0.6}[quantize]


def test_each_quantisation_has_a_prefix_chain_of_its_own(checkpoint: Checkpoint) -> None:
    directory = checkpoint("llama")
    infos = [load(directory, quantize).info for quantize in (None, *QUANTIZATIONS)]
    assert infos[0].revision == revision_digest(directory)
    assert (
        len({info.revision for info in infos}) == len({chain_root(info, 5, None, b"") for info in infos}) == len(infos)
    )


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
def test_float32_is_not_quantised(checkpoint: Checkpoint, quantize: Quantization) -> None:
    with pytest.raises(ValueError, match="choose bfloat16"):
        ModelRunner(checkpoint("llama"), blocks=BLOCKS, precision=Precision(quantize=quantize))


def test_weights_are_smaller_and_the_plain_ones_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_checkpoint(tmp_path, "llama", dtype=torch.bfloat16, hidden_size=256, intermediate_size=512)
    packed: list[kernels.PackedWeight] = []
    pack = kernels.pack_weight

    def note(weight: torch.Tensor, quantize: Quantization | None) -> kernels.PackedWeight:
        packed.append(pack(weight, quantize))
        return packed[-1]

    monkeypatch.setattr(kernels, "pack_weight", note)
    for quantize, bits in (("int8", 8.3), ("w8a16", 8.3), ("int4", 5.2)):
        packed.clear()
        load(directory, quantize)  # type: ignore[arg-type]
        elements = sum(one.outputs * one.inputs for one in packed)
        assert sum(one.data.nbytes for one in packed) * 8 < bits * elements
