"""Trains the demo's tokenizer and writes everything a Hugging Face checkpoint folder holds beside the weights.

Byte-level BPE: every byte sequence can be encoded and decoded. Digits are single tokens, so that a number is
always spelt the same way, whatever stands around it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from deploy.demo.conversations import SYSTEM_PROMPTS, ConversationStream, Message
from deploy.demo.corpus import SplitIntent

VOCABULARY = 4096
PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS = (PAD, BEGIN, END, *ROLES.values())
CONTEXT = 2048

# The space after <|user|> makes the first word of a question the same token as that word anywhere else.
CHAT_TEMPLATE = """\
{{- '<|begin|>' -}}
{%- for message in messages -%}
  {%- if message['role'] in ['system', 'developer'] -%}
    {{- '<|system|> ' + message['content'] | trim + '<|end|>' -}}
  {%- elif message['role'] == 'user' -%}
    {{- '<|user|> ' + message['content'] | trim + '<|end|>' -}}
  {%- elif message['role'] == 'assistant' -%}
    {{- '<|assistant|>' + message['content'] | trim + '<|end|>' -}}
  {%- else -%}
    {{- raise_exception('unsupported role: ' + message['role']) -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|assistant|>' -}}
{%- endif -%}
"""


def spoken_text(message: Message) -> str:
    """What follows a message's role token, turn end included: the chat template in Python."""
    space = "" if message["role"] == "assistant" else " "
    return f"{space}{message['content'].strip()}{END}"


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token; KeyError where the tokenizer is not one of ours."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise KeyError(token)
    return int(number)


def training_text(splits: list[SplitIntent], extra: list[str], seed: int) -> Iterator[str]:
    """What the vocabulary is learnt from: augmented questions and answers in the proportions of training."""
    stream = ConversationStream(splits, seed)
    rng = random.Random(seed)
    for _ in range(40 * max(1, len(splits))):
        for message in stream.conversation(1):
            text = message["content"]
            # Every answer occurs forty times already; a question counts for its own variety.
            if message["role"] != "assistant" or rng.random() < 0.25:
                yield " " + text if message["role"] == "user" else text
    for _ in range(10):
        yield from SYSTEM_PROMPTS
        yield from extra


def train_tokenizer(splits: list[SplitIntent], extra: list[str], seed: int = 1) -> Tokenizer:
    """A tokenizer of VOCABULARY entries; `extra` is text of the adapters, so that they too are spelt shortly."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(splits, extra, seed), trainer)
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": list(ROLES.values()),
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
        },
    )
    write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": tokenizer.token_to_id(BEGIN),
            "eos_token_id": tokenizer.token_to_id(END),
            "pad_token_id": tokenizer.token_to_id(PAD),
            "do_sample": False,
            "max_new_tokens": 256,
        },
    )


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class Encoder:
    """Turns conversations into token ids, and marks which of them the model must learn to say."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.begin, self.end, self.pad = (special_id(tokenizer, token) for token in (BEGIN, END, PAD))
        self.roles = {role: special_id(tokenizer, token) for role, token in ROLES.items()}

    def conversation(self, messages: list[Message]) -> tuple[list[int], list[bool]]:
        """Ids of a whole conversation, and for each id whether it is part of an answer (its turn end included)."""
        ids, learn = [self.begin], [False]
        for message in messages:
            spoken = self.tokenizer.encode(spoken_text(message)).ids
            ids += [self.roles[message["role"]], *spoken]
            learn += [False] + [message["role"] == "assistant"] * len(spoken)
        return ids, learn

    def prompt(self, messages: tuple[Message, ...]) -> list[int]:
        """Ids of a conversation that waits for an answer."""
        return [*self.conversation(list(messages))[0], self.roles["assistant"]]

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids))
