"""Penalties equal their published formulas, whatever the history of the request."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from engine.execution.penalties import Penalties
from tests.engine.driver import request

VOCABULARY = 30
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)


def random_logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(0))


@given(TOKENS, TOKENS, st.floats(0.5, 2.0))
def test_repetition_penalty_equals_transformers(prompt: list[int], output: list[int], penalty: float) -> None:
    logits = random_logits(1)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    one = request(prompt, repetition_penalty=penalty)
    one.output = output
    Penalties(VOCABULARY, torch.device("cpu"))(logits, [one])
    torch.testing.assert_close(logits, expected)


@given(TOKENS, TOKENS, st.floats(-2, 2), st.floats(-2, 2))
def test_presence_and_frequency_count_the_output_alone(
    prompt: list[int], output: list[int], presence: float, frequency: float
) -> None:
    """OpenAI's formula: logit[t] - count[t] * frequency - (count[t] > 0) * presence."""
    logits = random_logits(1)
    expected = logits.clone()
    for token in set(output):
        expected[0, token] -= output.count(token) * frequency + presence
    one = request(prompt, presence_penalty=presence, frequency_penalty=frequency)
    one.output = output
    Penalties(VOCABULARY, torch.device("cpu"))(logits, [one])
    torch.testing.assert_close(logits, expected)


def test_counts_follow_the_output_as_it_grows(device: str) -> None:
    """Step by step equals all at once."""
    penalties, one = Penalties(VOCABULARY, torch.device(device)), request([1], frequency_penalty=0.5)
    for token in (4, 4, 9):
        penalties(random_logits(1).to(device), [one])
        one.output.append(token)
    grown, fresh = random_logits(1).to(device), random_logits(1).to(device)
    penalties(grown, [one])
    Penalties(VOCABULARY, torch.device(device))(fresh, [one])
    assert torch.equal(grown, fresh)


def test_rows_without_penalties_are_untouched(device: str) -> None:
    logits = random_logits(3).to(device)
    before = logits.clone()
    requests = [request([1], str(i), presence_penalty=float(i == 1)) for i in range(3)]
    for one in requests:
        one.output = [2]
    Penalties(VOCABULARY, torch.device(device))(logits, requests)
    assert [bool((logits[i] == before[i]).all()) for i in range(3)] == [True, False, True]


def test_release_forgets_a_request() -> None:
    penalties, one = Penalties(VOCABULARY, torch.device("cpu")), request([1], presence_penalty=1.0)
    penalties(random_logits(1), [one])
    assert len(penalties) == 1
    penalties.release(one)
    penalties.release(one)
    assert len(penalties) == 0


@pytest.mark.parametrize(
    "sampling", [{"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}]
)
def test_any_penalty_applies(sampling: dict[str, float]) -> None:
    assert Penalties.apply_to(request([1], **sampling))
    assert not Penalties.apply_to(request([1]))
