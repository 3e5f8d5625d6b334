"""The adapters that come with Roundhouse: they are what their page says, and answer by the engine as by peft."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open

from deploy.adapters.base import load_base
from deploy.adapters.evaluate import README, read_figures, table
from deploy.adapters.table import base_file, shipped
from engine.text.processor import TextProcessor
from gateway.models.store import ModelStoreError
from tests.engine.adapters.collection import Collection, ask
from tests.engine.driver import request, tokens_of

KNOWN = shipped()
TOKENS = 16


@pytest.fixture(scope="module")
def base() -> Path:
    try:
        return base_file("smollm2-135m")
    except ModelStoreError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", KNOWN)
def test_an_adapter_is_small_and_all_of_it_is_bfloat16(name: str) -> None:
    folder = KNOWN[name].folder
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 5_100_000
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in [*file.keys()]} == {"BF16"}


def test_every_adapter_keeps_to_its_form_and_the_base_does_not() -> None:
    figures = read_figures()
    assert figures.keys() == KNOWN.keys()
    for each in figures.values():
        assert each.in_format >= 0.9 and each.base_in_format <= 0.2


def test_the_page_shows_the_figures() -> None:
    assert table(read_figures()) in README.read_text("utf-8")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Has torch compute in one thread: several wait for each other at every step, on a busy machine for minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompts(text: TextProcessor) -> dict[str, list[int]]:
    """Of each adapter one question that is graded."""
    rng = random.Random(1)
    chosen = {name: rng.choice(adapter.task.held_out()).question for name, adapter in KNOWN.items()}
    return {name: text.encode_chat([{"role": "user", "content": question}]) for name, question in chosen.items()}


# peft asks transformers for a name that is about to go.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_the_engine_answers_as_peft_does_on_the_dequantised_base(base: Path, one_thread: None) -> None:
    """In one batch, with the base's own answer beside the adapters'."""
    text = TextProcessor.from_path(base)
    asked = prompts(text)
    first = next(iter(asked.values()))
    requests = [ask(name, prompt, max_tokens=TOKENS) for name, prompt in asked.items()]
    requests.append(request(first, max_tokens=TOKENS))
    runner = Collection(base, {name: KNOWN[name].folder for name in asked}).runner(*asked, dtype="float32")
    ours = [up_to_end(tokens, text) for tokens in tokens_of(runner, requests)]
    model = load_base(base)
    assert ours[-1] == greedy(model, first)
    for name, said in zip(asked, ours[:-1], strict=True):
        tuned = PeftModel.from_pretrained(model, KNOWN[name].folder).eval()
        assert said == greedy(tuned, asked[name]), name
        model = tuned.unload()


def up_to_end(tokens: list[int], text: TextProcessor) -> list[int]:
    end = next((at + 1 for at, token in enumerate(tokens) if token in text.eos_token_ids), len(tokens))
    return tokens[:end]


def greedy(model: Any, prompt: list[int]) -> list[int]:
    said = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=TOKENS,
        do_sample=False,
    )
    tokens: list[int] = said[0, len(prompt) :].tolist()
    return tokens
