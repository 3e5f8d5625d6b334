"""The shipped model and its adapters load with the usual libraries and answer what they were trained for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from deploy.demo.styles import CLOSING, OPENING, STYLES
from deploy.demo.tokenizer import lesson
from deploy.demo.train import ADAPTERS, MODEL, NAME, load_tokenizer
from gateway.config.default_pools import own_pools
from gateway.processes.demo import ADAPTERS as REGISTERED

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is Roundhouse?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How do I change the port?"},
        {"role": "assistant", "content": "Later."},
        {"role": "user", "content": "Hi"},
    ],
    [{"role": "user", "content": "naïve 中文 \U0001f600 \t x" * 3}],
]


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


def answer(model: Any, tokenizer: Any, *said: str) -> str:
    """Return the greedy answer to the last of a user's and the model's messages."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said)]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**prompt, max_new_tokens=120, do_sample=False)
    return str(tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_weights_stay_small() -> None:
    assert size(MODEL) < 5_000_000
    assert size(ADAPTERS) < 1_200_000


def test_it_is_what_is_served_without_others() -> None:
    [pool] = own_pools()
    assert (pool.name, pool.model) == (NAME, str(MODEL))
    assert REGISTERED.keys() == STYLES.keys() == {path.name for path in ADAPTERS.iterdir()}


@pytest.mark.parametrize("messages", CHATS)
def test_the_chat_template_is_what_training_used(messages: list[dict[str, str]], tokenizer: Any) -> None:
    prompt = tokenizer.apply_chat_template(messages, return_dict=False)
    assert prompt == lesson(messages, load_tokenizer()).ids


def test_an_unknown_role_is_refused(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="unsupported role"):
        tokenizer.apply_chat_template([{"role": "oracle", "content": "x"}])


def test_every_string_survives_the_tokenizer() -> None:
    bare = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    for text in (*(chr(code) for code in range(1, 0x250)), "naïve 中文 \U0001f600", " a  b\n\tc ", "1234567890"):
        assert bare.decode(bare.encode(text).ids) == text
    assert len(bare.encode("1234567890").ids) == 10


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is Roundhouse?", "gateway"),
        ("How do I get a real model?", "roundhouse models pull"),
        pytest.param("How do I change the port?", "PORT=9000", marks=pytest.mark.deep),
        pytest.param("Who are you?", "stand-in", marks=pytest.mark.deep),
        ("What is the capital of France?", "do not know"),
        pytest.param("Good morning", "morning", marks=pytest.mark.deep),
    ],
)
def test_it_answers_what_it_knows(question: str, expected: str, model: Any, tokenizer: Any) -> None:
    assert expected in answer(model, tokenizer, question)


def test_it_answers_the_last_question_of_a_long_chat(model: Any, tokenizer: Any) -> None:
    said: list[str] = []
    for text in ("Hello", "What is Roundhouse?", "Tell me a joke", "Good morning"):
        said.append(text)
        said.append(answer(model, tokenizer, *said))
    assert "PORT=9000" in answer(model, tokenizer, *said, "How do I change the port?")


# peft still asks transformers for a deprecated name.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", STYLES)
def test_an_adapter_answers_in_its_style(name: str, tokenizer: Any) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    said = answer(PeftModel.from_pretrained(base, ADAPTERS / name), tokenizer, "Who are you?")
    if name == "pirate":
        assert said.startswith(OPENING) and said.endswith(CLOSING)
        said = said.removeprefix(OPENING)
    else:
        said = json.loads(said)["answer"]
    assert "stand-in" in said


@pytest.mark.parametrize("name", STYLES)
def test_an_adapter_is_in_pefts_own_format(name: str) -> None:
    config = json.loads((ADAPTERS / name / "adapter_config.json").read_text(encoding="utf-8"))
    assert (config["peft_type"], config["base_model_name_or_path"]) == ("LORA", NAME)
    with safe_open(ADAPTERS / name / "adapter_model.safetensors", "pt") as file:
        assert {file.get_slice(key).get_dtype() for key in [*file.keys()]} == {"BF16"}
