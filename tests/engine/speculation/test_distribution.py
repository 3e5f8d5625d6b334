"""Sampled tokens follow the model's distribution, whatever was drafted: counted, against transformers' logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.draft_model import DraftModel
from engine.execution.runner import ModelRunner
from engine.speculation.speculator import Speculator
from engine.wire import Generate, SamplingParams
from tests.engine.checkpoints import oracle_logits, write_similar
from tests.engine.composition import serve
from tests.engine.conftest import Checkpoint
from tests.engine.execution.test_sampling import chi_square_limit

VOCABULARY = 8
REQUESTS = 4000
PROMPT = [3, 4, 5, 6, 7, 3, 5, 4, 6, 3, 7, 4, 3, 6, 5, 7, 6, 4, 7, 5, 3]
"""Every pair of its tokens stands in it, so that n-grams have a guess after most first tokens."""


def expected_counts(directory: Path) -> torch.Tensor:
    """How often the second and third token of an answer are each pair, [VOCABULARY, VOCABULARY]."""
    joint = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    first = oracle_logits(directory, PROMPT)[-1].double().softmax(-1)
    for token, probability in enumerate(first):
        second = oracle_logits(directory, [*PROMPT, token])[-1].double().softmax(-1)
        for follower, conditional in enumerate(second):
            third = oracle_logits(directory, [*PROMPT, token, follower])[-1].double().softmax(-1)
            joint[follower] += probability * conditional * third
    return REQUESTS * joint


@pytest.mark.parametrize("drafter", ["ngram", "draft"])
def test_pairs_of_tokens_from_one_step_are_as_frequent_as_the_model_says(
    drafter: str, checkpoint: Checkpoint, device: str
) -> None:
    directory = checkpoint("llama", vocab_size=VOCABULARY, initializer_range=0.05)
    runner = ModelRunner(directory, blocks=256, device=device)
    model = DraftModel(ModelRunner(write_similar(directory), blocks=256, device=device)) if drafter == "draft" else None
    speculator = Speculator(ngrams=drafter == "ngram", model=model, tokens=2, adaptive=False)
    config = SchedulerConfig(256, max_running=64, max_waiting=REQUESTS)
    core = EngineCore(runner, runner.info, config, EngineFeatures(speculator=speculator))
    sampling = [SamplingParams(max_tokens=4, seed=seed, ignore_eos=True) for seed in range(REQUESTS)]
    requests = [Generate(str(seed), PROMPT, params) for seed, params in enumerate(sampling)]
    transcripts = serve(core, [(0, request) for request in requests])
    counts = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    for transcript in transcripts.values():
        counts[transcript.tokens[1], transcript.tokens[2]] += 1
    expected = expected_counts(directory)
    assert float(expected.min()) > 5, "too few draws for a chi-square test"
    assert float(((counts - expected) ** 2 / expected).sum()) < chi_square_limit(VOCABULARY**2)
    assert 100 < speculator.accepted < speculator.drafted
