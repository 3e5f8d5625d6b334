"""Weights are loaded whole or refused by name, and a revision names them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.files import revision_digest
from engine.checkpoint.folder import FolderCheckpoint
from engine.execution.runner import ModelRunner
from engine.model.decoder import DecoderLayer
from engine.model.weights import Targets, load_weights
from kernels import Quantization
from tests.engine.checkpoints import oracle_greedy, random_prompt, write_checkpoint
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, request, tokens_of

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def copy(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A checkpoint of this test's own, to be spoilt."""
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "model"))


def change(directory: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def load(directory: Path) -> ModelRunner:
    return ModelRunner(directory, blocks=BLOCKS)


def greedy(directory: Path) -> list[int]:
    return tokens_of(load(directory), [request(random_prompt(20), max_tokens=8)])[0]


def test_sharded_weights_are_loaded(checkpoint: Checkpoint) -> None:
    directory = checkpoint("llama", max_shard_size="100KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    assert greedy(directory) == oracle_greedy(directory, random_prompt(20), 8)


@pytest.mark.parametrize("architecture", ["llama-tied", "qwen3"])
def test_a_tied_head_in_the_file_is_ignored(checkpoint: Checkpoint, tmp_path: Path, architecture: str) -> None:
    directory = Path(shutil.copytree(checkpoint(architecture), tmp_path / "model"))
    expected = greedy(directory)
    change(directory, lambda t: t.update({"lm_head.weight": torch.zeros_like(t["model.embed_tokens.weight"])}))
    assert greedy(directory) == expected


def test_rotary_frequencies_of_old_checkpoints_are_ignored(copy: Path) -> None:
    expected = greedy(copy)
    change(copy, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert greedy(copy) == expected


def test_a_missing_tensor_is_named(copy: Path) -> None:
    change(copy, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"missing tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load(copy)


def test_an_unexpected_tensor_is_named(copy: Path) -> None:
    change(copy, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}))
    with pytest.raises(CheckpointError, match=r"unexpected tensor 'model\.layers\.0\.self_attn\.q_proj\.bias'"):
        load(copy)


def test_a_misshaped_tensor_is_named_with_both_shapes(copy: Path) -> None:
    change(copy, lambda t: t.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' has shape \[63\] .* \[64\]"):
        load(copy)


def test_a_quantised_tensor_is_refused(copy: Path) -> None:
    change(copy, lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match="stored as i8"):
        load(copy)


def test_other_formats_are_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="save the model in safetensors format"):
        load(copy)


def test_a_torn_file_is_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="not a valid safetensors file"):
        load(copy)


@pytest.mark.parametrize("name", ["../model.safetensors", "model-00009-of-00009.safetensors"])
def test_an_index_may_only_name_files_beside_it(copy: Path, name: str) -> None:
    shutil.copy(copy / "model.safetensors", copy.parent)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(CheckpointError, match="is not a file in"):
        load(copy)


def test_a_broken_index_is_refused(copy: Path) -> None:
    (copy / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        load(copy)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_values_are_converted_to_the_wanted_type(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    values = torch.randn(4, 4).to(stored)
    save_file({"x": values}, tmp_path / "model.safetensors")
    target = torch.zeros(4, 4, dtype=wanted)
    load_weights(tmp_path, FolderCheckpoint(tmp_path).tensors(), [{"x": target}])
    assert torch.equal(target, values.to(wanted))


def test_a_group_is_told_of_as_soon_as_it_is_whole(tmp_path: Path) -> None:
    save_file({name: torch.full((2,), float(ord(name))) for name in "abcd"}, tmp_path / "model.safetensors")
    targets = {name: torch.zeros(2) for name in "abcd"}
    groups: list[Targets] = [{name: targets[name] for name in names} for names in ("bc", "ad")]
    told: list[tuple[int, list[float]]] = []
    tensors = FolderCheckpoint(tmp_path).tensors()

    def complete(group: int) -> None:
        told.append((group, [float(targets[name][0]) for name in "abcd"]))

    load_weights(tmp_path, tensors, groups, complete=complete)
    assert told == [(0, [97, 98, 99, 0]), (1, [97, 98, 99, 100])]
    assert groups == [{}, {}]


def test_a_group_may_get_its_memory_when_its_turn_comes(tmp_path: Path) -> None:
    save_file({name: torch.full((2,), float(ord(name))) for name in "abcd"}, tmp_path / "model.safetensors")
    groups: list[Targets] = [{name: torch.empty(2, device="meta") for name in names} for names in ("ab", "cd")]
    filled: dict[str, torch.Tensor] = {}
    told: list[str] = []

    def begin(group: int) -> Targets:
        told.append(f"begin {group}")
        targets = {name: torch.zeros(2) for name in groups[group]}
        filled.update(targets)
        return {**targets}

    tensors = FolderCheckpoint(tmp_path).tensors()
    load_weights(tmp_path, tensors, groups, begin=begin, complete=lambda group: told.append(f"complete {group}"))
    assert told == ["begin 0", "complete 0", "begin 1", "complete 1"]
    assert {name: float(x[1]) for name, x in filled.items()} == {name: ord(name) for name in "abcd"}


def test_only_one_layer_at_a_time_is_not_yet_packed(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a model whose weights fit only when quantised can be loaded."""
    told: list[str] = []
    make, pack = DecoderLayer.__init__, DecoderLayer.pack

    def made(self: DecoderLayer, config: ModelConfig, layer: int, device: torch.device, dtype: torch.dtype) -> None:
        make(self, config, layer, device, dtype)
        if device.type != "meta":
            told.append(f"allocated {layer}")

    def packed(self: DecoderLayer, quantize: Quantization | None) -> None:
        pack(self, quantize)
        told.append("packed")

    monkeypatch.setattr(DecoderLayer, "__init__", made)
    monkeypatch.setattr(DecoderLayer, "pack", packed)
    load(checkpoint("llama"))
    assert told[:4] == ["allocated 0", "packed", "allocated 1", "packed"]


def test_a_tensor_in_two_files_is_refused(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    name = "model.norm.weight"
    save_file({name: tensors[name]}, copy / "old.safetensors", metadata={"format": "pt"})
    files = dict.fromkeys(tensors, "model.safetensors") | {"more": "old.safetensors"}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(CheckpointError, match=rf"tensor '{name}' is in two files"):
        load(copy)


def test_a_revision_survives_copying(checkpoint: Checkpoint, copy: Path) -> None:
    assert revision_digest(copy) == revision_digest(checkpoint("llama"))


def test_a_revision_changes_with_the_config(copy: Path) -> None:
    before = revision_digest(copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert revision_digest(copy) != before


def test_a_revision_changes_with_the_weights_although_all_shapes_stay(tmp_path: Path) -> None:
    digests = {revision_digest(write_checkpoint(tmp_path / str(seed), seed=seed)) for seed in (1, 2)}
    assert len(digests) == 2
