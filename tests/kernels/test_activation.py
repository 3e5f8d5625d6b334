"""Gated activations on every instruction set, under the emulator and on CUDA, against fp64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import library

Activation = Callable[[torch.Tensor], torch.Tensor]

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
"""Relative: what one rounding to the type may cost, and a little for the arithmetic in fp32."""
every_shape = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def erf_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.special.erfc(-x / math.sqrt(2)) / 2


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    # (1 + tanh(t)) / 2, without the difference.
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


ACTIVATIONS = pytest.mark.parametrize(
    ("run", "formula"),
    [
        (kernels.silu_and_mul, lambda x: x * torch.sigmoid(x)),
        (lambda x: kernels.gelu_and_mul(x, False), erf_gelu),
        (lambda x: kernels.gelu_and_mul(x, True), tanh_gelu),
    ],
    ids=["silu", "gelu", "gelu tanh"],
)


@ACTIVATIONS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_shape
@given(rows=st.integers(0, 5), width=st.integers(1, 70) | st.sampled_from([1023, 1025, 2048]), seed=st.integers(0, 99))
def test_the_gate_is_that_of_fp64(
    device: torch.device, run: Activation, formula: Activation, dtype: torch.dtype, rows: int, width: int, seed: int
) -> None:
    torch.manual_seed(seed)
    x = (2 * torch.randn(rows, 2 * width)).to(device, dtype)
    gate, up = x.double().chunk(2, dim=-1)
    torch.testing.assert_close(run(x).double(), formula(gate) * up, rtol=TOLERANCE[dtype], atol=1e-7)


@ACTIVATIONS
def test_the_tail_is_relatively_right_and_extremes_are_finite(
    device: torch.device, run: Activation, formula: Activation
) -> None:
    gate = torch.linspace(-5, 0, 4001, device=device)
    x = torch.cat((gate, torch.ones_like(gate)))[None]
    # The argument of an exponential in fp32 costs its size in units of the last place.
    torch.testing.assert_close(run(x)[0].double(), formula(gate.double()), rtol=1e-5, atol=1e-37)
    far = torch.tensor([[-1e30, -200.0, -88.0, 88.0, 200.0, 1e10, 1, 1, 1, 1, 1, 1]], device=device)
    torch.testing.assert_close(run(far)[0].cpu(), torch.tensor([0, 0, 0, 88.0, 200.0, 1e10]), atol=1e-35, rtol=0)
    assert run(torch.tensor([[math.nan, 1.0]], device=device)).isnan().all()


def test_all_instruction_sets_compute_the_same_bits() -> None:
    """And with it: the exponential is the same function on all of them."""
    x = 4 * torch.randn(3, 2 * 1037)
    results = []
    for name in library.supported():
        with library.using(library.load(name)):
            results.append((kernels.silu_and_mul(x), kernels.gelu_and_mul(x, False), kernels.gelu_and_mul(x, True)))
    for found in results:
        assert all(torch.equal(a, b) for a, b in zip(found, results[0], strict=True))


@pytest.mark.parametrize("width", [33, 1032])
def test_a_row_does_not_depend_on_its_batch_and_nothing_is_written_around_it(device: torch.device, width: int) -> None:
    x = torch.randn(64, 2 * width, device=device)
    together = kernels.silu_and_mul(x)
    for row in (0, 17, 63):
        assert torch.equal(kernels.silu_and_mul(x[row : row + 1])[0], together[row])
    guarded = torch.full((66, width), torch.nan, device=device)
    body = library.of(x)
    assert body is not None
    body.silu_and_mul(guarded[1:-1], x)
    assert torch.equal(guarded[1:-1], together)
    assert guarded[0].isnan().all() and guarded[-1].isnan().all()


def test_the_ops_keep_torchs_rules(device: torch.device) -> None:
    torch.library.opcheck(torch.ops.roundhouse.silu_and_mul.default, (torch.randn(3, 8, device=device),))
    torch.library.opcheck(torch.ops.roundhouse.gelu_and_mul.default, (torch.randn(3, 8, device=device), True))


def test_a_wrong_argument_is_named(device: torch.device) -> None:
    x = torch.randn(3, 8, device=device)
    body = library.of(x)
    assert body is not None
    with pytest.raises(ValueError, match="x has 7 elements"):
        body.silu_and_mul(x.new_empty(3, 4), x.new_empty(3, 7))
    with pytest.raises(ValueError, match="out has another type"):
        body.silu_and_mul(x.new_empty(3, 4, dtype=torch.bfloat16), x)
