"""What clients ask for: requests of all sorts whose answers are the same each time they are asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MODEL = "roundhouse-demo-2m"
QUESTIONS = ("What is a prefix cache?", "What does the router do?", "Who are you?")

_SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 6, "maxItems": 6},
        "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 12, "maxItems": 12},
    },
    "required": ["names", "numbers"],
    "additionalProperties": False,
}
_STREAMED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True, "max_output_tokens": 160},
    "to its end": {"temperature": 0, "max_output_tokens": 200},
    "sampled": {"temperature": 1.1, "seed": 5, "ignore_eos": True, "max_output_tokens": 120},
    "nucleus": {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "seed": 6, "ignore_eos": True, "max_output_tokens": 90},
    "penalties": {
        "temperature": 0.8,
        "seed": 7,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "min_tokens": 60,
        "max_output_tokens": 140,
    },
    "schema": {
        "temperature": 0.9,
        "seed": 8,
        "max_output_tokens": 300,
        "text": {"format": {"type": "json_schema", "name": "lists", "schema": _SCHEMA, "strict": True}},
    },
    "regex": {
        "temperature": 1.0,
        "seed": 9,
        "max_output_tokens": 120,
        "text": {"format": {"type": "regex", "pattern": "([a-z]{3,8} ){20}[a-z]{3,8}\\."}},
    },
    "pirate": {"model": "pirate", "temperature": 0, "ignore_eos": True, "max_output_tokens": 120},
    "json": {"model": "json", "temperature": 0.7, "seed": 10, "max_output_tokens": 120},
    "stop": {"temperature": 1.0, "seed": 11, "ignore_eos": True, "max_output_tokens": 150, "stop": ["e,", "the "]},
    "scored": {
        "temperature": 0.8,
        "seed": 12,
        "ignore_eos": True,
        "max_output_tokens": 60,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    },
    "brief": {"temperature": 0, "max_output_tokens": 6, "ignore_eos": True},
}
_CHATTED: dict[str, dict[str, Any]] = {
    "chat greedy": {"temperature": 0, "max_tokens": 100},
    "chat sampled": {"temperature": 1.0, "seed": 13, "max_tokens": 80, "frequency_penalty": 0.4},
}


@dataclass(frozen=True)
class Case:
    """One request that can be asked any number of times."""

    name: str
    body: dict[str, Any]
    """Of `POST /v1/responses`, or of `POST /v1/chat/completions` for a `chat`."""
    chat: bool = False

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/responses"


@dataclass(frozen=True)
class Whole:
    """What an undisturbed turn answers."""

    text: str
    ending: str
    """Status of the response and why it is incomplete, or the chat completion's `finish_reason`."""
    input_tokens: int
    output_tokens: int


def cases() -> list[Case]:
    """Return all requests, in an order that never changes."""
    computed = {"stream": True, "roundhouse": {"cache": "no-store"}}
    found = []
    for index, (name, fields) in enumerate(_STREAMED.items()):
        asked = {"model": "small", "input": QUESTIONS[index % len(QUESTIONS)], **computed, **fields}
        found.append(Case(name, asked))
    for name, fields in _CHATTED.items():
        messages = [{"role": "user", "content": QUESTIONS[0]}]
        asked = {
            "model": "small",
            "messages": messages,
            "stream_options": {"include_usage": True},
            **computed,
            **fields,
        }
        found.append(Case(name, asked, chat=True))
    return found


def typed() -> list[Case]:
    """Return what is asked with `roundhouse chat`, which sets nothing; its answers may come from the response cache."""
    return [Case(question, {"model": "small", "input": question, "stream": True}) for question in QUESTIONS]
