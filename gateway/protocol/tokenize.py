"""The bodies of vLLM's `POST /tokenize` and `/detokenize`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from gateway.errors import invalid_value, missing_parameter, unsupported_parameter
from gateway.protocol.chat_completion_create import parse_chat_completion_create
from gateway.protocol.requests import TemplateVariables, TokenId, TurnRequest, converted

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]

_OF_CHATS = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


class TokenizeCreate(Struct, kw_only=True, forbid_unknown_fields=True):
    """A text (`prompt`), or a conversation: `messages` and what shapes its prompt, as of a chat completion."""

    model: ModelName | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Whether a text gets the tokens that the tokenizer puts around one. A conversation has those of its template."""
    messages: list[Any] | None = None
    tools: Any = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    """Whether the answer spells the tokens too."""


class DetokenizeCreate(Struct, kw_only=True, forbid_unknown_fields=True):
    """Tokens to be turned into text."""

    model: ModelName | None = None
    tokens: list[TokenId]


def parse_tokenize(body: Mapping[str, Any]) -> tuple[TurnRequest, bool]:
    """Return the turn whose prompt is to be tokenised, and whether its tokens are spelled.

    Raises:
        InvalidRequest: a parameter is missing, unknown, of the wrong type, out of range or not served.
    """
    create = converted(body, TokenizeCreate)
    of_chat = {name: body[name] for name in _OF_CHATS if body.get(name) is not None}
    spelled = bool(create.return_token_strs)
    if create.prompt is not None:
        for name in of_chat:
            raise invalid_value(name, "belongs to a conversation; send it without `prompt`")
        special = create.add_special_tokens is not False
        return TurnRequest(model=create.model or "auto", prompt=create.prompt, add_special_tokens=special), spelled
    if create.messages is None:
        raise missing_parameter("prompt")
    if create.add_special_tokens:
        raise unsupported_parameter("add_special_tokens", "the chat template writes those of a conversation")
    return parse_chat_completion_create({"model": create.model, **of_chat}).turns[0], spelled
