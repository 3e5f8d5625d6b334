"""A GGUF file says the same of a model as the folder that it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.opening import open_checkpoint
from engine.model.rope import inverse_frequencies
from tests.engine.checkpoint.gguf.miniature import change_keys, write_gguf
from tests.engine.checkpoints import ROPE_SCALINGS
from tests.engine.conftest import Checkpoint

SERVED = ["llama", "llama-tied", "llama-bias", "qwen2", "qwen3", "mixtral", "qwen3-moe", "granite", "gemma3", "phi3"]
WINDOWED = {"gemma3", "phi3"}
"""Those whose files say windows."""


@pytest.mark.parametrize("architecture", SERVED)
def test_the_config_is_that_of_the_folder(checkpoint: Checkpoint, tmp_path: Path, architecture: str) -> None:
    # The scale of Gemma's scores has no key: it follows from the sizes.
    directory = checkpoint(architecture, **({"query_pre_attn_scalar": 32} if architecture == "gemma3" else {}))
    ours = open_checkpoint(write_gguf(tmp_path / "a.gguf", directory)).config
    theirs = ModelConfig.from_directory(directory)
    assert ours == replace(
        theirs,
        windows=theirs.windows if architecture in WINDOWED else (None,) * theirs.layers,
        norm_offset=0.0,
        eos_token_ids=(2, 6),  # "<|end|>" ends a text too
        norm_eps=pytest.approx(theirs.norm_eps),
        embedding_scale=pytest.approx(theirs.embedding_scale),
        score_scale=pytest.approx(theirs.score_scale),
        logits_scale=pytest.approx(theirs.logits_scale),
    )


@pytest.mark.parametrize("architecture", SERVED)
def test_the_tensors_are_those_of_the_folder(checkpoint: Checkpoint, tmp_path: Path, architecture: str) -> None:
    directory = checkpoint(architecture)
    stored = {each.name: each for each in open_checkpoint(write_gguf(tmp_path / "a.gguf", directory)).tensors()}
    theirs = load_file(directory / "model.safetensors")
    offset = ModelConfig.from_directory(directory).norm_offset
    assert stored.keys() == theirs.keys()
    for name, tensor in theirs.items():
        ours = stored[name]
        if "norm" in name:
            tensor = tensor + offset
        assert (ours.type, ours.shape) == ("f32", tuple(tensor.shape))
        assert torch.equal(torch.from_numpy(ours.data.view(np.float32).reshape(ours.shape).copy()), tensor), name


@pytest.mark.parametrize(
    "kind", [Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4]
)
def test_rows_keep_their_blocks_when_their_order_changes(checkpoint: Checkpoint, tmp_path: Path, kind: Type) -> None:
    directory = checkpoint("llama")
    path = write_gguf(tmp_path / "a.gguf", directory, type_of=lambda name: kind if "attn" in name else Type.F32)
    stored = {each.name: each for each in open_checkpoint(path).tensors()}
    name = "model.layers.1.self_attn.q_proj.weight"
    expected = gguf.quantize(load_file(directory / "model.safetensors")[name].numpy(), kind)
    assert stored[name].type == kind.name.lower()
    assert np.array_equal(stored[name].data, expected.view(np.uint8))


@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_scalings_that_have_keys_are_read(checkpoint: Checkpoint, tmp_path: Path, scaling: str) -> None:
    parameters = ROPE_SCALINGS[scaling] | {"rope_theta": 10_000.0}
    directory = checkpoint("llama", rope_parameters=parameters)
    ours = open_checkpoint(write_gguf(tmp_path / "a.gguf", directory)).config
    theirs = ModelConfig.from_directory(directory)
    assert (ours.rope, ours.context) == (theirs.rope, theirs.context)


def test_frequencies_are_divided_as_the_file_says(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The form in which Llama 3.1's scaling is stored."""
    directory = checkpoint("llama", rope_parameters=ROPE_SCALINGS["llama3"])
    theirs = ModelConfig.from_directory(directory)
    expected = inverse_frequencies(theirs, theirs.rope)
    unscaled = ModelConfig.from_directory(checkpoint("llama"))
    plain = inverse_frequencies(unscaled, unscaled.rope)
    divisors = (plain / expected).numpy()
    path = write_gguf(
        tmp_path / "a.gguf", directory, change=lambda writer: writer.add_tensor("rope_freqs.weight", divisors)
    )
    ours = open_checkpoint(path).config
    assert torch.allclose(inverse_frequencies(ours, ours.rope), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        (["rope_factors_long"], None, "'rope_factors_long.weight' needs its counterpart"),
        (["rope_factors_long", "rope_factors_short"], "yarn", "'yarn', which cannot go with rope_factors_long.weight"),
        (["rope_freqs", "rope_factors_short"], None, "'rope_factors_short.weight' needs its counterpart"),
        (["rope_freqs"], "longrope", "'longrope', which cannot go with rope_freqs.weight"),
    ],
)
def test_factors_of_frequencies_have_to_fit_each_other(
    checkpoint: Checkpoint, tmp_path: Path, names: list[str], kind: str | None, message: str
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        change_keys(writer, {"phi3.rope.scaling.type": kind})
        for name in names:
            writer.add_tensor(f"{name}.weight", np.ones(6, np.float32))

    path = write_gguf(tmp_path / "a.gguf", checkpoint("phi3"), change=change)
    with pytest.raises(CheckpointError, match=message):
        assert open_checkpoint(path).config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama.attention.temperature_scale": 0.1}, r"llama\.attention\.temperature_scale is not supported"),
        ({"llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor is not supported"),
        ({"llama.block_count": 2000}, r"llama\.block_count is 2000; the most is 1024"),
        ({"llama.attention.head_count": 0}, r"llama\.attention\.head_count is 0"),
        ({"llama.attention.key_length": 0, "llama.attention.value_length": 0}, "key_length is 0; at least 1"),
        ({"llama.attention.head_count": "four"}, r"llama\.attention\.head_count is not an integer"),
        ({"llama.attention.head_count_kv": [2, 1, 2]}, "head_count_kv differs between layers"),
        ({"llama.attention.value_length": 8}, "value_length differs from key_length"),
        ({"llama.rope.dimension_count": 8}, "partial_rotary_factor 0.5 is not supported"),
        ({"llama.context_length": None}, r"llama\.context_length is missing"),
        ({"llama.embedding_length": 0}, "hidden_size"),
        ({"llama.rope.scaling.type": "su"}, "rope_type 'su' is not supported"),
        ({"general.architecture": "bert"}, "general.architecture 'bert' is not supported; these are: llama"),
        ({"general.architecture": "gpt-oss"}, "'gpt-oss' is not supported: its attention has sinks"),
        ({"general.architecture": "clip"}, "vision part"),
        ({"general.type": "mmproj"}, "vision part"),
        ({"general.type": "adapter"}, "name a file with a whole model"),
        ({"tokenizer.ggml.eos_token_id": 320}, "eos_token_id is 320; the vocabulary has 320 tokens"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type has 1 entries where 320 are expected"),
    ],
)
def test_what_cannot_be_served_is_named(
    checkpoint: Checkpoint, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write_gguf(tmp_path / "a.gguf", checkpoint("llama"), change=lambda writer: change_keys(writer, change))
    with pytest.raises(CheckpointError, match=message) as found:
        assert open_checkpoint(path).config
    assert str(found.value).startswith("a.gguf: ")


def test_values_that_switch_something_off_are_no_obstacle(checkpoint: Checkpoint, tmp_path: Path) -> None:
    keys = {"llama.attention.temperature_scale": 0.0, "llama.attention.causal": True, "llama.expert_count": 0}
    path = write_gguf(tmp_path / "a.gguf", checkpoint("llama"), change=lambda writer: change_keys(writer, keys))
    assert open_checkpoint(path).config.architecture == "LlamaForCausalLM"


def test_split_files_are_one_model(checkpoint: Checkpoint, tmp_path: Path) -> None:
    directory = checkpoint("qwen2")
    whole = open_checkpoint(write_gguf(tmp_path / "whole.gguf", directory))
    first = split(whole.path, tmp_path, parts=3)
    parts = open_checkpoint(first)
    assert parts.config == whole.config
    ours, theirs = ({each.name: each for each in one.tensors()} for one in (parts, whole))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name].data, theirs[name].data) for name in theirs)
    assert parts.revision != whole.revision
    assert parts.weight_bytes > whole.weight_bytes


