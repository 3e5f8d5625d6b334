"""The engine against transformers and peft: the same tokens and log-probabilities, whatever else goes on.

Models are tiny, random and in fp32; see `checkpoints.py`. Each token of a greedy request must be transformers' most
likely one; sampled ones, for which there is no oracle token by token, must equal themselves alone in an engine with
nothing else in it. So must all requests of models in fewer bits, to the bit (`QuantizedCheckpoint`).

Of the pairs of features, of larger combinations, of architectures and of fewer bits a part runs by default, in which
each occurs; `make test-deep` runs the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.core import EngineCore, SchedulerConfig
from engine.wire import Generate, SamplingParams, TokenIdLogprob
from kernels import library
from tests.amounts import DEEP, some_of
from tests.engine.checkpoints import ARCHITECTURES, ROPE_SCALINGS, oracle_greedy, random_prompt
from tests.engine.composition import (
    CUTS,
    FEATURES,
    FEWER_BITS,
    FEWER_BITS_OF_BOTH,
    LARGER,
    LARGER_IN_FEWER_BITS,
    PAIRS,
    Scenario,
    Transcript,
    serve,
)
from tests.engine.oracle_checkpoints import Numbers, OracleCheckpoint, QuantizedCheckpoint

SCALED = ["linear", "yarn", "llama3"]
"""RoPE scalings whose frequencies do not depend on the length, as the oracle without a cache needs it."""
to_the_bit = pytest.mark.skipif(library.cpu is None, reason="torch's products depend on how many rows they have")


EACH_ONCE = len(FEATURES) + 1
"""Steps through pairs of features and fewer bits that meet each of both."""
ALL_AT_ONCE = {"llama-tied", "gemma3", "phi3", "olmo3", "mixtral"}
"""Architectures that differ most; by default the others serve one request at a time."""
Checkpoints = Callable[..., OracleCheckpoint]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    """`checkpoints("llama", **config_overrides)`: one with all that can be served on it, made once per session.

    Served in fewer bits if `numbers` say so.
    """
    built: dict[str, OracleCheckpoint] = {}

    def get(architecture: str = "llama", numbers: Numbers | None = None, **overrides: Any) -> OracleCheckpoint:
        key = repr((architecture, numbers, overrides))
        if key not in built:
            if numbers is not None:
                built[key] = QuantizedCheckpoint(get(architecture, **overrides), numbers)
            else:
                like = next(iter(built.values()), None)
                built[key] = OracleCheckpoint(tmp_path_factory.mktemp(architecture), architecture, like, **overrides)
        return built[key]

    yield get
    for checkpoint in built.values():
        checkpoint.close()


def alone(checkpoint: OracleCheckpoint, request: Generate, device: str) -> Transcript:
    """What a request gets from an engine that does nothing else."""
    features = [name for name, on in (("adapters", request.adapter), ("grammar", request.grammar)) if on]
    scenario = Scenario(features, checkpoint)
    runner = checkpoint.runner(scenario.blocks, device)
    with scenario.core(runner, runner, device) as (core, _):
        return serve(core, [(0, request)])[request.id]


def assert_equals_oracle(checkpoint: OracleCheckpoint, request: Generate, transcript: Transcript, device: str) -> None:
    sampling, adapter = request.sampling, request.adapter
    if sampling.temperature == 0:
        expected = checkpoint.greedy(request, transcript.tokens)
    else:
        expected = alone(checkpoint, request, device).tokens
    assert transcript.tokens == expected
    if sampling.logprobs is None and sampling.prompt_logprobs is None:
        return
    prompt, tolerance = len(request.prompt), checkpoint.tolerance(adapter)
    reference = checkpoint.logprobs(adapter, [*request.prompt, *transcript.tokens])
    if sampling.logprobs is not None:
        assert [entry.token for entry in transcript.logprobs] == transcript.tokens
        assert_close(transcript.logprobs, reference[prompt - 1 : -1], sampling.logprobs, tolerance)
    if sampling.prompt_logprobs is not None:
        first, *entries = transcript.prompt_logprobs
        assert first is None
        assert [entry and entry.token for entry in entries] == request.prompt[1:]
        scored = [entry for entry in entries if entry]
        assert_close(scored, reference[: prompt - 1], sampling.prompt_logprobs, tolerance)


def assert_close(entries: list[TokenIdLogprob], reference: torch.Tensor, top: int, tolerance: float) -> None:
    """Chosen and most likely tokens have the reference's log-probabilities [len(entries), vocabulary]."""
    for entry, row in zip(entries, reference, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token].item(), abs=tolerance)
        expected = row.topk(top).values.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(expected, abs=tolerance)
        assert [row[token].item() for token, _ in entry.top] == pytest.approx(expected, abs=tolerance)


