"""A sentence in a long text is found as transformers finds it, in a real model and up to its whole context."""

from __future__ import annotations

import os
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.quality_reference import config_of, values
from engine.checkpoint.opening import open_checkpoint
from engine.execution.runner import ModelRunner
from engine.text.processor import TextProcessor
from tests.engine.driver import request, tokens_of

ROOT = Path(__file__).parents[3]
FOLDER = os.environ.get("ROUNDHOUSE_TEST_MODELS")
FILES = sorted(Path(FOLDER).glob("qwen2.5-coder-0.5b*.gguf")) if FOLDER else []
NEEDLE = "The code word of the night shift is halyard-7306."
QUESTION = "What is the code word of the night shift? Answer with the code word only."
PRETRAINED = 32_768
ANSWER = 12
"""Tokens of an answer."""
pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not FILES, reason="ROUNDHOUSE_TEST_MODELS names no folder with qwen2.5-coder-0.5b*.gguf"),
]


def prompt_of(text: TextProcessor, length: int, depth: float) -> list[int]:
    """A chat of about `length` tokens: this project's documents, with the needle at a depth from 0 to 1."""
    documents = "\n\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    words = documents.split(" ")

    def prompt(count: int) -> list[int]:
        cut = int(count * depth)
        hay = " ".join([*words[:cut], NEEDLE, *words[cut:count]])
        return text.encode_chat([{"role": "user", "content": f"{hay}\n\n{QUESTION}"}])

    return prompt(bisect_right(range(min(len(words), length)), length, key=lambda count: len(prompt(count))) - 1)


@cache
def oracle(path: Path) -> Any:
    """transformers in fp32 with the numbers that the file's blocks stand for."""
    checkpoint = open_checkpoint(path)
    config = config_of(checkpoint)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict({stored.name: values(stored) for stored in checkpoint.tensors()}, assign=True)
    return model.eval()


@torch.inference_mode()
def answer_of(path: Path, prompt: list[int], rope: dict[str, Any]) -> list[int]:
    model = oracle(path)
    model.config.rope_parameters = rope
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        repetition_penalty=1.0,
        max_new_tokens=ANSWER,
        eos_token_id=-1,
        pad_token_id=0,
    )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize(
    ("length", "factor"),
    [(4096, None), (8192, None), (16_384, None), (PRETRAINED - ANSWER, None), (4096, 4.0), (40_000, 4.0)],
)
def test_a_needle_is_found_as_transformers_finds_it(length: int, factor: float | None) -> None:
    path = FILES[0]
    text = TextProcessor.from_path(path)
    prompt = prompt_of(text, length, 0.4)
    assert len(prompt) > 0.98 * length
    runner = ModelRunner(path, blocks=len(prompt) // 16 + 2, yarn_factor=factor)
    theta = runner.config.rope.rope_theta
    yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": PRETRAINED, "rope_theta": theta}
    expected = answer_of(path, prompt, {"rope_type": "default", "rope_theta": theta} if factor is None else yarn)
    (answer,) = tokens_of(runner, [request(prompt, max_tokens=ANSWER)], chunk=512, blocks=runner.blocks)
    assert answer == expected
