"""The CUDA body of rotary embedding with the writing of keys and values, under the emulator and on CUDA."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.ops.attention import NO_SCALES
from tests.kernels.conftest import Body

BLOCK = 16
SCALES = (NO_SCALES, NO_SCALES)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8}


def turned(heads: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """As complex numbers, dimensions i and i + R/2 of the first R are multiplied by exp(i angle)."""
    turning, rest = heads.double().tensor_split((table.shape[1],), -1)
    (real, imaginary), (cos, sin) = turning.chunk(2, -1), table.double().unsqueeze(1).chunk(2, -1)
    product = torch.complex(real, imaginary) * torch.complex(cos, sin)
    return torch.cat((product.real, product.imag, rest), -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.integers(0, 9),
    sizes=st.sampled_from([(2, 2), (6, 6), (48, 48), (64, 64), (128, 128), (6, 2), (64, 48), (128, 96), (128, 6)]),
    seed=st.integers(0, 99),
)
def test_queries_and_keys_turn_and_only_the_slots_are_written(
    body: Body, dtype: torch.dtype, tokens: int, sizes: tuple[int, int], seed: int
) -> None:
    dim, rotated = sizes
    torch.manual_seed(seed)
    run, device = body
    heads = torch.randn(tokens, 9, dim).to(device, dtype)
    before, (query, key, value, _) = heads.clone(), heads.split([3, 2, 2, 2], dim=1)
    angles = torch.randn(50, rotated // 2, device=device)
    table, rotations = torch.cat((angles.cos(), angles.sin()), -1), torch.randint(50, (tokens,), device=device)
    slots = torch.randperm(4 * BLOCK, device=device)[:tokens]
    # The rows between the blocks are another layer's.
    caches = [torch.full((8, BLOCK, 2, dim), torch.nan, dtype=dtype, device=device) for _ in range(2)]
    run.rope_and_store(query, key, value, table, rotations, *(cache[::2] for cache in caches), *SCALES, slots)
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(query.double(), turned(before[:, :3], table[rotations]), **tolerance)
    assert torch.equal(heads[:, 3:], before[:, 3:])
    keys, values = (cache[2 * (slots // BLOCK), slots % BLOCK] for cache in caches)
    torch.testing.assert_close(keys.double(), turned(before[:, 3:5], table[rotations]), **tolerance)
    assert torch.equal(values, before[:, 5:7])
    for cache in caches:
        assert int((~cache.isnan()).any(-1).any(-1).sum()) == tokens


def test_a_wrong_argument_is_named(body: Body) -> None:
    query, key = torch.zeros(2, 3, 8, device=body[1]), torch.zeros(2, 2, 8, device=body[1])
    table, caches = torch.zeros(5, 8, device=body[1]), [torch.zeros(4, BLOCK, 2, 8, device=body[1]) for _ in range(2)]
    index = torch.zeros(2, dtype=torch.long, device=body[1])
    with pytest.raises(ValueError, match="slots has another type"):
        body[0].rope_and_store(query, key, key, table, index, *caches, *SCALES, index.int())
    with pytest.raises(ValueError, match="table must have an even number of columns, at most query's dimensions"):
        body[0].rope_and_store(query, key, key, torch.zeros(5, 10, device=body[1]), index, *caches, *SCALES, index)
