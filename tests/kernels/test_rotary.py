"""Rotary embedding with the writing of keys and values, by every library and in plain torch, against fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import LayerCache, library, reference
from kernels.ops.attention import native_cache

BLOCK = 16
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
Arguments = tuple[Any, ...]
every_shape = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def arguments(tokens: int, dim: int, dtype: torch.dtype, seed: int = 0, rotated: int | None = None) -> Arguments:
    """Queries, keys and values as strided views of a packed projection, and caches without a number in them."""
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randn(tokens, 7, dim, generator=generator).to(dtype)
    angles = torch.randn(50, (dim if rotated is None else rotated) // 2, generator=generator)
    caches = [torch.full((4, 2, BLOCK, dim), torch.nan, dtype=dtype).transpose(1, 2) for _ in range(2)]
    return (
        *heads.split([3, 2, 2], dim=1),
        torch.cat((angles.cos(), angles.sin()), -1),
        torch.randint(50, (tokens,), generator=generator),
        LayerCache(caches[0], caches[1]),
        torch.randperm(4 * BLOCK, generator=generator)[:tokens],
    )


def turned(heads: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """As complex numbers, dimensions i and i + R/2 of the first R are multiplied by exp(i angle)."""
    turning, rest = heads.double().tensor_split((table.shape[1],), -1)
    (real, imaginary), (cos, sin) = turning.chunk(2, -1), table.double().unsqueeze(1).chunk(2, -1)
    product = torch.complex(real, imaginary) * torch.complex(cos, sin)
    return torch.cat((product.real, product.imag, rest), -1)


def check(run: object, given: Arguments) -> None:
    query, key, value, table, rotations, cache, slots = given
    tolerance = TOLERANCE[query.dtype]
    expected_query, expected_key = (turned(x, table[rotations]) for x in (query, key))
    expected_value = value.clone()
    assert callable(run)
    run(*given)
    torch.testing.assert_close(query.double(), expected_query, rtol=tolerance, atol=tolerance)
    rows = [stored[slots // BLOCK, slots % BLOCK] for stored in (cache.keys, cache.values)]
    torch.testing.assert_close(rows[0].double(), expected_key, rtol=tolerance, atol=tolerance)
    assert torch.equal(rows[1], expected_value)
    for stored in (cache.keys, cache.values):
        assert int((~stored.isnan()).any(-1).any(-1).sum()) == len(slots)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_shape
@given(tokens=st.integers(0, 20), halves=st.tuples(st.integers(1, 66), st.integers(1, 66)), seed=st.integers(0, 99))
def test_queries_and_keys_turn_and_only_the_slots_are_written(
    built: str, dtype: torch.dtype, tokens: int, halves: tuple[int, int], seed: int
) -> None:
    rotated, dim = sorted(2 * half for half in halves)
    for turned_dimensions in (rotated, dim):
        check(kernels.rope_and_store, arguments(tokens, dim, dtype, seed, turned_dimensions))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "rotated"), [(2, 2), (20, 20), (64, 64), (64, 48), (20, 2)])
def test_plain_torch_does_the_same(dtype: torch.dtype, dim: int, rotated: int) -> None:
    check(reference.rope_and_store, arguments(9, dim, dtype, rotated=rotated))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(("dim", "rotated"), [(20, 20), (48, 48), (128, 128), (256, 256), (20, 6), (128, 96)])
def test_narrower_caches_get_what_the_specification_says(
    built: str, dtype: torch.dtype, stored: torch.dtype, dim: int, rotated: int
) -> None:
    """Bit for bit: tiny numbers and huge ones, zeros and whole vectors of them among ordinary ones."""
    if stored == torch.float16 and built == library.EMULATOR:
        pytest.skip("GPUs keep no fp16")
    results = []
    for run in (kernels.rope_and_store, reference.rope_and_store):
        query, key, value, table, rotations, _, slots = arguments(40, dim, dtype, rotated=rotated)
        for x in (key, value):
            x[::3] *= 0.003
            x[1::5] *= 500
            x[4::7] *= 40_000
            x[2] = 0
            x[3, :, ::2] = 0
        caches = [torch.zeros(4, 2, BLOCK, dim, dtype=stored).transpose(1, 2) for _ in range(2)]
        scales = [torch.full((4, 2, BLOCK), 7.0).transpose(1, 2) for _ in range(2)] if stored == torch.int8 else []
        run(query, key, value, table, rotations, LayerCache(*caches, *scales), slots)
        results.append([*(cache.contiguous().view(torch.uint8) for cache in caches), *scales])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_eight_bits_are_near_what_was_stored(built: str, stored: torch.dtype) -> None:
    query, key, value, table, rotations, _, slots = arguments(40, 64, torch.float32)
    caches = [torch.zeros(4, BLOCK, 2, 64, dtype=stored) for _ in range(2)]
    scales = [torch.zeros(4, 2, BLOCK).transpose(1, 2) for _ in range(2)] if stored == torch.int8 else []
    kernels.rope_and_store(query, key, value, table, rotations, LayerCache(*caches, *scales), slots)
    place = (slots // BLOCK, slots % BLOCK)
    numbers = caches[1].float()[place]
    if scales:
        assert ((numbers * scales[1][place].unsqueeze(-1) - value).abs() <= value.abs().amax(-1, True) / 253).all()
    else:
        assert ((numbers - value).abs() <= value.abs() / 16 + 2**-10).all()


def test_a_token_does_not_depend_on_its_batch(built: str) -> None:
    together, alone = arguments(20, 48, torch.bfloat16), arguments(20, 48, torch.bfloat16)
    try:
        torch.set_num_threads(2)
        kernels.rope_and_store(*together)
    finally:
        torch.set_num_threads(1)
    for i in range(20):
        query, key, value, table, rotations, cache, slots = alone
        here = slice(i, i + 1)
        kernels.rope_and_store(query[here], key[here], value[here], table, rotations[here], cache, slots[here])
    for one, other in zip([together[0], *together[5][:2]], [alone[0], *alone[5][:2]], strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def test_the_op_keeps_torchs_rules(built: str) -> None:
    given = list(arguments(5, 16, torch.float32))
    given[5:6] = [torch.zeros(4, BLOCK, 2, 16) for _ in range(2)]
    given[0] = given[0].contiguous()
    torch.library.opcheck(torch.ops.roundhouse.rope_and_store.default, tuple(given))


def test_a_wrong_argument_is_named(isa: str) -> None:
    body = library.cpu
    assert body is not None
    good = list(arguments(5, 16, torch.float32))
    good[5:6] = native_cache(good[5])
    for place, wrong, message in [
        (1, good[1].bfloat16(), "key has another type"),
        (3, good[3].double(), "table has another type"),
        (3, torch.zeros(50, 18), "table must have an even number of columns, at most query's dimensions"),
        (4, good[4] + 50, "rotations has .*, beyond 50"),
        (6, good[6].contiguous(), "value_cache must be laid out as key_cache is"),
        (9, good[9] - 100, "slots has -"),
    ]:
        with pytest.raises(ValueError, match=message):
            body.rope_and_store(*good[:place], wrong, *good[place + 1 :])
