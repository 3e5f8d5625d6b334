"""Requests to `bench.onnxruntime_server`: what ONNX Runtime's generator can do of vLLM's `/v1/completions`. Pure."""

from __future__ import annotations

import json
from typing import Annotated, Any

from msgspec import Meta, Struct

from engine.wire import Grammar


class Structured(Struct, forbid_unknown_fields=True):
    """What an answer must match, one of these; `grammar` is in Lark's notation."""

    json: dict[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: str | None = None

    def written(self) -> Grammar:
        """Return the grammar as our engines take it."""
        if self.regex is not None:
            return Grammar("regex", self.regex)
        if self.choice is not None:
            return Grammar("choice", json.dumps(self.choice))
        if self.grammar is not None:
            return Grammar("lark", self.grammar)
        return Grammar("json_object", "") if self.json is None else Grammar("json_schema", json.dumps(self.json))


class Completion(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of `/v1/completions` that the server knows."""

    model: str
    prompt: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool
    stream_options: dict[str, bool] = {}
    return_token_ids: bool
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = -1
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    repetition_penalty: Annotated[float, Meta(gt=0)] = 1.0
    seed: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    ignore_eos: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    return_tokens_as_token_ids: bool = False
    structured_outputs: Structured | None = None

    @property
    def goes_on(self) -> bool:
        """Whether a token that ends answers does not end this one; where a grammar ends, nothing can follow."""
        return self.ignore_eos and self.structured_outputs is None

    def check(self, model: str, context: int, vocabulary: int) -> None:
        """
        Args:
            model, context, vocabulary: name of the model that is served, and its numbers of tokens.

        Raises:
            ValueError: the model can never serve this; the message names the field and the remedy.
        """
        if self.model != model:
            raise ValueError(f"model: only {model} is served")
        if not (self.stream and self.return_token_ids):
            raise ValueError("stream, return_token_ids: answers are streams of token ids; set both to true")
        if self.logprobs is not None and not self.return_tokens_as_token_ids:
            raise ValueError("return_tokens_as_token_ids: tokens have no other names; set it to true")
        if max(self.prompt) >= vocabulary:
            raise ValueError(f"prompt: a token is not below {vocabulary}, the size of the vocabulary")
        if len(self.prompt) + self.max_tokens > context:
            raise ValueError(f"max_tokens: the context has {context} tokens; shorten the prompt, or ask for fewer")
