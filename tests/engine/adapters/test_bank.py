"""The bank prepares what can be served, refuses the rest, and leaves blocks as KV may find them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.adapters.config import AdapterError
from engine.adapters.format import CONFIG, WEIGHTS, check_adapter
from engine.adapters.manifest import Manifest
from engine.adapters.storage import RegistryError
from tests.engine.adapters.collection import BLOCKS, Collection, bank_of
from tests.engine.adapters.conftest import Collections
from tests.engine.adapters.zoo import write_adapter


@pytest.fixture
def collection(collections: Collections) -> Collection:
    return collections("llama")


def own(collection: Collection, folder: Path, kind: str) -> Collection:
    """A collection of one adapter that a test may damage."""
    return Collection(collection.base, {kind: write_adapter(folder / "adapter", collection.base, kind)})


def test_an_adapter_takes_the_blocks_that_its_ranks_need(collection: Collection) -> None:
    """Ranks count in chunks of eight; nothing is padded to the largest."""
    bank = bank_of(collection.runner())
    size = {kind: bank.prepare(kind) * bank.sector_bytes for kind in ("rank 1", "rank 8", "rank 16", "rank 128")}
    manifest = collection.manifest("rank 8")
    elements = sum(math.prod(tensor.shape) for tensor in load_file(collection.folders["rank 8"] / WEIGHTS).values())
    assert len(manifest.targets) == 21
    assert 0 <= size["rank 8"] - 4 * elements < bank.sector_bytes
    assert size["rank 1"] == size["rank 8"]
    assert 2 * size["rank 8"] - size["rank 16"] in (0, bank.sector_bytes)
    assert abs(16 * size["rank 8"] - size["rank 128"]) < 16 * bank.sector_bytes


def test_a_removed_adapter_leaves_zeros_only(collection: Collection) -> None:
    """In bf16 a vector's numbers may be read as infinities, which attention would spread."""
    runner = collection.runner("dora", dtype="bfloat16")
    bank = bank_of(runner)
    bank.install("dora", range(BLOCKS, BLOCKS + bank.prepare("dora")))
    assert runner._cache.sectors[BLOCKS:].any()
    bank.remove("dora")
    bank.remove("dora")
    bank.install("dora", range(BLOCKS, BLOCKS + bank.prepare("dora")))
    bank.remove("dora")
    assert not runner._cache.sectors[BLOCKS : BLOCKS + 200].any()
    with pytest.raises(RuntimeError, match="adapter dora is not on the device"):
        bank.adapter("dora")


def test_what_was_forgotten_is_gone_from_the_host(collection: Collection) -> None:
    bank = bank_of(collection.runner())
    needed = bank.prepare("rank 8")
    bank.forget("rank 8")
    bank.forget("rank 8")
    assert not bank._images
    with pytest.raises(KeyError):
        bank.install("rank 8", range(needed))


def test_an_adapter_needs_all_its_blocks(collection: Collection) -> None:
    bank = bank_of(collection.runner())
    needed = bank.prepare("rank 8")
    with pytest.raises(ValueError, match=f"has {needed} sectors, not {needed - 1}"):
        bank.install("rank 8", range(needed - 1))


def test_adapters_of_one_shape_share_a_layout(collection: Collection) -> None:
    runner = collection.runner("rank 8", "rank 3", "rank 16")
    eight, three, sixteen = (bank_of(runner).adapter(kind).layout for kind in ("rank 8", "rank 3", "rank 16"))
    assert eight is three
    assert eight is not sixteen


def test_an_adapter_for_another_base_is_refused(collection: Collection) -> None:
    manifest = msgspec.structs.replace(collection.manifest("rank 8"), bases=("another",))
    other = replace(collection, manifests={"rank 8": manifest})
    with pytest.raises(AdapterError, match="is not for this base model"):
        bank_of(other.runner()).prepare("rank 8")


def test_a_version_that_cannot_be_fetched_is_refused_without_naming_the_store(collection: Collection) -> None:
    class Broken(Collection):
        def manifest(self, version: str) -> Manifest:
            raise RegistryError("s3://key@bucket is gone")

    with pytest.raises(AdapterError, match=r"^cannot be fetched from the registry; see the engine's log$"):
        bank_of(Broken(collection.base, collection.folders).runner()).prepare("rank 8")


@pytest.mark.parametrize("damage", ["truncated", "missing", "other shape", "no tensor"])
def test_a_file_that_changed_since_it_was_checked_is_refused(
    collection: Collection, tmp_path: Path, damage: str
) -> None:
    one = own(collection, tmp_path, "rank 8")
    one.manifest("rank 8")
    path = one.folders["rank 8"] / WEIGHTS
    tensors = load_file(path)
    name = next(iter(tensors))
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "missing":
        path.unlink()
    elif damage == "other shape":
        save_file(tensors | {name: tensors[name][:, :-1].contiguous()}, path)
    else:
        del tensors[name]
        save_file(tensors, path)
    with pytest.raises(AdapterError, match=f"{WEIGHTS}"):
        bank_of(one.runner()).prepare("rank 8")


def test_numbers_that_become_infinite_are_refused(collection: Collection, tmp_path: Path) -> None:
    one = own(collection, tmp_path, "rank 8")
    config = one.folders["rank 8"] / CONFIG
    fields = msgspec.json.decode(config.read_bytes())
    config.write_bytes(msgspec.json.encode(fields | {"lora_alpha": 1e41}))
    assert check_adapter(one.folders["rank 8"], one.base)
    with pytest.raises(AdapterError, match="exceed float32 once they are scaled; check lora_alpha"):
        bank_of(one.runner()).prepare("rank 8")


def test_the_dense_weight_of_a_packed_layer_is_the_loaded_one(collection: Collection) -> None:
    """DoRA's norms need it; on CPUs with bf16 instructions the layer keeps a packed form only."""
    packed, plain = (collection.runner(dtype=dtype)._model for dtype in ("bfloat16", "float32"))
    for module in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        weight, _ = packed.base(module, 1)
        expected, _ = plain.base(module, 1)
        assert torch.equal(weight, expected.bfloat16())
    assert torch.equal(packed.base("lm_head", None)[0], plain.base("lm_head", None)[0].bfloat16())
