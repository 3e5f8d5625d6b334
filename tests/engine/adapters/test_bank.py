"""The bank prepares what can be served, refuses the rest, and leaves blocks as KV may find them."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from engine.adapters.config import AdapterError
from engine.adapters.format import CONFIG, WEIGHTS, check_adapter
from engine.adapters.manifest import Manifest
from engine.adapters.storage import RegistryError
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.wire import Generate, SamplingParams
from tests.engine.adapters.collection import BLOCKS, Collection, bank_of
from tests.engine.adapters.conftest import Collections
from tests.engine.adapters.zoo import write_adapter
from tests.engine.composition import TIMEOUT, wakes


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


class Fault(TorchFunctionMode):
    """Raises at one write of a tensor's content, half of which has been written."""

    def __init__(self, write: int) -> None:
        super().__init__()
        self.writes, self._fatal = 0, write

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func is torch.Tensor.copy_:
            self.writes += 1
            if self.writes - 1 == self._fatal:
                half = len(args[0]) // 2
                args[0][:half] = args[1][:half]
                raise OSError("device")
        return func(*args, **(kwargs or {}))


def test_an_adapter_that_fails_at_any_write_leaves_zeros_only(collection: Collection) -> None:
    runner = collection.runner(dtype="bfloat16")
    bank = bank_of(runner)
    needed = bank.prepare("dora")
    where = range(BLOCKS, BLOCKS + needed)
    with Fault(-1) as counting:
        bank.install("dora", where)
    assert counting.writes == needed > 3
    bank.remove("dora")
    for write in range(needed):
        with pytest.raises(OSError, match="device"), Fault(write):
            bank.install("dora", where)
        assert runner._cache.sectors[BLOCKS:].any() or write == 0
        with pytest.raises(RuntimeError, match="adapter dora is not on the device"):
            bank.adapter("dora")
        bank.remove("dora")
        assert not runner._cache.sectors[BLOCKS:].any(), f"it failed at write {write}"
    bank.install("dora", where)  # and it can be loaded all the same
    assert bank.adapter("dora").sectors.tolist() == [*where]


def test_an_engine_clears_what_a_failed_copy_has_written_before_anything_else_gets_its_blocks(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ModelRunner(collection.base, blocks=BLOCKS, precision=Precision("bfloat16"), adapters=collection)
    bank = bank_of(runner)
    version = "d" * 64
    monkeypatch.setattr(collection, "folders", {version: collection.folders["dora"]})
    monkeypatch.setattr(collection, "manifests", {})
    sound, written = bank.install, threading.Event()

    def install(version: str, sectors: Sequence[int]) -> None:
        try:
            with Fault(len(sectors) - 1):
                sound(version, sectors)
        finally:
            assert runner._cache.sectors.any()
            written.set()

    monkeypatch.setattr(bank, "install", install)
    core = EngineCore(runner, runner.info, SchedulerConfig(BLOCKS), EngineFeatures(bank=bank))
    with contextlib.closing(core):
        core.add(Generate("a", [1, 2, 3], SamplingParams(max_tokens=1), adapter=version))
        woken = wakes(core)
        while not (outputs := core.step()):
            if core.stalled:  # to step without pause would hold up the thread that loads
                assert woken.wait(TIMEOUT)
            woken.clear()
        assert (outputs[0].error_kind, written.is_set()) == ("internal", True)
        assert not runner._cache.sectors.any()
        core.check_integrity()


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
