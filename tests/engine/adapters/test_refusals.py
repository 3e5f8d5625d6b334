"""What is not supported is refused by its name, with a remedy; nothing is ever left out in silence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.adapters.config import _IGNORED, _REFUSED, AdapterConfig
from engine.adapters.format import CONFIG, WEIGHTS, AdapterError, check_adapter
from tests.engine.adapters.zoo import Kind, write_adapter
from tests.engine.checkpoints import write_checkpoint
from tests.engine.conftest import Checkpoint

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def edit_config(folder: Path, **changes: Any) -> None:
    """Set keys of the config; `...` removes one."""
    config = json.loads((folder / CONFIG).read_text())
    config |= changes
    (folder / CONFIG).write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def refusal(folder: Path, base: Path) -> str:
    with pytest.raises(AdapterError) as caught:
        check_adapter(folder, base)
    return str(caught.value)


def test_every_key_that_peft_writes_is_known() -> None:
    """A new version of peft may add some: each has to be looked at."""
    known = {*AdapterConfig.__struct_fields__, *_IGNORED, *_REFUSED}
    assert set(peft.LoraConfig.__dataclass_fields__) <= known


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("alora_invocation_tokens", [1, 2], "without invocation tokens"),
        ("arrow_config", {"top_k": 3}, "one by one"),
        ("fan_in_fan_out", True, "save it as false"),
        ("kasa_config", {"beta": 1.0}, "merge the adapter"),
        ("layer_replication", [[0, 2]], "a model of its own"),
        ("megatron_config", {"x": 1}, "unsharded"),
        ("modules_to_save", ["lm_head"], "embed_tokens and lm_head can be targets"),
        ("monteclora_config", {"num_samples": 8}, "without sampling"),
        ("trainable_token_indices", [3], "target embed_tokens"),
        ("use_bdlora", {"nblocks": 2}, "full matrices"),
        ("use_qalora", True, "pooled inputs"),
        ("velora_config", {"num_groups": 2}, "set it to null"),
        ("from_the_future", 7, "remove it"),
    ],
)
def test_a_key_that_is_not_supported_is_named(adapter: Path, base: Path, key: str, value: object, remedy: str) -> None:
    edit_config(adapter, **{key: value})
    said = refusal(adapter, base)
    assert key in said
    assert remedy in said


def test_every_refused_key_has_a_test() -> None:
    marks = test_a_key_that_is_not_supported_is_named.pytestmark  # type: ignore[attr-defined]
    assert _REFUSED.keys() < {key for key, *_ in marks[0].args[1]}


@pytest.mark.parametrize("how", ["pissa", "pissa_niter_4", "olora", "corda", "lora_ga", "loftq", "OLoRA"])
def test_an_initialisation_that_changed_the_base_is_refused(adapter: Path, base: Path, how: str) -> None:
    edit_config(adapter, init_lora_weights=how)
    said = refusal(adapter, base)
    assert how in said
    assert "path_initial_model_for_weight_conversion" in said


@pytest.mark.parametrize(
    "harmless",
    [
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": False},
        {"task_type": "SEQ_CLS", "inference_mode": False, "revision": "main"},
        {"corda_config": {"corda_method": "kpm"}, "loftq_config": {"loftq_bits": 4}, "lora_dropout": 0.5},
        {"from_the_future": None, "another": False, "and": []},
        {"modules_to_save": None, "use_qalora": False, "lora_bias": ..., "use_dora": ...},
        {"rank_pattern": None, "alpha_pattern": None, "ensure_weight_tying": True},
        {"lora_alpha": 12.5},
    ],
    ids=str,
)
def test_a_key_without_effect_is_accepted(adapter: Path, base: Path, harmless: dict[str, Any]) -> None:
    edit_config(adapter, **harmless)
    assert len(check_adapter(adapter, base).targets) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"peft_type": ...}, "peft_type None"),
        ({"r": 0}, "r is 0"),
        ({"r": 257}, "ranks from 1 to 256"),
        ({"r": "8"}, r"r`"),
        ({"rank_pattern": {"q_proj": 1000}}, r"rank_pattern\['q_proj'\] is 1000"),
        ({"rank_pattern": {"q_proj": 4}}, r"q_proj.lora_A.weight' has shape \[8, 64\].*imply \[4, 64\]"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"bias": "some"}, "bias"),
        ({"use_dora": True, "lora_bias": True}, "lora_bias.*use_dora"),
        ({"target_modules": None}, "target_modules is missing"),
        ({"target_modules": []}, "name nothing"),
        ({"target_modules": ["wq"]}, r"\['wq'\].*name nothing that this LlamaForCausalLM has"),
        ({"target_modules": 5}, "target_modules"),
        (
            {"target_modules": ".*q_proj", "layers_to_transform": [0]},
            "layers_to_transform.*target_modules to be a list",
        ),
        ({"layers_pattern": "layers"}, "layers_pattern needs layers_to_transform"),
        ({"exclude_modules": "("}, "exclude_modules.*not a regular expression"),
        ({"alpha_pattern": {"*": 3}}, "alpha_pattern.*not a regular expression"),
        ({"rank_pattern": {"(?i)q_proj": 8}}, "rank_pattern.*not a regular expression"),
        ({"layers_to_transform": [0], "layers_pattern": "(?P<idx>layers)"}, "layers_pattern.*not a regular expression"),
        ({"target_parameters": ["q_proj.weight"]}, "target_modules and target_parameters both name"),
        ({"target_parameters": ["embed_tokens.weight"]}, "target_parameters names 'model.embed_tokens'"),
        ({"target_modules": ["embed_tokens"], "lora_bias": True}, "lora_bias.*embed_tokens"),
        ({"target_modules": [], "target_parameters": ["q_proj.weight"], "use_dora": True}, "use_dora.*q_proj.weight"),
        ({"use_dora": True}, "lora_magnitude_vector' and 2 more is missing"),
        ({"lora_bias": True}, r"lora_B.bias' and 2 more is missing"),
        ({"target_modules": ["q_proj", "v_proj"]}, r"v_proj.lora_A.weight' and 5 more is missing"),
        ({"layers_to_transform": [0, 1]}, r"layers.2.self_attn.q_proj.lora_A.weight' is on a module"),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_named(adapter: Path, base: Path, changes: dict[str, Any], words: str) -> None:
    edit_config(adapter, **changes)
    assert re.search(words, refusal(adapter, base))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"r": 1e999}', b"\xff", b"[" * 100_000, b'{"peft_type": "LORA", "r": NaN}']
)
def test_a_config_that_is_no_config_is_refused(adapter: Path, base: Path, content: bytes) -> None:
    (adapter / CONFIG).write_bytes(content)
    assert CONFIG in refusal(adapter, base)


@pytest.mark.parametrize(
    "expression",
    ["(a+)+$", "(a|a)*b", "(.*)*", ".*.*.*.*.*x", "((ab)?c*){5}", "a{2,}" * 6, "x" * 2000, "(?P<n>a)?(?(n)b*|c)"],
)
@pytest.mark.parametrize("key", ["target_modules", "rank_pattern"])
def test_an_expression_that_may_take_for_ever_is_refused(adapter: Path, base: Path, key: str, expression: str) -> None:
    edit_config(adapter, **{key: expression if key == "target_modules" else {expression: 4}})
    said = refusal(adapter, base)
    assert key in said
    assert "very long" in said or "shorten" in said


@pytest.mark.parametrize(
    "expression",
    [
        "q_proj",
        r"^model\.layers\.\d+\.self_attn\..*q_proj",
        r".*\.(q_proj|w1)",
        r"model\.layers\.[012]\.(?:self_)?attn.q_proj",
        r"(?:.*?(?:text|model).*?(?:self_attn|mlp).*?(?:q_proj|w_proj))|(?:model\.layers\.[\d]{1,}\.q_proj)",
    ],
)
@pytest.mark.parametrize("key", ["target_modules", "rank_pattern"])
def test_the_usual_expressions_are_accepted(adapter: Path, base: Path, key: str, expression: str) -> None:
    if key == "target_modules":
        edit_config(adapter, target_modules=expression if expression != "q_proj" else ".*q_proj")
    else:
        edit_config(adapter, rank_pattern={expression: 8})
    assert len(check_adapter(adapter, base).targets) == 3


def test_tables_and_lists_have_a_limit(adapter: Path, base: Path) -> None:
    edit_config(adapter, rank_pattern={f"x{number}": 4 for number in range(9000)})
    assert "rank_pattern has 9000 entries" in refusal(adapter, base)
    edit_config(adapter, rank_pattern={f"x{number}.*": 4 for number in range(65)})
    assert "more than 64 expressions have repetitions" in refusal(adapter, base)
    edit_config(adapter, rank_pattern={}, layers_to_transform=list(range(9000)))
    assert "layers_to_transform has 9000 entries" in refusal(adapter, base)
    edit_config(adapter, layers_to_transform=None, target_parameters=["x"] * 9000)
    assert "target_parameters has 9000 entries" in refusal(adapter, base)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(f"{Q}.lora_B.weight"), "q_proj.lora_B.weight' is missing"),
        (lambda t: t.pop(f"{Q}.lora_A.weight"), "q_proj.lora_A.weight' is missing"),
        (lambda t: t.update({f"{Q}.lora_A.weight": torch.zeros(8, 65)}), r"shape \[8, 65\].*another base model"),
        (lambda t: t.update({f"{Q}.lora_A.weight": torch.zeros(0, 64)}), r"shape \[0, 64\]"),
        (lambda t: t.update({f"{Q}.lora_A.weight": torch.zeros(8, 64, 1)}), r"shape \[8, 64, 1\]"),
        (lambda t: t.update({f"{Q}.lora_A.weight": torch.zeros(8, 64, dtype=torch.float64)}), "stored as F64"),
        (lambda t: t.update({f"{Q}.lora_A.weight": torch.zeros(8, 64, dtype=torch.int8)}), "stored as I8"),
        (lambda t: t[f"{Q}.lora_A.weight"].fill_(float("nan")), "infinities or NaNs"),
        (lambda t: t[f"{Q}.lora_B.weight"][3, 2:3].fill_(float("inf")), "q_proj.lora_B.weight' has infinities"),
        (lambda t: t.update({f"{Q}.lora_magnitude_vector": torch.zeros(64)}), "lora_magnitude_vector'"),
        (lambda t: t.update({f"{Q}.lora_A.default.weight": torch.zeros(8, 64)}), "lora_A.default.weight'"),
        (lambda t: t.update({f"{Q}.bias": torch.zeros(64)}), "bias in adapter_config.json leaves out"),
        (lambda t: t.update({f"{Q}.weight": torch.zeros(64, 64)}), "only LoRA's own tensors"),
        (lambda t: t.update({"base_model.model.model.norm.weight": torch.zeros(64)}), r"model.norm.weight' is not"),
        (lambda t: t.update({"q_proj.lora_A.weight": torch.zeros(8, 64)}), "does not begin with 'base_model.model.'"),
        (
            lambda t: t.update({"base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight": torch.zeros(8, 64)}),
            "layers.3.*the base model does not have",
        ),
        (
            lambda t: t.update(
                {"base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta": torch.zeros(2, 64)}
            ),
            "trainable_tokens_delta' is not supported",
        ),
    ],
)
def test_a_tensor_that_does_not_belong_is_named(
    adapter: Path, base: Path, change: Callable[[dict[str, torch.Tensor]], object], words: str
) -> None:
    edit_tensors(adapter, change)
    assert re.search(words, refusal(adapter, base))


def test_pickles_are_never_read(adapter: Path, base: Path) -> None:
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    said = refusal(adapter, base)
    assert "pickle" in said
    assert "safe_serialization=True" in said


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_missing_file_is_named(adapter: Path, base: Path, name: str) -> None:
    (adapter / name).unlink()
    assert f"{name} is missing" in refusal(adapter, base)


def test_too_large_files_are_refused_unread(adapter: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.adapters.format.MAX_WEIGHTS_BYTES", 1000)
    assert "the most is 1,000" in refusal(adapter, base)
    with (adapter / CONFIG).open("ab") as file:
        file.truncate(5 * 1024 * 1024)
    assert f"{CONFIG} is larger than" in refusal(adapter, base)


class TestEmbeddings:
    """peft saves embeddings along with LoRA on them; they are not loaded, so they must be the base's."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
    def test_copies_may_be_rounded(self, tmp_path: Path, dtype: torch.dtype, stored: torch.dtype) -> None:
        base = write_checkpoint(tmp_path / "base", dtype=stored)
        kind = Kind("llama", {"r": 4, "target_modules": ["embed_tokens", "lm_head"]}, dtype=dtype)
        folder = write_adapter(tmp_path / "adapter", base, kind)
        assert len(check_adapter(folder, base).targets) == 2

    @pytest.mark.parametrize("module", ["model.embed_tokens", "lm_head"])
    def test_copies_of_other_values_are_refused(self, base: Path, tmp_path: Path, module: str) -> None:
        kind = Kind("llama", {"r": 4, "target_modules": ["embed_tokens", "lm_head"]})
        folder = write_adapter(tmp_path / "adapter", base, kind)
        key = f"base_model.model.{module}.base_layer.weight"
        edit_tensors(folder, lambda tensors: tensors[key][5].add_(0.01))
        said = refusal(folder, base)
        assert key in said
        assert "save_embedding_layers=False" in said

    def test_a_resized_vocabulary_is_refused(self, adapter: Path, base: Path) -> None:
        key = "base_model.model.model.embed_tokens.weight"
        edit_tensors(adapter, lambda tensors: tensors.update({key: torch.zeros(321, 64)}))
        assert key in refusal(adapter, base)

    def test_tied_adapters_must_be_the_same(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        base = checkpoint("llama-tied")
        folder = write_adapter(tmp_path / "adapter", base, "tied adapters")
        edit_tensors(folder, lambda tensors: tensors["base_model.model.lm_head.lora_A.weight"].add_(1))
        said = refusal(folder, base)
        assert "ensure_weight_tying" in said
        assert "lm_head.lora_A.weight" in said


class TestExperts:
    """A mixture of experts."""

    @pytest.fixture
    def base(self, checkpoint: Checkpoint) -> Path:
        return checkpoint("mixtral")

    def refused(self, base: Path, folder: Path, kind: str, **changes: Any) -> str:
        write_adapter(folder, base, kind)
        edit_config(folder, **changes)
        return refusal(folder, base)

    def test_an_expression_is_ambiguous(self, base: Path, tmp_path: Path) -> None:
        said = self.refused(base, tmp_path / "a", "mixtral attention", target_modules=".*_proj")
        assert "target_modules is an expression" in said

    def test_one_of_two_merged_matrices_is_refused(self, base: Path, tmp_path: Path) -> None:
        said = self.refused(base, tmp_path / "a", "listed experts", target_modules=["w1", "w2"])
        assert "one of w1 and w3" in said

    def test_dora_on_experts_is_refused(self, base: Path, tmp_path: Path) -> None:
        assert "use_dora" in self.refused(base, tmp_path / "a", "experts' gates", use_dora=True)

    def test_rank_stabilised_scaling_of_listed_experts_is_refused(self, base: Path, tmp_path: Path) -> None:
        """peft would scale them by another factor than they were trained with."""
        assert "use_rslora" in self.refused(base, tmp_path / "a", "listed experts", use_rslora=True)

    def test_a_merged_rank_above_the_limit_is_refused(self, base: Path, tmp_path: Path) -> None:
        said = self.refused(base, tmp_path / "a", "listed experts", r=200)
        assert "experts" in said

    def test_a_missing_expert_is_named(self, base: Path, tmp_path: Path) -> None:
        folder = write_adapter(tmp_path / "a", base, "listed experts")
        key = "base_model.model.model.layers.1.block_sparse_moe.experts.2.w3.lora_B.weight"
        edit_tensors(folder, lambda tensors: tensors.pop(key))
        assert key in refusal(folder, base)

    def test_experts_need_a_mixture(self, checkpoint: Checkpoint, base: Path, tmp_path: Path) -> None:
        folder = write_adapter(tmp_path / "a", base, "experts")
        assert "experts" in refusal(folder, checkpoint("mistral", head_dim=16))


def test_files_that_have_nothing_to_do_with_it_are_left_alone(adapter: Path, base: Path) -> None:
    (adapter / "README.md").write_text("hello")
    shutil.copy(adapter / CONFIG, adapter / "tokenizer_config.json")
    assert check_adapter(adapter, base).max_rank == 8