def test_a_part_alone_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    first = split(write_gguf(tmp_path / "whole.gguf", checkpoint("qwen2")), tmp_path, parts=2)
    second = first.with_name("m-00002-of-00002.gguf")
    with pytest.raises(CheckpointError, match="name the first one, m-00001-of-00002"):
        open_checkpoint(second)
    second.unlink()
    with pytest.raises(CheckpointError, match="m-00002-of-00002"):
        open_checkpoint(first)
    with pytest.raises(CheckpointError, match="all have to keep their names"):
        open_checkpoint(first.rename(tmp_path / "renamed.gguf"))


def test_the_revision_is_that_of_the_content(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", checkpoint("llama"))
    before = open_checkpoint(path).revision
    assert open_checkpoint(write_gguf(tmp_path / "b.gguf", checkpoint("llama"))).revision == before
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # inside the last tensor's first 4 KiB
    path.write_bytes(content)
    assert open_checkpoint(path).revision != before
    assert open_checkpoint(write_gguf(tmp_path / "c.gguf", checkpoint("llama"), template="x")).revision != before


@pytest.mark.parametrize(("kind", "scale"), [(Type.Q8_0, np.float16(np.inf).tobytes()), (Type.MXFP4, b"\xff")])
def test_scales_that_are_no_numbers_are_refused(
    checkpoint: Checkpoint, tmp_path: Path, kind: Type, scale: bytes
) -> None:
    path = write_gguf(
        tmp_path / "a.gguf", checkpoint("llama"), type_of=lambda name: kind if "attn_v" in name else Type.F32
    )
    place = gguf.GGUFReader(path).tensors
    offset = next(tensor.data_offset for tensor in place if tensor.name == "blk.0.attn_v.weight")
    content = bytearray(path.read_bytes())
    content[offset : offset + len(scale)] = scale
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.attn_v\.weight' has scales that are infinite"):
        list(open_checkpoint(path).tensors())


def split(path: Path, folder: Path, *, parts: int) -> Path:
    """Write a file's tensors into several, the metadata into the first, and return that."""
    reader = gguf.GGUFReader(path)
    for number in range(parts):
        part = folder / f"m-{number + 1:05}-of-{parts:05}.gguf"
        writer = gguf.GGUFWriter(part, str(reader.fields["general.architecture"].contents()))
        if number == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    kind, *inner = field.types
                    writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::parts]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder / f"m-00001-of-{parts:05}.gguf"
