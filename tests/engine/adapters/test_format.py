"""Every kind of adapter that peft writes and we support is understood whole; all others are refused by name."""

from __future__ import annotations

import pytest
import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file

from engine.adapters.format import WEIGHTS, check_adapter
from tests.amounts import some_of
from tests.engine.adapters.conftest import Collections
from tests.engine.adapters.zoo import ZOO, load_peft
from tests.engine.checkpoints import random_prompt


# By default a part: `test_lora_oracle.py` has answers with all of them, for which the manifest must be right.
@pytest.mark.parametrize("kind", some_of([(kind,) for kind in ZOO], 4))
def test_the_manifest_has_what_peft_loads(kind: str, collections: Collections) -> None:
    collection = collections(ZOO[kind].architecture)
    base, folder = collection.base, collection.folders[kind]
    manifest = check_adapter(folder, base)
    tensors = load_file(folder / WEIGHTS)
    named = {key for target in manifest.targets for key in (*target.a, *target.b, target.b_bias, target.magnitude)}
    named |= {bias.key for bias in manifest.base_biases}
    assert {key for key in tensors if ".base_layer.weight" not in key} == named - {None}

    layers = {name: layer for name, layer in load_peft(base, folder).named_modules() if isinstance(layer, LoraLayer)}
    merged = sum(target.module == "experts.up_proj" for target in manifest.targets)
    assert len(manifest.targets) - merged == len(layers)
    for target in manifest.targets:
        name = target.a[0].partition(".lora_")[0].replace("block_sparse_moe", "mlp")
        if len(target.a) > 1:
            name = name.partition(".experts.")[0] + ".experts"
            if target.module != "experts.down_proj" and f"{name}.base_layer" in layers:
                name += ".base_layer"
        assert target.scaling == pytest.approx(layers[name].scaling["default"])
        merged_rank = 2 if target.module in ("experts.gate_proj", "experts.up_proj") else 1
        assert target.rank * merged_rank == layers[name].r["default"]


@pytest.mark.parametrize("kind", ["rank 1", "dora", "embeddings", "all biases", "listed experts", "tied adapters"])
def test_the_zoo_changes_the_model(kind: str, collections: Collections) -> None:
    collection, tokens = collections(ZOO[kind].architecture), random_prompt(20)
    assert not torch.allclose(collection.logits(kind, tokens), collection.logits(None, tokens), atol=0.01)
