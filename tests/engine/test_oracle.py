"""The engine against transformers: the same tokens and log-probabilities, whatever else goes on at the same time.

Models are tiny, random and in fp32; see `checkpoints.py`. Greedy requests must equal transformers' `generate`; sampled
ones, for which there is no oracle token by token, must equal themselves alone in an engine with nothing else in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import torch

from engine.core import EngineCore, SchedulerConfig
from engine.runner import ModelRunner
from engine.wire import Generate, SamplingParams, TokenLogprob
from tests.engine.checkpoints import (
    ARCHITECTURES,
    ROPE_SCALINGS,
    oracle_greedy,
    oracle_logits,
    random_prompt,
    write_similar,
)
from tests.engine.composition import FEATURES, PAIRS, Scenario, Transcript, serve
from tests.engine.conftest import Checkpoint

TOLERANCE = 1e-5
SCALED = ["linear", "yarn", "llama3"]
"""RoPE scalings whose frequencies do not depend on the length, as the oracle without a cache needs it."""


@cache
def runner_for(directory: Path, blocks: int, device: str) -> ModelRunner:
    """Runners keep nothing between requests but stale KV, which must never show."""
    return ModelRunner(directory, blocks=blocks, device=device, dtype="float32")


@cache
def reference_logprobs(directory: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities of the successor of every position, by transformers without a KV cache."""
    return oracle_logits(directory, list(tokens)).log_softmax(dim=-1)


@cache
def reference_tokens(directory: Path, prompt: tuple[int, ...], new_tokens: int) -> list[int]:
    return oracle_greedy(directory, list(prompt), new_tokens)


def alone(directory: Path, request: Generate, device: str) -> Transcript:
    """What a request gets from an engine that does nothing else."""
    runner = runner_for(directory, 32, device)
    core = EngineCore(runner, runner.info, SchedulerConfig(blocks=32), rope_regime=runner.config.rope_regime)
    return serve(core, [(0, request)])[request.id]


def assert_equals_oracle(directory: Path, request: Generate, transcript: Transcript, device: str) -> None:
    sampling = request.sampling
    if sampling.temperature == 0:
        assert transcript.tokens == reference_tokens(directory, tuple(request.prompt), sampling.max_tokens)
    else:
        assert transcript.tokens == alone(directory, request, device).tokens
    prompt = len(request.prompt)
    tokens = (*request.prompt, *transcript.tokens)
    reference = reference_logprobs(directory, tokens)
    if sampling.logprobs is not None:
        assert [entry.token for entry in transcript.logprobs] == transcript.tokens
        assert_close(transcript.logprobs, reference[prompt - 1 : -1], sampling.logprobs)
    if sampling.prompt_logprobs is not None:
        first, *entries = transcript.prompt_logprobs
        assert first is None
        assert [entry and entry.token for entry in entries] == request.prompt[1:]
        assert_close([entry for entry in entries if entry], reference[: prompt - 1], sampling.prompt_logprobs)


def assert_close(entries: list[TokenLogprob], reference: torch.Tensor, top: int) -> None:
    """Chosen and most likely tokens have the reference's log-probabilities [len(entries), vocabulary]."""
    for entry, row in zip(entries, reference, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token].item(), abs=TOLERANCE)
        expected = row.topk(top).values.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(expected, abs=TOLERANCE)
        assert [row[token].item() for token, _ in entry.top] == pytest.approx(expected, abs=TOLERANCE)


def check(directory: Path, features: Iterable[str], device: str) -> None:
    scenario = Scenario(features)
    drafter = runner_for(write_similar(directory), scenario.blocks, device)
    transcripts = scenario.run(runner_for(directory, scenario.blocks, device), drafter)
    for request in scenario.requests:
        assert_equals_oracle(directory, request, transcripts[request.id], device)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_request_at_a_time(architecture: str, checkpoint: Checkpoint, device: str) -> None:
    check(checkpoint(architecture), [], device)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_everything_at_once(architecture: str, checkpoint: Checkpoint, device: str) -> None:
    check(checkpoint(architecture), FEATURES, device)


@pytest.mark.parametrize("scaling", SCALED)
def test_everything_at_once_with_scaled_rope(scaling: str, checkpoint: Checkpoint, device: str) -> None:
    check(checkpoint("llama", rope_parameters=ROPE_SCALINGS[scaling]), FEATURES, device)


@pytest.mark.parametrize("features", PAIRS, ids=" and ".join)
def test_two_features_together(features: tuple[str, str], checkpoint: Checkpoint, device: str) -> None:
    check(checkpoint("llama"), features, device)


def test_a_prompt_beyond_the_sliding_window_in_chunks(checkpoint: Checkpoint, device: str) -> None:
    directory = checkpoint("mistral")
    runner = runner_for(directory, 32, device)
    core = EngineCore(runner, runner.info, SchedulerConfig(blocks=32, step_tokens=50, max_running=4))
    greedy = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    requests = [Generate(str(length), random_prompt(length), greedy) for length in (130, 24, 25, 97)]
    transcripts = serve(core, [(0, request) for request in requests])
    for request in requests:
        assert_equals_oracle(directory, request, transcripts[request.id], device)


def test_the_same_seed_gives_the_same_tokens_in_any_company(checkpoint: Checkpoint, device: str) -> None:
    directory = checkpoint("llama")
    runner = runner_for(directory, 32, device)
    sampling = SamplingParams(max_tokens=24, temperature=1.0, seed=42, ignore_eos=True)
    request = Generate("same", random_prompt(12), sampling)
    expected = alone(directory, request, device).tokens
    for others in range(1, 8, 2):
        core = EngineCore(runner, runner.info, SchedulerConfig(blocks=32, step_tokens=16, max_running=8))
        company = [Generate(str(index), random_prompt(3 * index + 1), sampling) for index in range(others)]
        transcripts = serve(core, [*((index, other) for index, other in enumerate(company)), (2, request)])
        assert transcripts["same"].tokens == expected


def test_different_seeds_give_different_tokens(checkpoint: Checkpoint, device: str) -> None:
    directory = checkpoint("llama")
    answers = {
        tuple(
            alone(
                directory,
                Generate("a", random_prompt(12), SamplingParams(max_tokens=12, temperature=1.0, seed=seed)),
                device,
            ).tokens
        )
        for seed in range(4)
    }
    assert len(answers) == 4


def test_an_answer_ends_where_transformers_ends_it(checkpoint: Checkpoint, device: str) -> None:
    """The model's own end-of-sequence token stops it: the oracle's greedy tokens up to the first one."""
    directory = checkpoint("llama")
    prompt = random_prompt(10)
    reference = reference_tokens(directory, tuple(prompt), 20)
    stop = reference[7]
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
    transcript = alone(directory, Generate("a", prompt, sampling), device)
    assert transcript.tokens == reference[: reference.index(stop) + 1]
    assert transcript.finish == "stop"
