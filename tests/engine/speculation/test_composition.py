"""Drafts beside adapters and grammars; everything else is in the matrix of `tests/engine/test_oracle.py`."""

from __future__ import annotations

import json
import threading

import pytest

from engine.adapters.residency import ResidencyConfig
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.draft_model import DraftModel
from engine.execution.runner import ModelRunner
from engine.speculation.speculator import Speculator
from engine.text.processor import TextProcessor
from engine.wire import Generate, SamplingParams
from tests.amounts import some_of
from tests.engine.adapters.collection import bank_of
from tests.engine.adapters.conftest import Collections, collections
from tests.engine.adapters.test_engine_oracle import KINDS, Versions
from tests.engine.checkpoints import random_prompt, write_similar
from tests.engine.composition import Transcript
from tests.engine.grammar import engines
from tests.engine.grammar.conftest import Model, model
from tests.engine.grammar.engines import ask
from tests.engine.grammar.test_constrained import ARITHMETIC, CHOICE, DATE, JSON_SCHEMA

__all__ = ["collections", "model"]

TIMEOUT = 60


def test_adapted_requests_equal_peft_s_with_drafts_of_the_base_model(collections: Collections, device: str) -> None:
    """The draft model knows no adapter: where one changes much, drafts are wrong and tokens right."""
    versions = Versions(collections("llama"), KINDS["llama"])
    base = versions.collection.base
    runner = ModelRunner(base, blocks=200, device=device, adapters=versions)
    model = DraftModel(ModelRunner(base, blocks=200, device=device))
    speculator = Speculator(ngrams=True, model=model, tokens=4, adaptive=False)
    core = EngineCore(
        runner,
        runner.info,
        SchedulerConfig(200, step_tokens=64, max_running=8),
        EngineFeatures(bank=bank_of(runner), residency=ResidencyConfig(share=0.6), speculator=speculator),
    )
    woken = threading.Semaphore(0)
    core.wake = woken.release
    shared = random_prompt(20)
    asked = {}
    for index, version in enumerate([*versions.kind_of, None, *versions.kind_of]):
        prompt = shared + random_prompt(1 + index, seed=index)
        sampling = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
        core.add(Generate(str(index), prompt, sampling, adapter=version))
        asked[str(index)] = None if version is None else versions.kind_of[version], prompt
    heard = {id: Transcript() for id in asked}
    while not core.idle:
        if core.stalled:
            assert woken.acquire(timeout=TIMEOUT)
        for output in core.step():
            heard[output.id].add(output)
    core.check_integrity()
    core.close()
    for id, (kind, prompt) in asked.items():
        assert heard[id].tokens == versions.collection.greedy(kind, prompt, 30), kind
    assert 0 < speculator.accepted < speculator.drafted


@pytest.mark.parametrize("drafter", some_of([("auto",), ("ngram",), ("draft",)], 3))
def test_answers_under_a_grammar_are_the_same_with_drafts(drafter: str, model: Model) -> None:
    directory = model()
    grammars = [JSON_SCHEMA, DATE, CHOICE, ARITHMETIC, None]
    # A prompt that spells what the grammars want, so that there is something to find in it.
    text = json.dumps({"name": "red", "sizes": [1, 1, 1], "done": True}) + "2024-01-01 2024-01-01 1111+1111+1111"
    prompt = TextProcessor.from_path(directory).encode(text)
    requests = [
        ask(str(seed), prompt, grammars[seed % 5], seed=seed, temperature=0.8 * (seed % 2), max_tokens=60)
        for seed in range(15)
    ]
    with engines.engine(directory) as engine:
        engine.compile(*(grammar for grammar in grammars if grammar))
        expected = engine.serve(*requests)
    drafts = DraftModel(engines.runner_for(write_similar(directory))) if drafter != "ngram" else None
    speculator = Speculator(ngrams=drafter != "draft", model=drafts, tokens=4, adaptive=False)
    with engines.engine(directory, speculator=speculator) as engine:
        engine.compile(*(grammar for grammar in grammars if grammar))
        found = engine.serve(*requests)
    for id, transcript in expected.items():
        assert (found[id].tokens, found[id].finish) == (transcript.tokens, transcript.finish)
    assert speculator.accepted > 0
