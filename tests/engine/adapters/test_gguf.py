"""LoRA adapters in GGUF are what peft's folders are that they were converted from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

import engine.adapters.gguf
from engine.adapters.format import CONFIG, WEIGHTS, AdapterError, check_adapter
from engine.adapters.gguf import as_folder
from engine.adapters.registry import AdapterRegistry
from tests.engine.adapters.zoo import ZOO, Kind, write_adapter
from tests.engine.checkpoint.gguf.miniature import ARCHITECTURES, change_keys, in_pairs
from tests.engine.conftest import Checkpoint

KINDS = [
    *("rank 8", "rank 1", "only v_proj", "some layers", "embeddings and head", "embeddings without copies"),
    *("llama-tied all-linear", "mistral all-linear", "qwen2 all-linear", "qwen3 all-linear", "gemma3 all-linear"),
    *("phi3 all-linear", "smollm3 all-linear", "mixtral attention"),
]
RANKS = Kind(
    "llama", {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "up_proj"], "rank_pattern": {"up_proj": 3}}
)


def converted(
    path: Path,
    base: Path,
    folder: Path,
    *,
    kind: Type = Type.F32,
    keys: dict[str, Any] | None = None,
    change: Callable[[dict[str, torch.Tensor]], object] = lambda tensors: None,
) -> Path:
    """Convert peft's folder as llama.cpp's `convert_lora_to_gguf.py` does; `keys` and `change` spoil the file."""
    config = json.loads((base / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    tensors: dict[str, torch.Tensor] = {}
    for key, tensor in load_file(folder / WEIGHTS).items():
        if "lora_" not in key:
            continue
        module, _, part = key.removeprefix("base_model.model.").partition(".lora_")
        part = part.removeprefix("embedding_")[0].lower()
        if part == "b":
            tensor = in_pairs(f"{module}.weight", tensor, config, architecture)
        elif "embed_tokens" in module:
            tensor = tensor.T
        name = names.get_name(f"{module}.weight", try_suffixes=(".weight",))
        tensors[f"{name}.lora_{part}"] = tensor
    change(tensors)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, json.loads((folder / CONFIG).read_text())["lora_alpha"])
    change_keys(writer, keys or {})
    for name, tensor in tensors.items():
        array = tensor.float().contiguous().numpy()
        quantised = kind if array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else Type.F32
        writer.add_tensor(name, gguf.quantize(array, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", [*KINDS, "ranks"])
def test_it_is_what_the_folder_is(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    kind = RANKS if name == "ranks" else ZOO[name]
    base = checkpoint(kind.architecture)
    folder = write_adapter(tmp_path / "folder", base, kind)
    file = converted(tmp_path / "adapter.gguf", base, folder)
    with as_folder(file, base) as made:
        ours, theirs = check_adapter(made, base), check_adapter(folder, base)
        assert [*map(msgspec.structs.asdict, ours.targets)] == [*map(msgspec.structs.asdict, theirs.targets)]
        stored = load_file(made / WEIGHTS)
        expected = {key: each for key, each in load_file(folder / WEIGHTS).items() if "lora_" in key}
        assert stored.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(stored[key], tensor), key
    assert AdapterRegistry(str(tmp_path / "registry")).add(file, base) == ours


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0])
def test_other_types_are_read_exactly(kind: Type, base: Path, written: list[Path], tmp_path: Path) -> None:
    file = converted(tmp_path / "adapter.gguf", base, written[0], kind=kind)
    with as_folder(file, base) as made:
        stored = load_file(made / WEIGHTS)
    a = next(each for each in gguf.GGUFReader(file).tensors if each.name == "blk.1.attn_q.weight.lora_a")
    assert a.tensor_type == kind
    values = torch.from_numpy(np.array(gguf.dequantize(a.data, kind)))
    assert torch.equal(stored["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"].float(), values)


def test_an_alpha_of_zero_scales_by_one(base: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "folder", base, RANKS)
    with as_folder(converted(tmp_path / "a.gguf", base, folder, keys={"adapter.lora.alpha": 0.0}), base) as made:
        assert {(target.rank, target.scaling) for target in check_adapter(made, base).targets} == {(8, 1.0), (3, 1.0)}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"general.type": "model"}, "it is no LoRA adapter"),
        ({"adapter.type": "control_vector"}, "it is no LoRA adapter"),
        ({"adapter.lora.alpha": None}, "adapter.lora.alpha is missing"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, "adapter.alora.invocation_tokens is not supported"),
        ({"general.architecture": "qwen2"}, "it is for the architecture 'qwen2'"),
        ({"general.architecture": "clip"}, "it is for the architecture 'clip'"),
    ],
)
def test_other_files_are_refused(
    keys: dict[str, Any], reason: str, base: Path, written: list[Path], tmp_path: Path
) -> None:
    file = converted(tmp_path / "adapter.gguf", base, written[0], keys=keys)
    with pytest.raises(AdapterError, match=reason), as_folder(file, base):
        pass


A, B = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop(A), "there is only .lora_b"),
        (lambda tensors: tensors.update({"blk.0.attn_q.weight": tensors[A]}), "only LoRA's own"),
        (lambda tensors: tensors.update({A: tensors[A][None]}), "3 dimensions"),
        (lambda tensors: tensors.update({"blk.0.ssm.weight.lora_a": tensors[A]}), "there is only"),
        (
            lambda tensors: tensors.update({f"blk.0.ssm.weight.lora_{part}": tensors[A] for part in "ab"}),
            "'blk.0.ssm.weight' is not one that can have LoRA",
        ),
        (
            lambda tensors: tensors.update({f"blk.0.attn_norm.weight.lora_{part}": tensors[A] for part in "ab"}),
            "is on a module that",
        ),
        (lambda tensors: tensors.update({B: tensors[B][1:]}), "does not have the 64 rows"),
        (lambda tensors: tensors.update({A: tensors[A][:, 1:]}), "has shape"),
        (lambda tensors: tensors.update({A: tensors[A][1:]}), "has shape"),
        (lambda tensors: tensors.update({A: tensors[A] * float("nan")}), "infinities or NaNs"),
        (lambda tensors: tensors.clear(), "it has no tensors"),
    ],
)
def test_wrong_tensors_are_refused_by_name(
    change: Callable[[dict[str, torch.Tensor]], object],
    reason: str,
    base: Path,
    written: list[Path],
    tmp_path: Path,
) -> None:
    file = converted(tmp_path / "adapter.gguf", base, written[0], change=change)
    with pytest.raises(AdapterError, match=reason):
        AdapterRegistry(str(tmp_path / "registry")).add(file, base)
    assert AdapterRegistry(str(tmp_path / "registry")).versions() == {}


def test_a_file_that_is_too_large_is_not_converted(
    base: Path, written: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = converted(tmp_path / "adapter.gguf", base, written[0])
    monkeypatch.setattr(engine.adapters.gguf, "MAX_WEIGHTS_BYTES", file.stat().st_size - 1)
    with pytest.raises(AdapterError, match="the most is"), as_folder(file, base):
        pass
