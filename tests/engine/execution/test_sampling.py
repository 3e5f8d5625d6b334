"""Filters equal transformers' processors, draws follow the distribution, and neither depends on the batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.execution.sampling import Sampler, token_logprobs, uniform
from engine.wire import SamplingParams
from kernels.reference.sampling import inverse_cdf, truncate
from tests.engine.driver import request

VOCABULARY = 60
EOS = 7


@pytest.fixture
def sampler(device: str) -> Sampler:
    return Sampler(VOCABULARY, [EOS], torch.device(device))


def random_logits(rows: int, device: str = "cpu", vocabulary: int = VOCABULARY, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, vocabulary, generator=generator)).to(device)


def truncated(logits: torch.Tensor, *params: SamplingParams) -> torch.Tensor:
    """What `truncate` leaves of each row; its contract wants maxima of 0."""
    return truncate(
        logits - logits.amax(-1, keepdim=True),
        top_k=torch.tensor([p.top_k for p in params], device=logits.device),
        top_p=torch.tensor([p.top_p for p in params], device=logits.device),
        min_p=torch.tensor([p.min_p for p in params], device=logits.device),
    )


def kept_by_transformers(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    warpers = LogitsProcessorList()
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    kept: torch.Tensor = warpers(None, logits[None])[0] > -math.inf
    return kept


PARAMS = st.builds(
    SamplingParams,
    top_k=st.sampled_from([0, 1, 2, 10, VOCABULARY, 1000]),
    top_p=st.sampled_from([1.0, 0.01, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@given(st.lists(PARAMS, min_size=1, max_size=5), st.integers(0, 100))
def test_truncation_keeps_what_transformers_keeps(params: list[SamplingParams], seed: int) -> None:
    """For any combination of top-k, top-p and min-p, mixed in one batch."""
    logits = random_logits(len(params), seed=seed)
    for row, (mine, one) in enumerate(zip(truncated(logits, *params), params, strict=True)):
        assert torch.equal(mine > -math.inf, kept_by_transformers(logits[row], one))


def test_tokens_as_likely_as_the_last_one_kept_are_kept(device: str) -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]], device=device)
    assert (truncated(logits, SamplingParams(top_k=2)) > -math.inf).tolist() == [[True, True, True, False]]


def test_a_greedy_row_takes_the_maximum_beside_sampled_ones(sampler: Sampler, device: str) -> None:
    logits = random_logits(3, device)
    requests = [request([1], str(i), temperature=float(i == 1), seed=5) for i in range(3)]
    tokens, logprobs = sampler(logits, requests)
    assert [tokens[0], tokens[2]] == logits[[0, 2]].argmax(-1).tolist()
    assert logprobs == [None, None, None]


def test_bias_and_min_tokens_change_logits_as_transformers_does(sampler: Sampler, device: str) -> None:
    bias = {3: 2.5, 9: -100.0}
    logits = random_logits(1, device)
    one = request([1, 2], logit_bias=bias, min_tokens=2)
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}),
            MinNewTokensLengthLogitsProcessor(2, 2, [EOS], device=device),
        ]
    )
    for output in ([], [4], [4, 5]):
        one.output = output
        expected = processors(torch.tensor([one.prompt + output], device=device), logits.clone())
        torch.testing.assert_close(sampler._adjust(logits.clone(), [one], [()]), expected)


def test_min_tokens_holds_back_stop_tokens_too(sampler: Sampler, device: str) -> None:
    logits = torch.zeros(2, VOCABULARY, device=device)
    logits[:, EOS], logits[:, 20], logits[:, 30] = 9.0, 8.0, 7.0
    ending = request([1], "a", min_tokens=1, stop_token_ids=(20,))
    going_on = request([1], "b", min_tokens=1, stop_token_ids=(20,), ignore_eos=True)
    assert sampler(logits, [ending, going_on])[0] == [30, EOS]


def chi_square_limit(cells: int) -> float:
    """The 99.9 % quantile for this many cells, by Wilson and Hilferty's approximation."""
    freedom = cells - 1
    return freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


def test_draws_follow_the_distribution_of_transformers_warpers(device: str) -> None:
    draws = 20_000
    logits = random_logits(1, device, vocabulary=20) / 3
    requests = [request([1], str(seed), temperature=1.5, top_k=15, top_p=0.95, seed=seed) for seed in range(draws)]
    tokens, _ = Sampler(20, [], torch.device(device))(logits.repeat(draws, 1), requests)
    counts = torch.bincount(torch.tensor(tokens), minlength=20)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(1.5), TopKLogitsWarper(15), TopPLogitsWarper(0.95)])
    expected = warpers(None, logits.clone())[0].softmax(-1).cpu() * draws
    possible = expected > 0
    assert int(counts[~possible].sum()) == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert int(possible.sum()) > 8
    assert statistic < chi_square_limit(int(possible.sum()))


