"""Constrained answers against transformers: its own `generate`, with llguidance's masks as a logits processor.

The oracle builds its vocabulary from transformers' tokenizer by llguidance's own adapter, and knows nothing of ours.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from llguidance.numpy import allocate_token_bitmask, apply_token_bitmask_inplace, fill_next_token_bitmask

from engine.grammar.source import GrammarLimits, to_llguidance
from engine.wire import Grammar
from tests.amounts import crossed
from tests.engine.checkpoints import EOS, load_oracle, random_prompt
from tests.engine.grammar import engines
from tests.engine.grammar.conftest import Model
from tests.engine.grammar.engines import VOCABULARY, ask
from tests.engine.grammar.test_constrained import ARITHMETIC, CHOICE, DATE, JSON_SCHEMA

NESTED = Grammar(
    "json_schema",
    json.dumps({"type": "array", "items": {"type": "object", "properties": {"ab": {"maxLength": 3}}}, "maxItems": 4}),
)
LONG = Grammar("regex", "([ab][c-f]){80}")
GRAMMARS = {
    "schema": JSON_SCHEMA,
    "nested": NESTED,
    "regex": DATE,
    "choice": CHOICE,
    "lark": ARITHMETIC,
    "long": LONG,
    "as long": LONG,
}
TOKENS = 60


@cache
def vocabulary(directory: Path) -> LLTokenizer:
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return from_tokenizer(tokenizer, n_vocab=VOCABULARY, eos_token=EOS)


class Masked(transformers.LogitsProcessor):
    """Follows one sequence through a grammar."""

    def __init__(self, matcher: LLMatcher, prompt: int) -> None:
        self._matcher = matcher
        self._seen = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for token in input_ids[0, self._seen :].tolist():
            assert self._matcher.consume_token(token)
        self._seen = input_ids.shape[1]
        bits = allocate_token_bitmask(1, VOCABULARY)
        fill_next_token_bitmask(self._matcher, bits)
        masked = scores.float().numpy().copy()
        apply_token_bitmask_inplace(masked, bits)
        return torch.from_numpy(masked)


@cache
@torch.inference_mode()
def oracle(directory: Path, grammar: Grammar, prompt: tuple[int, ...]) -> list[int]:
    matcher = LLMatcher(vocabulary(directory), to_llguidance(grammar, GrammarLimits()), log_level=0)
    output = load_oracle(directory).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=TOKENS,
        eos_token_id=EOS,
        pad_token_id=0,
        logits_processor=transformers.LogitsProcessorList([Masked(matcher, len(prompt))]),
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize(("family", "how"), crossed(["byte-level", "llama2"], ["alone", "chunks", "preempt", "cancel"]))
def test_greedy_answers_are_those_of_transformers(family: str, how: str, model: Model) -> None:
    directory = model(family)
    prompts = {name: random_prompt(8 + index, index) for index, name in enumerate(GRAMMARS)}
    config = {
        "chunks": {"step_tokens": 8, "max_running": 4},
        "preempt": {"blocks": 6, "max_running": 4},
    }.get(how, {"blocks": 32})
    with engines.engine(directory, **config) as engine:
        engine.compile(*GRAMMARS.values())
        requests = [
            ask(name, prompts[name], grammar, temperature=0.0, max_tokens=TOKENS) for name, grammar in GRAMMARS.items()
        ]
        if how == "alone":
            transcripts = {request.id: engine.serve(request)[request.id] for request in requests}
        elif how == "cancel":
            engine.core.add(ask("decoy", prompts["schema"], NESTED, max_tokens=50))
            for _ in range(4):
                engine.core.step()
            engine.core.cancel("decoy")
            engine.core.add(ask("waiting decoy", prompts["schema"], Grammar("regex", "never compiled")))
            engine.core.cancel("waiting decoy")
            for output in engine.core.step():
                assert output.finish == "cancelled"
            transcripts = engine.serve(*requests)
        else:
            transcripts = engine.serve(*requests)
        assert (engine.core.load().preemptions > 0) == (how == "preempt")
    for name, grammar in GRAMMARS.items():
        expected = oracle(directory, grammar, tuple(prompts[name]))
        transcript = transcripts[name]
        # Where nothing may follow, only an end-of-sequence token could: here the answer ends without it.
        end = [EOS] if transcript.grammar_complete else []
        assert transcript.tokens + end == expected
        assert transcript.finish == ("stop" if expected[-1] == EOS else "length")
