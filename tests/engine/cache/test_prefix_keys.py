"""The names of prefix blocks: one formula for engine and gateway."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.prefix_keys import (
    BLOCK_SIZE,
    block_hash,
    block_numbers,
    chain_root,
    pack_numbers,
    root_hash,
    unpack_numbers,
)
from engine.wire import RopeRegimes
from tests.engine.ledger_runner import model_info

ROOT = root_hash("r", None, "float32", b"")


@given(st.lists(st.integers(0, 2**32 - 1), max_size=100))
def test_numbers_are_the_beginnings_of_the_engine_s_keys(tokens: list[int]) -> None:
    keys, parent = [], ROOT
    for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = block_hash(parent, tokens[start : start + BLOCK_SIZE])
        keys.append(parent)
    assert block_numbers(ROOT, tokens) == list(unpack_numbers(pack_numbers(keys)))


def test_a_root_names_model_adapter_salt_and_regime() -> None:
    plain, long = model_info(), model_info(rope_regimes=RopeRegimes(40))
    each = model_info(rope_regimes=RopeRegimes(40, each_length=True))
    assert chain_root(plain, 10, None, b"") == root_hash("r1", None, "float32", b"")
    roots = [
        chain_root(plain, 10, None, b""),
        chain_root(plain, 10, "v", b""),
        chain_root(plain, 10, None, b"salt"),
        chain_root(model_info(revision="r2"), 10, None, b""),
        chain_root(long, 41, None, b""),
        chain_root(each, 41, None, b""),
        chain_root(each, 42, None, b""),
    ]
    assert len(set(roots)) == len(roots)
    assert chain_root(long, 41, None, b"") == chain_root(long, 1000, None, b"")
    assert chain_root(each, 40, None, b"") == roots[0]


def test_numbers_that_are_cut_off_are_refused() -> None:
    with pytest.raises(ValueError, match="cut off"):
        unpack_numbers(b"1234567")
