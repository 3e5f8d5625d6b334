"""Gathering rows on every instruction set, under the emulator and on CUDA."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import library

every_shape = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@every_shape
@given(
    tokens=st.lists(st.integers(0, 10), max_size=40),
    width=st.integers(1, 70) | st.just(4096),
    gap=st.sampled_from([0, 3, 16]),
)
def test_rows_are_copied_bit_for_bit(
    device: torch.device, dtype: torch.dtype, tokens: list[int], width: int, gap: int
) -> None:
    weight = (50 * torch.randn(11, width + gap)).to(device, dtype)[:, :width]
    index = torch.tensor(tokens, dtype=torch.long, device=device)
    guarded = torch.full((len(tokens) + 2, width), 7, dtype=dtype, device=device)
    body = library.of(weight)
    assert body is not None
    body.embedding(guarded[1:-1], index, weight)
    assert torch.equal(guarded[1:-1], weight[index])
    assert (guarded[[0, -1]] == 7).all()
    assert torch.equal(kernels.embedding(index, weight), weight[index])


@pytest.mark.parametrize("token", [-1, 11])
def test_a_row_that_is_not_there_stops_a_kernel(emulator: library.Library, token: int) -> None:
    with pytest.raises(RuntimeError, match="a kernel trapped"):
        kernels.embedding(torch.tensor([3, token]), torch.randn(11, 4))


@pytest.mark.parametrize("token", [-1, 11])
def test_a_row_that_is_not_there_is_refused(isa: str, token: int) -> None:
    with pytest.raises(IndexError, match="of 11 rows"):
        kernels.embedding(torch.tensor([3, token]), torch.randn(11, 4))


def test_the_op_keeps_torchs_rules(device: torch.device) -> None:
    torch.library.opcheck(
        torch.ops.roundhouse.embedding.default, (torch.tensor([1, 0], device=device), torch.randn(3, 8, device=device))
    )


def test_a_wrong_argument_is_named(device: torch.device) -> None:
    with pytest.raises(ValueError, match="tokens has another type"):
        kernels.embedding(torch.tensor([1.0], device=device), torch.randn(3, 8, device=device))
