"""Whatever is in the files: an adapter is accepted, or refused with the format's own error."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.adapters.config import AdapterConfig, parse_config
from engine.adapters.format import CONFIG, WEIGHTS, AdapterError, check_adapter
from engine.adapters.tensors import read_header
from tests.amounts import examples

MANY = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def folder(written: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(written[0], tmp_path_factory.mktemp("fuzz") / "adapter"))


@pytest.fixture(scope="module")
def content(written: list[Path]) -> bytes:
    return (written[0] / WEIGHTS).read_bytes()


def check(folder: Path, base: Path) -> None:
    with contextlib.suppress(AdapterError):
        check_adapter(folder, base)


@MANY
@given(data=st.data())
def test_flipped_and_cut_bytes(data: st.DataObject, folder: Path, base: Path, content: bytes) -> None:
    header = 8 + int.from_bytes(content[:8], "little")
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    (folder / WEIGHTS).write_bytes(
        changed[: data.draw(st.sampled_from([len(content), len(content) - 1, header, 7, 0]))]
    )
    check(folder, base)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "F16", "F64", "BOOL", "F4", "", 5]),
        "shape": st.lists(st.integers(-1, 2**64), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 2**64), min_size=1, max_size=3) | JSON,
        "more": JSON,
    },
)


@MANY
@given(
    header=st.dictionaries(
        st.sampled_from(
            [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight" for side in "AB"]
            + ["", "__metadata__"]
        ),
        ENTRY | JSON,
        max_size=4,
    ),
    length=st.none() | st.integers(0, 2**64 - 1),
    tail=st.binary(max_size=64),
)
def test_any_header(header: Any, length: int | None, tail: bytes, folder: Path, base: Path) -> None:
    encoded = json.dumps(header).encode()
    size = len(encoded) if length is None else length
    (folder / WEIGHTS).write_bytes(size.to_bytes(8, "little") + encoded + tail)
    check(folder, base)
    with contextlib.suppress(AdapterError):
        tensors = read_header(folder / WEIGHTS, max_bytes=1 << 20)
        assert sum(tensor.end - tensor.begin for tensor in tensors.values()) == len(tail)


@MANY
@given(
    config=st.dictionaries(st.sampled_from([*AdapterConfig.__struct_fields__, "modules_to_save", "task_type"]), JSON)
    | st.fixed_dictionaries(
        {},
        optional={
            "r": st.integers(-3, 300),
            "target_modules": st.text(alphabet="q_proj.*+?()[]{}|\\0^$", max_size=12),
            "rank_pattern": st.dictionaries(st.text(alphabet="qk_.*+?()|\\i:<P>", max_size=10), st.integers(0, 9)),
            "use_dora": st.booleans(),
            "use_rslora": st.booleans(),
            "layers_to_transform": st.integers(-2, 4) | st.lists(st.integers(-2, 4)),
            "layers_pattern": st.text(alphabet="layers.*", max_size=8),
            "bias": st.sampled_from(["none", "all", "lora_only"]),
        },
    )
)
def test_any_config(config: dict[str, Any], folder: Path, base: Path, content: bytes) -> None:
    (folder / WEIGHTS).write_bytes(content)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", **config}))
    check(folder, base)


@MANY
@given(st.binary(max_size=200))
def test_any_bytes_as_config(content: bytes) -> None:
    with contextlib.suppress(AdapterError):
        parse_config(content)


def test_a_header_that_names_a_tensor_twice_is_refused(folder: Path) -> None:
    """JSON readers differ in which of the two they take."""
    entries = [f'"a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,8]}}' for shape in ("[1,2]", "[2,1]")]
    header = f"{{{','.join(entries)}}}".encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(AdapterError, match="names a tensor twice"):
        read_header(folder / WEIGHTS, max_bytes=1000)


@pytest.mark.parametrize("begin", [1, 4])
def test_gaps_and_overlaps_are_refused(folder: Path, begin: int) -> None:
    entries = {
        "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [begin + 1, begin + 5]},
    }
    header = json.dumps(entries).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(begin + 5))
    with pytest.raises(AdapterError, match="valid safetensors"):
        read_header(folder / WEIGHTS, max_bytes=1000)
