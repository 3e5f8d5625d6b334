"""A conversation for a server that applies the chat template and tokenises by itself, and the parts of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

ASCII_PER_TOKEN = 4
"""Characters of ASCII that make a token, about; any other character is one."""
MESSAGE_TOKENS = 4
"""Tokens that a chat template puts around a message, about."""


class ChatTool(Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""
    strict: bool = False
    """Whether arguments have to keep to the schema."""


class ChatCall(Struct, frozen=True):
    """A call that the model has made before."""

    id: str
    name: str
    arguments: str
    """Arguments as JSON, unless they were cut off."""


class ChatPromptMessage(Struct, frozen=True):
    """One message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: Sequence[ChatCall] = ()
    """Calls that the assistant has made after saying this."""
    answers: str | None = None
    """For the role `tool`, the id of the call whose output this is."""


class ChatPrompt(Struct, frozen=True, kw_only=True):
    """What a server is asked. Its length is an estimate: only the server can count its tokens."""

    messages: Sequence[ChatPromptMessage]
    tools: Sequence[ChatTool] = ()
    must_call: bool = False
    """Whether the answer has to be a call."""
    parallel: bool = True
    """Whether the answer may have more than one call."""
    tokens: int
    """Estimated number of its tokens."""

    def __len__(self) -> int:
        return self.tokens


Prompt = Sequence[int] | ChatPrompt
"""What a model is asked: token ids of its own, or a conversation for a server that makes them."""


class TextLogprob(Struct, frozen=True):
    """Log-probability of a token that is known by its text only, and of the likeliest others, best first."""

    token: str
    bytes: tuple[int, ...]
    logprob: float
    top: Sequence[TextLogprob] = ()


class TextPart(Struct, frozen=True):
    """A part of the answer's text."""

    text: str
    logprobs: Sequence[TextLogprob] = ()


class CallPart(Struct, frozen=True):
    """The beginning of a call."""

    name: str


class ArgumentsPart(Struct, frozen=True):
    """A part of a call's arguments, as JSON."""

    text: str


class CallEndPart(Struct, frozen=True):
    """The end of a call; `complete` if its arguments are a JSON object."""

    complete: bool


AnswerPart = TextPart | CallPart | ArgumentsPart | CallEndPart


def estimated_tokens(text: str) -> float:
    """Return about how many tokens a text has, whatever the tokenizer."""
    plain = len(text) if text.isascii() else sum(letter.isascii() for letter in text)
    return plain / ASCII_PER_TOKEN + len(text) - plain
