"""Several answers to one request: how many there may be, and what they use together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.choices import MAX_CHOICES, StreamOptions, request_choices, total_usage
from gateway.protocol.requests import Sampling, TurnRequest
from gateway.protocol.stream import TokenUsage


def test_a_prompt_counts_once_however_many_answers_it_has() -> None:
    """Outputs all count."""
    usages = [TokenUsage(10, 4, 3), TokenUsage(10, 9, 5), TokenUsage(20, 0, 1), TokenUsage(20, 16, 2)]
    assert total_usage(usages, n=2) == {
        "prompt_tokens": 30,
        "completion_tokens": 11,
        "total_tokens": 41,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 4))
def test_seeds_of_answers_differ_and_stay_in_range(seed: int, n: int) -> None:
    """Whatever seed a client may send."""
    asked = request_choices(
        [TurnRequest(model="auto", sampling=Sampling(seed=seed))], n=n, stream=None, stream_options=None
    )
    seeds = [turn.sampling.seed for turn in asked.turns]
    assert seeds[0] == seed
    assert len({*seeds}) == n
    assert all(each is not None and -(2**63) <= each < 2**63 for each in seeds)


def test_the_bound_counts_prompts_times_n() -> None:
    """The message names both."""
    prompts = [TurnRequest(model="auto")] * 64
    assert len(request_choices(prompts, n=2, stream=None, stream_options=None).turns) == MAX_CHOICES
    with pytest.raises(InvalidRequest, match=r"64 prompts with n=3"):
        request_choices(prompts, n=3, stream=None, stream_options=None)


@pytest.mark.parametrize(
    ("options", "include", "continuous"),
    [
        (None, False, False),
        (StreamOptions(include_usage=True), True, False),
        (StreamOptions(include_usage=True, continuous_usage_stats=True), True, True),
        (StreamOptions(continuous_usage_stats=True), False, False),
    ],
)
def test_usage_is_streamed_as_asked_for(options: StreamOptions | None, include: bool, continuous: bool) -> None:
    """The usage so far only together with that of the whole."""
    asked = request_choices([TurnRequest(model="auto")], n=1, stream=True, stream_options=options)
    assert (asked.include_usage, asked.continuous_usage) == (include, continuous)
