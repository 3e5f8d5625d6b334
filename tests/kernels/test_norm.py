"""Normalisation on every instruction set, under the emulator and on CUDA, against fp64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import library

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}
"""Relative: what one rounding to the type may cost, and a little for the sum in fp32."""
every_shape = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rows = st.integers(0, 5)
widths = st.one_of(st.integers(1, 70), st.sampled_from([288, 1024, 1032, 2048, 8193]))


def expected(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_shape
@given(rows=rows, width=widths, seed=st.integers(0, 99))
def test_rms_norm_is_that_of_fp64(device: torch.device, dtype: torch.dtype, rows: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = (torch.randn(*shape).to(device, dtype) for shape in ((rows, width), (width,)))
    found = kernels.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(found.double(), expected(x, weight, 1e-5), rtol=TOLERANCE[dtype], atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_shape
@given(rows=rows, width=widths, seed=st.integers(0, 99))
def test_the_sum_with_the_residual_is_rounded_before_it_is_normalised(
    device: torch.device, dtype: torch.dtype, rows: int, width: int, seed: int
) -> None:
    torch.manual_seed(seed)
    x, residual = (torch.randn(rows, width).to(device, dtype) for _ in range(2))
    total = x + residual
    weight = torch.ones(width, device=device, dtype=dtype)
    found = kernels.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    torch.testing.assert_close(found.double(), expected(total, weight, 1e-5), rtol=TOLERANCE[dtype], atol=1e-30)


def test_heads_among_others_have_weights_of_their_own(device: torch.device) -> None:
    torch.manual_seed(0)
    heads, weight = (torch.randn(*shape).to(device, torch.bfloat16) for shape in ((3, 7, 48), (5, 48)))
    found = kernels.rms_norm(heads[:, :5], weight, 1e-6)
    torch.testing.assert_close(found.double(), expected(heads[:, :5], weight, 1e-6), rtol=2**-8, atol=1e-30)


@pytest.mark.parametrize("width", [33, 64, 1056])
def test_a_row_does_not_depend_on_its_batch_and_nothing_is_written_around_it(device: torch.device, width: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(64, width, device=device), torch.randn(width, device=device)
    together = kernels.rms_norm(x, weight, 1e-5)
    for row in (0, 17, 63):
        assert torch.equal(kernels.rms_norm(x[row : row + 1], weight, 1e-5)[0], together[row])
    guarded = torch.full((66, width), torch.nan, device=device)
    body = library.of(x)
    assert body is not None
    body.rms_norm(guarded[1:-1], x, weight, 1e-5)
    assert torch.equal(guarded[1:-1], together)
    assert guarded[0].isnan().all() and guarded[-1].isnan().all()


def test_the_ops_keep_torchs_rules(device: torch.device) -> None:
    x, weight = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    torch.library.opcheck(torch.ops.roundhouse.rms_norm.default, (x, weight, 1e-5))
    torch.library.opcheck(torch.ops.roundhouse.add_rms_norm.default, (x, torch.randn_like(x), weight, 1e-5))


def test_a_wrong_argument_is_named(device: torch.device) -> None:
    x, weight = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    body = library.of(x)
    assert body is not None
    with pytest.raises(ValueError, match="weight has another type"):
        body.rms_norm(x.clone(), x, weight.double(), 1e-5)
    with pytest.raises(ValueError, match="weight has 7 elements"):
        body.rms_norm(x.clone(), x, weight[:7], 1e-5)
    with pytest.raises(ValueError, match="x must be contiguous but for its tokens"):
        body.rms_norm(x.clone(), torch.randn(8, 3, device=device).T, weight, 1e-5)
