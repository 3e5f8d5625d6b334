"""docs/composition.md lists what is tested, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from engine.cache.memory import KVDtype
from kernels import Quantization
from tests.engine.composition import FEATURES, FEWER_BITS, FEWER_BITS_OF_BOTH, LARGER, LARGER_IN_FEWER_BITS, PAIRS
from tests.engine.composition_page import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "composition.md"


def test_the_page_is_the_one_that_is_generated() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: make docs"


def test_no_pair_is_left_out() -> None:
    assert {frozenset(pair) for pair in PAIRS} == {frozenset((a, b)) for a in FEATURES for b in FEATURES if a != b}


def test_every_feature_is_part_of_several_larger_combinations() -> None:
    assert all(sum(feature in combination for combination in LARGER) > 3 for feature in FEATURES)


def test_every_type_of_weights_and_of_keys_and_values_is_there() -> None:
    assert {numbers.quantize for numbers in FEWER_BITS.values()} == {None, *get_args(Quantization)}
    assert {numbers.kv_dtype for numbers in FEWER_BITS.values()} == {*get_args(KVDtype)} - {"fp32"}
    assert {bits for bits, _ in LARGER_IN_FEWER_BITS} == set(FEWER_BITS_OF_BOTH)
