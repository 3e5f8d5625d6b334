"""Engines that draft, against transformers and against themselves without drafts: the same tokens, in fewer steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.draft_model import DraftModel
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.speculation.speculator import Speculator
from engine.wire import Generate, SamplingParams
from tests.engine.checkpoints import oracle_greedy, random_prompt, write_similar
from tests.engine.composition import Transcript, serve
from tests.engine.conftest import Checkpoint

DRAFTERS = ["ngram", "draft", "auto"]
BLOCKS = 32

# Biases that leave a few tokens, so that a random model repeats itself when it is sampled.
FEW = dict.fromkeys(range(20, 26), 8.0)
SAMPLED: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "logit_bias": FEW}
PENALISED = SAMPLED | {"repetition_penalty": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.2}


@cache
def runner_for(directory: Path, device: str) -> ModelRunner:
    return ModelRunner(directory, blocks=BLOCKS, device=device, precision=Precision("float32"))


def speculator_for(drafter: str, draft: Path, device: str, **how: Any) -> Speculator:
    model = DraftModel(runner_for(draft, device)) if drafter != "ngram" else None
    return Speculator(ngrams=drafter != "draft", model=model, **{"tokens": 5, "adaptive": False} | how)


def core_for(directory: Path, device: str, speculator: Speculator | None = None, **config: int) -> EngineCore:
    runner = runner_for(directory, device)
    sizes = {"blocks": BLOCKS, "step_tokens": 64, "max_running": 4} | config
    return EngineCore(runner, runner.info, SchedulerConfig(**sizes), EngineFeatures(speculator=speculator))


@pytest.fixture
def target(checkpoint: Checkpoint) -> Path:
    return checkpoint("llama")


@pytest.fixture
def similar(target: Path) -> Path:
    return write_similar(target)


def requests(**sampling: Any) -> list[Generate]:
    """Prompts that repeat themselves, so that n-grams have something to find."""
    made = []
    for index, length in enumerate((3, 12, 25, 40, 7, 18)):
        prompt = random_prompt(length, seed=index) * 2
        fields = {"max_tokens": 30 + index, "ignore_eos": True, "seed": index, "temperature": 0.0} | sampling
        made.append(Generate(str(index), prompt, SamplingParams(**fields)))
    return made


def together(core: EngineCore, asked: list[Generate]) -> dict[str, Transcript]:
    return serve(core, [(2 * index, request) for index, request in enumerate(asked)])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_tokens_equal_transformers(drafter: str, target: Path, similar: Path, device: str) -> None:
    speculator = speculator_for(drafter, similar, device)
    transcripts = together(core_for(target, device, speculator), asked := requests())
    for request in asked:
        expected = oracle_greedy(target, request.prompt, request.sampling.max_tokens)
        assert transcripts[request.id].tokens == expected
    assert 0 < speculator.accepted < speculator.drafted


@pytest.mark.parametrize("sampling", [SAMPLED, PENALISED], ids=["sampled", "penalised"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_sampled_tokens_equal_those_without_drafts(
    drafter: str, sampling: dict[str, Any], target: Path, similar: Path, device: str
) -> None:
    speculator = speculator_for(drafter, similar, device)
    asked = requests(**sampling)
    drafted = together(core_for(target, device, speculator), asked)
    plain = together(core_for(target, device), asked)
    assert {id: one.tokens for id, one in drafted.items()} == {id: one.tokens for id, one in plain.items()}
    assert 0 < speculator.accepted < speculator.drafted


def test_a_draft_model_that_equals_the_model_is_always_right(target: Path, device: str) -> None:
    """Greedy and sampled, with penalties: its guesses are the draws of the target."""
    for sampling in ({}, PENALISED):
        speculator = speculator_for("draft", target, device)
        # A runner of its own: the draft model's KV must not be the target's.
        speculator._model = DraftModel(
            ModelRunner(target, blocks=BLOCKS, device=device, precision=Precision("float32"))
        )
        together(core_for(target, device, speculator), requests(**sampling))
        assert speculator.drafted > 100
        assert speculator.accepted == speculator.drafted
