"""The decoder equals transformers: the same log-probabilities for every position and the same greedy tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.wire import TokenIdLogprob
from tests.engine.checkpoints import (
    ARCHITECTURES,
    CONTEXT,
    ROPE_SCALINGS,
    VOCABULARY,
    exact_logits,
    load_exact,
    load_oracle,
    oracle_greedy,
    oracle_logits,
    random_prompt,
)
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request, tokens_of

LENGTHS = (75, 1, 33, 33, 16, 90)
"""Two equal ones, one that fills its block, one of a single token; both windows (20 and 24) are exceeded."""
CHUNKS = {None: "whole", 7: "chunks of 7", 0: "random chunks"}


@pytest.fixture
def directory(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Path:
    return checkpoint(request.param)


def in_turn(fixture: str, names: Iterable[str], chunks: Sequence[int | None]) -> pytest.MarkDecorator:
    """Each checkpoint with each way to cut prompts; by default one way, another for the next checkpoint."""
    cases = [
        pytest.param(
            *(name, chunk),
            id=f"{name}-{CHUNKS[chunk]}",
            marks=() if (at + way) % len(chunks) == 0 else pytest.mark.deep,
        )
        for at, name in enumerate(names)
        for way, chunk in enumerate(chunks)
    ]
    return pytest.mark.parametrize((fixture, "chunk"), cases, indirect=[fixture])


def distribution(entry: TokenIdLogprob) -> torch.Tensor:
    """All log-probabilities of one position, from an entry that holds the whole vocabulary."""
    tokens, values = zip(*entry.top, strict=True)
    result = torch.full((VOCABULARY,), torch.nan)
    result[list(tokens)] = torch.tensor(values)
    return result


def check_logprobs(directory: Path, device: str, lengths: tuple[int, ...], chunk: int | None) -> float:
    """Compare every position of prompts of these lengths, run side by side, with the whole prompt in transformers.

    Transformers in fp32 is up to 1.3e-5 away from fp64 itself. So every number must be within 1e-5 of its own, beyond
    what that is off by and its last bit. Returns how far all together are from fp64, over how far transformers' are.
    """
    runner = ModelRunner(directory, blocks=BLOCKS, device=device)
    prompts = [random_prompt(length, seed) for seed, length in enumerate(lengths)]
    requests = [
        request(prompt, str(index), max_tokens=1, prompt_logprobs=VOCABULARY, logprobs=VOCABULARY)
        for index, prompt in enumerate(prompts)
    ]
    ours, theirs, exact = [], [], []
    for prompt, given in zip(prompts, drive(runner, requests, chunk=chunk), strict=True):
        entries = [entry for sampled in given for entry in sampled.prompt_logprobs or []]
        assert [entry.token for entry in entries] == prompt[1:]
        (last,) = given[-1].logprobs or ()
        ours += [distribution(entry) for entry in [*entries, last]]
        theirs.append(oracle_logits(directory, prompt).log_softmax(-1))
        exact.append(exact_logits(directory, prompt).log_softmax(-1))
    found, peer, truth = torch.stack(ours).double(), torch.cat(theirs).double(), torch.cat(exact)
    assert ((found - peer).abs() <= 1e-5 + (peer - truth).abs() + 2**-23 * peer.abs()).all()
    return float((found - truth).norm() / (peer - truth).norm())


@in_turn("directory", ARCHITECTURES, [None, 7, 0])
def test_logprobs_of_a_mixed_batch_equal_transformers(directory: Path, device: str, chunk: int | None) -> None:
    # One prompt more or less tells nothing, but over this many ours are nearer to fp64 on every instruction set.
    assert check_logprobs(directory, device, LENGTHS, chunk) <= 1


@in_turn("directory", ARCHITECTURES, [7, 0, None])
def test_greedy_tokens_equal_transformers(directory: Path, device: str, chunk: int | None) -> None:
    runner = ModelRunner(directory, blocks=BLOCKS, device=device)
    prompts = [random_prompt(length, seed) for seed, length in enumerate(LENGTHS)]
    requests = [request(prompt, str(index), max_tokens=24) for index, prompt in enumerate(prompts)]
    assert tokens_of(runner, requests, chunk=chunk or 64) == [
        oracle_greedy(directory, prompt, 24) for prompt in prompts
    ]


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh"])
def test_logprobs_with_other_activations_equal_transformers(
    checkpoint: Checkpoint, device: str, activation: str
) -> None:
    check_logprobs(checkpoint("llama", hidden_act=activation), device, (40,), None)


def test_logprobs_with_the_heads_of_gemma3_equal_transformers(checkpoint: Checkpoint, device: str) -> None:
    check_logprobs(checkpoint("gemma3", head_dim=256, query_pre_attn_scalar=256), device, (40, 7), None)


@pytest.fixture
def scaled(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> Path:
    """A checkpoint with each RoPE scaling, pretrained for 64 tokens."""
    context: dict[str, Any] = {"max_position_embeddings": 64} if request.param == "dynamic" else {}
    return checkpoint("llama", rope_parameters=ROPE_SCALINGS[request.param], **context)


SCALINGS = pytest.mark.parametrize("scaled", ROPE_SCALINGS, indirect=True)


@in_turn("scaled", ROPE_SCALINGS, [None, 0])
def test_logprobs_beyond_the_pretrained_length_equal_transformers(scaled: Path, device: str, chunk: int | None) -> None:
    # One prompt at a time: transformers keeps the frequencies of the longest one it has seen under "dynamic".
    for length in (40, 100):
        load_oracle.cache_clear()
        load_exact.cache_clear()
        check_logprobs(scaled, device, (length,), chunk)


@pytest.mark.parametrize("architecture", ["qwen2", "smollm3"])
def test_a_stretched_context_equals_that_of_transformers(
    checkpoint: Checkpoint, device: str, architecture: str
) -> None:
    """Before and beyond the length of pretraining."""
    directory = checkpoint(architecture)
    runner = ModelRunner(directory, blocks=BLOCKS, device=device, yarn_factor=4.0)
    theta = runner.config.rope.rope_theta
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT, "rope_theta": theta}
    oracle = checkpoint(architecture, rope_parameters=yarn)
    for length in (40, CONTEXT + 100):
        prompt = random_prompt(length)
        ((sampled,),) = drive(runner, [request(prompt, max_tokens=1, logprobs=VOCABULARY)])
        (last,) = sampled.logprobs or ()
        assert torch.allclose(distribution(last), oracle_logits(oracle, prompt)[-1].log_softmax(-1), atol=2e-5)
        assert tokens_of(runner, [request(prompt, max_tokens=12)]) == [oracle_greedy(oracle, prompt, 12)]


@pytest.mark.parametrize("chunk", [pytest.param(None, marks=pytest.mark.deep), 0], ids=["whole", "random chunks"])
def test_logprobs_of_phi3_with_longrope_equal_transformers(
    checkpoint: Checkpoint, device: str, chunk: int | None
) -> None:
    """Three of four dimensions are rotated, and the length of pretraining is a key of its own."""
    longrope = dict(ROPE_SCALINGS["longrope"])
    pretrained = longrope.pop("original_max_position_embeddings")
    longrope |= {name: longrope[name][:6] for name in ("short_factor", "long_factor")}
    directory = checkpoint("phi3", original_max_position_embeddings=pretrained, rope_parameters=longrope)
    for length in (40, 100):
        load_oracle.cache_clear()
        load_exact.cache_clear()
        check_logprobs(directory, device, (length,), chunk)


@SCALINGS
def test_greedy_tokens_across_the_pretrained_length_equal_transformers(scaled: Path, device: str) -> None:
    runner = ModelRunner(scaled, blocks=BLOCKS, device=device)
    prompts = [random_prompt(length) for length in (56, 90, 10)]
    requests = [request(prompt, str(index), max_tokens=20) for index, prompt in enumerate(prompts)]
    expected = []
    for prompt in prompts:
        load_oracle.cache_clear()
        expected.append(oracle_greedy(scaled, prompt, 20))
    assert tokens_of(runner, requests, chunk=0) == expected


@SCALINGS
def test_a_request_that_lost_its_cache_goes_on_as_before(scaled: Path) -> None:
    """Running prompt and output anew gives the keys of the first time, also where they depend on the length."""
    runner = ModelRunner(scaled, blocks=BLOCKS)
    undisturbed = tokens_of(runner, [request(random_prompt(56), max_tokens=24)])
    preempted = request(random_prompt(56), max_tokens=12)
    drive(runner, [preempted])
    again = request(random_prompt(56), max_tokens=24)
    again.output = list(preempted.output)
    assert tokens_of(runner, [again], chunk=0) == undisturbed


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3", "granite", "mixtral"])
def test_bf16_stays_close_to_fp32(checkpoint: Checkpoint, device: str, architecture: str) -> None:
    """As close as transformers' own bf16, within a factor of two."""
    directory = checkpoint(architecture)
    runner = ModelRunner(directory, blocks=BLOCKS, device=device, precision=Precision("bfloat16"))
    prompt = random_prompt(60)
    [given] = drive(runner, [request(prompt, max_tokens=1, prompt_logprobs=VOCABULARY)])
    ours = torch.stack([distribution(entry) for entry in given[0].prompt_logprobs or []])
    exact = oracle_logits(directory, prompt).log_softmax(-1)[:-1]
    with torch.inference_mode():
        theirs = load_oracle(directory, torch.bfloat16)(torch.tensor([prompt])).logits[0, :-1].float().log_softmax(-1)
    assert (ours - exact).abs().mean() < 2 * (theirs - exact).abs().mean()