def unless(deep: bool, *case: object) -> object:
    """A case that runs by default unless it is deep."""
    return pytest.param(*case, marks=pytest.mark.deep if deep else ())


def check(checkpoint: OracleCheckpoint, features: Iterable[str], device: str) -> None:
    scenario = Scenario(features, checkpoint)
    transcripts = scenario.run(device)
    for request in scenario.requests:
        assert_equals_oracle(checkpoint, request, transcripts[request.id], device)


@pytest.mark.parametrize("architecture", [unless(name in ALL_AT_ONCE, name) for name in ARCHITECTURES])
def test_one_request_at_a_time(architecture: str, checkpoints: Checkpoints, device: str) -> None:
    check(checkpoints(architecture), [], device)


@pytest.mark.parametrize("architecture", [unless(name not in ALL_AT_ONCE, name) for name in ARCHITECTURES])
def test_everything_at_once(architecture: str, checkpoints: Checkpoints, device: str) -> None:
    check(checkpoints(architecture), FEATURES, device)


@pytest.mark.deep
@pytest.mark.parametrize("scaling", SCALED)
def test_everything_at_once_with_scaled_rope(scaling: str, checkpoints: Checkpoints, device: str) -> None:
    check(checkpoints("llama", rope_parameters=ROPE_SCALINGS[scaling]), FEATURES, device)


@pytest.mark.parametrize("scaling", [unless(scaling != "yarn", scaling) for scaling in SCALED])
def test_prompts_in_pieces_with_scaled_rope(scaling: str, checkpoints: Checkpoints, device: str) -> None:
    check(
        checkpoints("llama", rope_parameters=ROPE_SCALINGS[scaling]), ["batch", "chunks", "prefix", "logprobs"], device
    )


@pytest.mark.parametrize("features", some_of([(pair,) for pair in PAIRS], 4), ids=" and ".join)
def test_two_features_together(features: tuple[str, str], checkpoints: Checkpoints, device: str) -> None:
    check(checkpoints("llama"), features, device)


@pytest.mark.parametrize("features", some_of([(features,) for features in LARGER], 4), ids=", ".join)
def test_more_features_together(features: tuple[str, ...], checkpoints: Checkpoints, device: str) -> None:
    check(checkpoints("llama"), features, device)


