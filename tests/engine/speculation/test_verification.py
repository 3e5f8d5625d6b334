"""A step confirms of a draft exactly what decoding one by one would have said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.runner import ModelRunner
from engine.speculation.verification import confirmed
from tests.amounts import some_of
from tests.engine.checkpoints import ARCHITECTURES, VOCABULARY, oracle_greedy, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.driver import BLOCKS, drive, request
from tests.engine.speculation.drafts import partly_right

TOKENS = st.lists(st.integers(0, 3), max_size=6)

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "seed": 3},
    "repetition penalty": {"repetition_penalty": 1.3},
    "presence and frequency penalty": {
        "temperature": 0.8,
        "seed": 1,
        "presence_penalty": 0.7,
        "frequency_penalty": 1.5,
    },
    "bias and min_tokens": {"logit_bias": {7: 4.0, 8: 4.0}, "stop_token_ids": (7, 8), "min_tokens": 9, "seed": 2},
}


@given(TOKENS, TOKENS)
def test_a_draft_is_right_up_to_its_first_difference(draft: list[int], drawn: list[int]) -> None:
    count = confirmed(draft, drawn)
    assert draft[:count] == drawn[:count]
    assert count == min(len(draft), len(drawn)) or draft[count] != drawn[count]


@pytest.fixture
def directory(checkpoint: Checkpoint) -> Path:
    return checkpoint("llama")


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_drafts_change_no_token(sampling: dict[str, Any], directory: Path, device: str) -> None:
    runner = ModelRunner(directory, blocks=BLOCKS, device=device)
    prompts = [random_prompt(length) for length in (3, 18, 40)]
    plain, drafted = (
        [request(prompt, str(index), max_tokens=24, **sampling) for index, prompt in enumerate(prompts)]
        for _ in range(2)
    )
    drive(runner, plain)
    truth = {one.id: partly_right(one.output, VOCABULARY, seed=int(one.id)) for one in plain}
    given = drive(runner, drafted, draft=lambda one: truth[one.id](one))
    assert [one.output for one in drafted] == [one.output for one in plain]
    lengths = {len(sampled.tokens) for each in given for sampled in each}
    assert len(lengths) > 3, "the drafts were never right, or never wrong"


@pytest.mark.parametrize("architecture", some_of([(architecture,) for architecture in ARCHITECTURES], 3))
def test_greedy_tokens_equal_transformers(architecture: str, checkpoint: Checkpoint, device: str) -> None:
    directory = checkpoint(architecture)
    runner = ModelRunner(directory, blocks=BLOCKS, device=device)
    requests = [request(random_prompt(length), str(length), max_tokens=20) for length in (2, 21, 50)]
    truth = {one.id: oracle_greedy(directory, one.prompt, 20) for one in requests}
    drafts = {id: partly_right(tokens, VOCABULARY, seed=len(id)) for id, tokens in truth.items()}
    drive(runner, requests, chunk=0, draft=lambda one: drafts[one.id](one))
    assert {one.id: one.output for one in requests} == truth


def test_logprobs_come_for_every_confirmed_token(directory: Path, device: str) -> None:
    runner = ModelRunner(directory, blocks=BLOCKS, device=device)
    wanted = {"logprobs": 3, "prompt_logprobs": 2, "max_tokens": 16}
    plain, drafted = request(random_prompt(12), **wanted), request(random_prompt(12), **wanted)
    [expected] = drive(runner, [plain])
    [given] = drive(runner, [drafted], draft=partly_right(plain.output, VOCABULARY))
    assert len(given) < len(expected)
    for field in ("logprobs", "prompt_logprobs"):
        one, other = (
            [entry for sampled in each for entry in getattr(sampled, field) or []] for each in (expected, given)
        )
        assert [entry.token for entry in one] == [entry.token for entry in other]
        assert [entry.logprob for entry in one] == pytest.approx([entry.logprob for entry in other], abs=1e-5)
    assert all(len(sampled.tokens) == len(sampled.logprobs or []) for sampled in given)


def test_what_a_wrong_draft_wrote_is_never_seen(directory: Path, device: str) -> None:
    """Every draft is wrong from its first token on: each step still gains the model's own token."""
    runner = ModelRunner(directory, blocks=BLOCKS, device=device)
    truth = oracle_greedy(directory, random_prompt(15), 20)
    one = request(random_prompt(15), max_tokens=20)
    [given] = drive(
        runner, [one], draft=lambda one: [(token + 1) % VOCABULARY for token in truth[len(one.output) :][:5]]
    )
    assert one.output == truth
    assert {len(sampled.tokens) for sampled in given} == {1}
