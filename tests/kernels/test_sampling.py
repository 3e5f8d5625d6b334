"""Sampling by every library for the CPU: the tokens that the specification, which sorts, draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernels
from kernels import library, reference
from kernels.reference.sampling import truncate

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
every_shape = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
VOCABULARIES = st.sampled_from([1, 2, 15, 16, 17, 31, 33, 511, 512, 513, 1025, 5000]) | st.integers(1, 300)
DRAW = st.tuples(
    st.sampled_from([0.0, 1e-30, 0.3, 1.0, 1.7]),
    st.sampled_from([0, 1, 2, 10, 300, 1000, 6000]),
    st.sampled_from([1.0, 0.01, 0.5, 0.9, 0.999]),
    st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    st.floats(1e-9, 1 - 1e-9),
)


def random_logits(rows: int, vocabulary: int, seed: int, scale: float = 3) -> torch.Tensor:
    return scale * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


@DTYPES
@every_shape
@given(
    draws=st.lists(DRAW, min_size=1, max_size=5),
    vocabulary=VOCABULARIES,
    seed=st.integers(0, 9999),
    scale=st.sampled_from([0.01, 1, 3, 10]),
    masked=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_tokens_are_those_of_the_specification(
    built: str,
    dtype: torch.dtype,
    draws: list[tuple[float, ...]],
    vocabulary: int,
    seed: int,
    scale: float,
    masked: float,
) -> None:
    """In bf16 many logits are equal; at the 0.01 scale nearly all weigh the same."""
    logits = random_logits(len(draws), vocabulary, seed, scale).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    illegal = torch.rand(len(draws), vocabulary, generator=generator) < masked
    illegal[:, seed % vocabulary] = False
    logits.masked_fill_(illegal, -math.inf)
    table = torch.tensor(draws, dtype=torch.float64)
    found, wanted = kernels.sample(logits, table), reference.sample(logits, table)
    for row in (found != wanted).nonzero()[:, 0].tolist():
        # Cells are computed with another exponential: a number at a bound of two may fall on either side.
        table[row, 4] += 1e-6 if found[row] < wanted[row] else -1e-6
        assert reference.sample(logits[row : row + 1], table[row : row + 1]) != wanted[row]


@every_shape
@given(
    top_k=st.sampled_from([0, 1, 3, 20, 60]),
    top_p=st.sampled_from([1.0, 0.2, 0.7, 0.95]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 999),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_what_can_be_drawn_is_exactly_what_a_sort_keeps(
    isa: str, top_k: int, top_p: float, min_p: float, seed: int, dtype: torch.dtype
) -> None:
    """Every kept token is drawn by some number, and no other by any: the middle of each cell, and what is around it."""
    logits = random_logits(1, 60, seed, 1.5).to(dtype)
    scores = logits.float() - logits.float().amax()
    kept = truncate(
        scores,
        top_k=torch.tensor([top_k]),
        top_p=torch.tensor([top_p]),
        min_p=torch.tensor([min_p]),
    )
    ends = kept.double().softmax(-1).cumsum(-1)[0]
    numbers = torch.cat([ends - kept.double().softmax(-1)[0] / 2, ends * (1 - 1e-5), ends + 1e-5])
    draws = torch.tensor([[1, top_k, top_p, min_p, 0]], dtype=torch.float64).repeat(len(numbers), 1)
    draws[:, 4] = numbers.clamp(1e-9, 1 - 1e-9)
    found = kernels.sample(logits.expand(len(numbers), -1).contiguous(), draws)
    assert found.unique().tolist() == (kept[0] > -math.inf).nonzero()[:, 0].tolist()


def test_draws_follow_the_distribution(isa: str) -> None:
    """Chi-square over all tokens, at its 99.9 % quantile for 19 degrees of freedom."""
    logits, count = random_logits(1, 20, 0, 1), 20_000
    draws = torch.tensor([[1.3, 0, 1, 0, 0]], dtype=torch.float64).repeat(count, 1)
    draws[:, 4] = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tokens = kernels.sample(logits.expand(count, -1).contiguous(), draws)
    expected = (logits[0].double() / 1.3).softmax(-1) * count
    statistic = ((tokens.bincount(minlength=20) - expected) ** 2 / expected).sum()
    assert statistic < 43.8


def test_a_row_does_not_depend_on_its_batch(built: str) -> None:
    logits = random_logits(40, 3000, 0)
    generator = np.random.default_rng(0)
    draws = torch.tensor([[i % 3 / 2, i % 4 * 20, 1 - i % 5 / 10, 0.01, generator.random()] for i in range(40)])
    draws = draws.double()
    order = torch.randperm(40)
    together = kernels.sample(logits, draws)
    assert torch.equal(kernels.sample(logits[order], draws[order]), together[order])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(kernels.sample(logits, draws), together)
    finally:
        torch.set_num_threads(before)
    alone = [int(kernels.sample(logits[row : row + 1], draws[row : row + 1])) for row in range(40)]
    assert alone == together.tolist()


def test_logits_that_are_not_numbers_give_some_token(built: str) -> None:
    for logits in (torch.full((1, 50), math.nan), torch.full((1, 50), -math.inf)):
        for draw in ([0, 0, 1, 0, 0.5], [1, 0, 1, 0, 0.5], [1, 3, 0.9, 0.1, 0.5]):
            assert 0 <= int(kernels.sample(logits, torch.tensor([draw], dtype=torch.float64))) < 50


@pytest.mark.parametrize("vocabulary", [2**18, 2**20 + 3])
def test_large_vocabularies_lose_nothing(built: str, vocabulary: int) -> None:
    """The first and the last tokens weigh more than all others, which weigh the most that so many can."""
    logits = torch.zeros(5, vocabulary)
    logits[:, 0] = logits[:, -1] = math.log(2 * vocabulary)
    logits[3, vocabulary // 2] = 20
    draws = torch.tensor([[1, 0, 1, 0, u] for u in (0.2, 0.5, 0.8)] + [[0, 0, 1, 0, 0.5], [1, 1, 1, 0, 0.9]]).double()
    assert torch.equal(kernels.argmax(logits), reference.argmax(logits))
    torch.testing.assert_close(kernels.log_sum_exp(logits), reference.log_sum_exp(logits), rtol=0, atol=1e-6)
    tokens = kernels.sample(logits, draws)
    assert tokens[[0, 2, 3, 4]].tolist() == [0, vocabulary - 1, vocabulary // 2, vocabulary - 1]
    assert abs(int(tokens[1]) - vocabulary / 2) < 2e-6 * vocabulary + 2
    flat = torch.zeros(1, vocabulary)
    for uniform in (1e-9, 0.25, 0.999999):
        token = int(kernels.sample(flat, torch.tensor([[1, 0, 1, 0, uniform]], dtype=torch.float64)))
        assert abs(token - uniform * vocabulary) < 1e-6 * vocabulary + 1


@DTYPES
@every_shape
@given(rows=st.integers(0, 4), vocabulary=VOCABULARIES, seed=st.integers(0, 999), ties=st.booleans())
def test_argmax_is_the_first_maximum(
    built: str, dtype: torch.dtype, rows: int, vocabulary: int, seed: int, ties: bool
) -> None:
    x = random_logits(rows, vocabulary, seed).to(dtype)
    if ties:
        x = x.round().clamp(max=2)
    assert torch.equal(kernels.argmax(x), reference.argmax(x))


@DTYPES
@every_shape
@given(vocabulary=VOCABULARIES, seed=st.integers(0, 999), some=st.booleans())
def test_a_token_bitmask_keeps_the_tokens_whose_bit_is_set(
    built: str, dtype: torch.dtype, vocabulary: int, seed: int, some: bool
) -> None:
    logits = random_logits(5, vocabulary, seed).to(dtype)
    words = -(-vocabulary // 32)
    bits = torch.from_numpy(np.random.default_rng(seed).integers(-(2**31), 2**31, (5, words), dtype=np.int32))
    bits[0], bits[1] = 0, -1
    rows = torch.tensor([4, 0, 2]) if some else None
    bits = bits[: len(rows)] if rows is not None else bits
    wanted = logits.clone()
    reference.apply_token_bitmask(wanted, bits, rows)
    kernels.apply_token_bitmask(logits, bits, rows)
    assert torch.equal(logits, wanted)


@every_shape
@given(
    vocabulary=VOCABULARIES,
    repetition=st.sampled_from([1.0, 0.7, 1.3]),
    presence=st.sampled_from([0.0, -1.5, 0.5]),
    frequency=st.sampled_from([0.0, 0.25, -2.0]),
)
def test_penalties_are_those_of_fp64(
    built: str, vocabulary: int, repetition: float, presence: float, frequency: float
) -> None:
    logits = random_logits(1, vocabulary, vocabulary)[0]
    generator = torch.Generator().manual_seed(vocabulary)
    counts = torch.randint(0, 4, (vocabulary,), generator=generator).float()
    seen = (counts > 0) | (torch.rand(vocabulary, generator=generator) < 0.3)
    wide = logits.double()
    wanted = torch.where(seen, torch.where(wide > 0, wide / repetition, wide * repetition), wide)
    wanted -= frequency * counts + presence * (counts > 0)
    kernels.apply_penalties(logits, counts, seen, repetition, presence, frequency)
    torch.testing.assert_close(logits.double(), wanted, rtol=1e-6, atol=1e-6)


@DTYPES
@every_shape
@given(
    rows=st.integers(0, 4),
    vocabulary=VOCABULARIES,
    seed=st.integers(0, 999),
    shift=st.sampled_from([0.0, -80.0, 300.0]),
)
def test_log_sum_exp_is_that_of_fp64(
    built: str, dtype: torch.dtype, rows: int, vocabulary: int, seed: int, shift: int
) -> None:
    logits = (random_logits(rows, vocabulary, seed) + shift).to(dtype)
    found = kernels.log_sum_exp(logits)
    torch.testing.assert_close(found, logits.double().logsumexp(-1), rtol=0, atol=5e-7)


def test_the_ops_keep_torchs_rules(built: str) -> None:
    logits, draws = random_logits(3, 40, 0), torch.tensor([[1, 5, 0.9, 0.1, 0.5]], dtype=torch.float64).repeat(3, 1)
    torch.library.opcheck(torch.ops.roundhouse.sample.default, (logits, draws))
    torch.library.opcheck(torch.ops.roundhouse.argmax.default, (logits,))
    torch.library.opcheck(torch.ops.roundhouse.log_sum_exp.default, (logits,))
    bits = torch.full((3, 2), 5, dtype=torch.int32)
    torch.library.opcheck(torch.ops.roundhouse.apply_token_bitmask.default, (logits.clone(), bits))
    penalised = (logits[0].clone(), torch.ones(40), torch.ones(40, dtype=torch.bool), 1.2, 0.5, 0.1)
    torch.library.opcheck(torch.ops.roundhouse.apply_penalties.default, penalised)


def test_a_wrong_argument_is_named(isa: str) -> None:
    body = library.cpu
    assert body is not None
    logits, tokens = random_logits(3, 40, 0), torch.empty(3, dtype=torch.int64)
    draws, scratch = torch.zeros(3, 5, dtype=torch.float64), torch.empty(body.sample_scratch(40))
    with pytest.raises(ValueError, match="draws has another type"):
        body.sample(tokens, logits, draws.float(), scratch)
    with pytest.raises(ValueError, match="draws has 2 elements in dimension 0 instead of 3"):
        body.sample(tokens, logits, draws[:2], scratch)
    with pytest.raises(ValueError, match="scratch has"):
        body.sample(tokens, logits, draws, scratch[:-1])
    with pytest.raises(ValueError, match="bits has 1 elements in dimension 1 instead of 2"):
        kernels.apply_token_bitmask(logits, torch.zeros(3, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="rows has a row that logits does not have"):
        kernels.apply_token_bitmask(logits, torch.zeros(1, 2, dtype=torch.int32), torch.tensor([3]))
