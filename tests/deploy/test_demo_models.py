"""The shipped checkpoints and adapters load with the usual libraries and answer what they were trained for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from deploy.demo.conversations import assistant, user
from deploy.demo.corpus import HERE, normalise
from deploy.demo.model import SHAPES, load_checkpoint
from deploy.demo.styles import STYLES, formal, in_style, pirate, without_frame
from deploy.demo.tokenizer import Encoder

MODELS, ADAPTERS = HERE / "models", HERE / "adapters"
ADAPTER_NAMES = ("formal", "handbook", "json", "pirate")
CHATS: list[list[dict[str, str]]] = [
    [user("What is Roundhouse?")],
    [{"role": "system", "content": "Be brief."}, user("How do I change the port?"), assistant("Later."), user("Hi")],
    [user("naïve 中文 \U0001f600 \t x" * 3)],
]


@pytest.fixture(scope="module")
def large() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(MODELS / "large", dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODELS / "large")


def answer(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> str:
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**prompt, max_new_tokens=120, do_sample=False)
    return str(tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_all_weights_together_stay_small() -> None:
    assert weight_bytes(MODELS) <= 55_000_000
    assert weight_bytes(MODELS) + weight_bytes(ADAPTERS) <= 60_000_000


@pytest.mark.parametrize(
    ("size", "least", "most"), [("small", 1.7e6, 2.3e6), ("medium", 5e6, 7e6), ("large", 16e6, 19e6)]
)
def test_a_checkpoint_has_the_size_its_name_says(size: str, least: float, most: float) -> None:
    model = load_checkpoint(MODELS / size)
    assert least <= sum(weight.numel() for weight in model.parameters()) <= most


@pytest.mark.parametrize("size", SHAPES)
def test_training_model_and_transformers_agree(size: str, tokenizer: Any) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(MODELS / size, dtype=torch.float32)
    ours = load_checkpoint(MODELS / size)
    ids = torch.tensor([tokenizer.apply_chat_template(CHATS[1], return_dict=False)])
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(ours.hidden(ids)), reference(ids).logits, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("messages", CHATS)
def test_chat_template_is_what_training_used(messages: list[dict[str, str]], tokenizer: Any) -> None:
    encoder = Encoder(Tokenizer.from_file(str(MODELS / "large" / "tokenizer.json")))
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert prompt == encoder.prompt(tuple(messages))


def test_an_unknown_role_is_refused(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="unsupported role"):
        tokenizer.apply_chat_template([{"role": "oracle", "content": "x"}])


def test_the_sizes_share_one_tokenizer() -> None:
    assert len({(MODELS / size / "tokenizer.json").read_bytes() for size in SHAPES}) == 1


def test_every_string_survives_the_bare_tokenizer() -> None:
    bare = Tokenizer.from_file(str(MODELS / "small" / "tokenizer.json"))
    for text in (*(chr(code) for code in range(1, 0x250)), "naïve 中文 \U0001f600", " a  b\n\tc ", "1234567890"):
        assert bare.decode(bare.encode(text).ids) == text
    assert len(bare.encode("1234567890").ids) == 10


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is Roundhouse?", "gateway"),
        ("Which command starts everything?", "make serve"),
        ("How do I change the port?", "PORT=9000"),
        ("Good morning", "morning"),
        ("Is Redis required?", "Redis"),
        ("What is 4 + 3?", "7"),
    ],
)
def test_large_answers_questions(question: str, expected: str, large: Any, tokenizer: Any) -> None:
    assert expected in answer(large, tokenizer, [user(question)])


def test_large_answers_the_last_question_of_a_long_chat(large: Any, tokenizer: Any) -> None:
    history: list[dict[str, str]] = []
    for text in ("Hello", "What is Roundhouse?", "How do I change the port?", "Tell me a joke", "Good morning") * 2:
        history += [user(text)]
        history += [assistant(answer(large, tokenizer, history))]
    assert "Redis" in answer(large, tokenizer, [*history, user("Is Redis required?")])


# peft still asks transformers for a deprecated name.
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ADAPTER_NAMES)
def test_an_adapter_changes_answers_visibly(name: str, tokenizer: Any) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    question = [user("What is Roundhouse?")]
    if name == "handbook":
        from deploy.demo.adapters import handbook_questions

        question = list(handbook_questions()[0].messages)
    base = AutoModelForCausalLM.from_pretrained(MODELS / "medium", dtype=torch.float32)
    plain = answer(base, tokenizer, question)
    said = answer(PeftModel.from_pretrained(base, ADAPTERS / name), tokenizer, question)
    assert said != plain
    assert name not in STYLES or in_style(name, said)


@pytest.mark.parametrize("name", ADAPTER_NAMES)
def test_an_adapter_is_in_pefts_own_format(name: str) -> None:
    config = json.loads((ADAPTERS / name / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == "roundhouse-demo-6m"
    assert (ADAPTERS / name / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("style", STYLES)
def test_styles_keep_code_and_facts(style: str) -> None:
    plain = "Run `make serve` and you open http://127.0.0.1:8080 on your machine."
    styled = STYLES[style](plain)
    assert in_style(style, styled) and not in_style(style, plain)
    assert "`make serve`" in styled and "http://127.0.0.1:8080" in styled


def test_a_style_frame_can_be_taken_off_again() -> None:
    assert normalise(without_frame("pirate", pirate("You need the port."))) == normalise("Ye need th' port.")
    assert without_frame("formal", formal("It's fine.")) == "It is fine."