@given(cuts=st.fixed_dictionaries({}, optional={id: st.integers(1, 40) for id in CUTS}))
@settings(max_examples=50 if DEEP else 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_may_be_cut_anywhere(checkpoints: Checkpoints, device: str, cuts: dict[str, int]) -> None:
    """Wherever it is, all that follows is the same."""
    scenario = Scenario([feature for feature in FEATURES if feature != "preempt"], checkpoints("llama"), cuts)
    transcripts = scenario.run(device)
    for request in scenario.requests:
        assert_equals_oracle(scenario.checkpoint, request, transcripts[request.id], device)


@to_the_bit
@pytest.mark.parametrize(("bits", "feature"), some_of([*product(FEWER_BITS, FEATURES)], EACH_ONCE))
def test_a_feature_with_fewer_bits(bits: str, feature: str, checkpoints: Checkpoints) -> None:
    check(checkpoints("llama", FEWER_BITS[bits]), [feature], "cpu")


@to_the_bit
@pytest.mark.parametrize(("bits", "features"), some_of(LARGER_IN_FEWER_BITS, 4))
def test_more_features_with_fewer_bits(bits: str, features: tuple[str, ...], checkpoints: Checkpoints) -> None:
    check(checkpoints("llama", FEWER_BITS[bits]), features, "cpu")


@to_the_bit
@pytest.mark.parametrize(("architecture", "bits"), some_of([*zip(ARCHITECTURES, cycle(FEWER_BITS_OF_BOTH))], 8))
def test_everything_at_once_with_fewer_bits(architecture: str, bits: str, checkpoints: Checkpoints) -> None:
    check(checkpoints(architecture, FEWER_BITS[bits]), FEATURES, "cpu")


@pytest.mark.parametrize("bits", FEWER_BITS)
def test_fewer_bits_make_another_model(bits: str, checkpoints: Checkpoints) -> None:
    text = random_prompt(60)
    plain = checkpoints("llama")
    for adapter in (None, *plain.adapters):
        found = checkpoints("llama", FEWER_BITS[bits]).logprobs(adapter, text)
        assert not torch.allclose(found.float(), plain.logprobs(adapter, text), atol=1e-3)


def test_a_prompt_beyond_the_sliding_window_in_chunks(checkpoints: Checkpoints, device: str) -> None:
    checkpoint = checkpoints("mistral")
    runner = checkpoint.runner(32, device)
    core = EngineCore(runner, runner.info, SchedulerConfig(blocks=32, step_tokens=50, max_running=4))
    greedy = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    requests = [Generate(str(length), random_prompt(length), greedy) for length in (130, 24, 25, 97)]
    transcripts = serve(core, [(0, request) for request in requests])
    for request in requests:
        assert_equals_oracle(checkpoint, request, transcripts[request.id], device)


def test_the_same_seed_gives_the_same_tokens_in_any_company(checkpoints: Checkpoints, device: str) -> None:
    checkpoint = checkpoints("llama")
    runner = checkpoint.runner(32, device)
    sampling = SamplingParams(max_tokens=24, temperature=1.0, seed=42, ignore_eos=True)
    request = Generate("same", random_prompt(12), sampling)
    expected = alone(checkpoint, request, device).tokens
    for others in range(1, 8, 2):
        core = EngineCore(runner, runner.info, SchedulerConfig(blocks=32, step_tokens=16, max_running=8))
        company = [Generate(str(index), random_prompt(3 * index + 1), sampling) for index in range(others)]
        transcripts = serve(core, [*((index, other) for index, other in enumerate(company)), (2, request)])
        assert transcripts["same"].tokens == expected


def test_different_seeds_give_different_tokens(checkpoints: Checkpoints, device: str) -> None:
    checkpoint = checkpoints("llama")
    answers = {
        tuple(
            alone(
                checkpoint,
                Generate("a", random_prompt(12), SamplingParams(max_tokens=12, temperature=1.0, seed=seed)),
                device,
            ).tokens
        )
        for seed in range(4)
    }
    assert len(answers) == 4


def test_an_answer_ends_where_transformers_ends_it(checkpoints: Checkpoints, device: str) -> None:
    """The model's own end-of-sequence token stops it: the oracle's greedy tokens up to the first one."""
    checkpoint = checkpoints("llama")
    prompt = random_prompt(10)
    reference = oracle_greedy(checkpoint.directory, prompt, 20)
    stop = reference[7]
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
    transcript = alone(checkpoint, Generate("a", prompt, sampling), device)
    assert transcript.tokens == reference[: reference.index(stop) + 1]
    assert transcript.finish == "stop"