def test_uniforms_are_uniform_over_seeds_and_over_positions() -> None:
    """Chi-square over 64 cells along either axis, and no correlation between neighbours; 99.9 % quantiles."""
    for numbers in (
        [uniform(5, position) for position in range(20_000)],
        [uniform(seed, 5) for seed in range(20_000)],
        [uniform(seed << 32, 5) for seed in range(20_000)],
    ):
        values = torch.tensor(numbers, dtype=torch.float64)
        counts = torch.bincount((values * 64).long(), minlength=64)
        assert ((counts - 312.5) ** 2 / 312.5).sum() < chi_square_limit(64)
        assert abs(torch.corrcoef(torch.stack((values[1:], values[:-1])))[0, 1]) < 3.3 / math.sqrt(20_000)


@given(st.integers(), st.integers(0, 1 << 40))
def test_a_uniform_lies_strictly_between_0_and_1(seed: int, position: int) -> None:
    assert 0 < uniform(seed, position) < 1


def test_a_uniform_never_changes_between_versions() -> None:
    """Stored seeds must give the same answers after an upgrade."""
    assert [uniform(0, 0), uniform(1, 0), uniform(0, 1), uniform(2**64 - 1, 4096)] == UNIFORMS


UNIFORMS = [0.8833108082180843, 0.749748241272755, 0.43152799701783806, 0.6083942564437166]


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=40), st.floats(1e-9, 1 - 1e-9))
def test_inverse_cdf_finds_the_cell_of_the_uniform(logits: list[float], number: float) -> None:
    scores = torch.tensor([logits])
    token = int(inverse_cdf(scores, torch.tensor([number], dtype=torch.float64)))
    cumulative = scores.softmax(-1).double().cumsum(-1)[0]
    cumulative /= cumulative[-1].clone()
    below = float(cumulative[token - 1]) if token else 0.0
    assert below - 1e-12 <= number <= float(cumulative[token]) + 1e-12


def test_a_token_without_probability_is_never_drawn(device: str) -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]], device=device).expand(4, -1)
    uniforms = torch.tensor([1e-10, 0.4999, 0.5001, 1 - 1e-10], dtype=torch.float64, device=device)
    assert inverse_cdf(logits, uniforms).tolist() == [1, 1, 3, 3]


def test_a_cell_begins_at_its_lower_bound(device: str) -> None:
    half = torch.tensor([0.5], dtype=torch.float64, device=device)
    assert inverse_cdf(torch.zeros(1, 2, device=device), half).tolist() == [1]


def test_every_position_draws_anew(sampler: Sampler, device: str) -> None:
    """The uniform of a draw is that of the seed and of the position that the token will have."""
    logits = torch.zeros(20, VOCABULARY, device=device)
    requests = [request(range(length), str(length), temperature=1.0, seed=9) for length in range(1, 21)]
    tokens, _ = sampler(logits, requests)
    assert tokens == [int(uniform(9, length) * VOCABULARY) for length in range(1, 21)]


def test_tiny_temperatures_are_greedy(sampler: Sampler, device: str) -> None:
    logits = random_logits(1, device)
    tokens, _ = sampler(logits, [request([1], temperature=1e-30, seed=3)])
    assert tokens == logits.argmax(-1).tolist()


def test_logprobs_are_those_of_the_unmodified_logits(sampler: Sampler, device: str) -> None:
    logits = random_logits(2, device)
    expected = logits.log_softmax(-1)
    changed = request([1], "a", temperature=2.0, logit_bias={4: 50.0}, top_k=3, logprobs=3)
    tokens, logprobs = sampler(logits, [changed, request([1], "b")])
    assert tokens[0] == 4
    assert logprobs[1] is None
    entry = logprobs[0]
    assert entry is not None
    assert (entry.token, entry.logprob) == (4, pytest.approx(float(expected[0, 4])))
    values, ids = expected[0].topk(3)
    assert entry.top == [(id, pytest.approx(value)) for id, value in zip(ids.tolist(), values.tolist(), strict=True)]


def test_each_row_gets_as_many_alternatives_as_it_asked_for(device: str) -> None:
    entries = token_logprobs(random_logits(3, device), [1, 2, 3], [0, 5, 2])
    assert [len(entry.top) for entry in entries] == [0, 5, 2]
