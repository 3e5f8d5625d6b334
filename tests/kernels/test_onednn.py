"""Packed bf16 weights give what the plain ones give."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels import onednn, reference

needs_bf16 = pytest.mark.skipif(
    not onednn.supports(torch.empty(1, 1, dtype=torch.bfloat16)), reason="this CPU has no bf16 instructions"
)


@needs_bf16
@pytest.mark.parametrize("tokens", [1, 3, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_weight_multiplies_like_the_plain_one(tokens: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(tokens)
    weight, x = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((50, 40), (tokens, 40)))
    offset = torch.randn(50, generator=generator).bfloat16() if bias else None
    packed = kernels.pack_weight(weight)
    assert packed.is_mkldnn
    expected = reference.linear(x.double(), weight.double(), None if offset is None else offset.double())
    torch.testing.assert_close(kernels.linear(x, packed, offset).double(), expected, rtol=1e-2, atol=5e-2)


def test_fp32_weights_stay_as_they_are() -> None:
    weight = torch.ones(4, 4)
    assert kernels.pack_weight(weight) is weight
