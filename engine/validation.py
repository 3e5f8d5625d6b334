"""Refuses requests that the engine cannot serve, before they cost anything. Pure; messages name field and remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from engine.request import GrammarError, RequestError
from engine.wire import MAX_ID_LENGTH, Generate, ModelInfo, SamplingParams

MAX_SALT_BYTES = 1024
MAX_LOGPROBS = 20
MAX_STOP_TOKENS = 64
MAX_LOGIT_BIASES = 1024
MAX_SECONDS = 7 * 86_400.0
MAX_GRAMMAR_BYTES = 128 * 1024


_VERSION = re.compile(r"[0-9a-f]{32,128}")


def is_adapter_version(name: str) -> bool:
    """Whether this can be the version of an adapter: a digest in hexadecimal."""
    return _VERSION.fullmatch(name) is not None


def validate(request: Generate, model: ModelInfo, *, adapters: bool = False) -> None:
    """Check everything about a request that does not depend on the engine's state.

    Args:
        adapters: whether the engine serves any. Which ones there are is found out when one is loaded.

    Raises:
        RequestError: the first thing that is wrong.
    """
    if len(request.salt) > MAX_SALT_BYTES:
        raise RequestError(f"at most {MAX_SALT_BYTES} bytes; send a digest", field="salt")
    if request.adapter is not None and not adapters:
        raise RequestError("this engine serves none; leave it out to use the base model", field="adapter")
    if request.adapter is not None and not is_adapter_version(request.adapter):
        raise RequestError(
            "not a version; send 32 to 128 hexadecimal digits, as the registry names it", field="adapter"
        )
    if request.grammar is not None and len(request.grammar.source.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"more than {MAX_GRAMMAR_BYTES} bytes; shorten it")
    if len(request.tenant) > MAX_ID_LENGTH:
        raise RequestError(f"at most {MAX_ID_LENGTH} characters; send a digest", field="tenant")
    _between("weight", request.weight, 0.01, 100.0)
    for name, seconds in (("queue_timeout", request.queue_timeout), ("timeout", request.timeout)):
        if seconds is not None and not 0 < seconds <= MAX_SECONDS:  # also refuses NaN
            raise RequestError(f"must be above 0 and at most {MAX_SECONDS:g} seconds, not {seconds!r}", field=name)
    if not request.prompt:
        raise RequestError("is empty; send at least one token", field="prompt")
    if len(request.prompt) >= model.context:
        raise RequestError(
            f"{len(request.prompt)} tokens leave no room for an answer within the {model.context} that this "
            "engine can hold; shorten the prompt",
            field="prompt",
        )
    if min(request.prompt) < 0 or max(request.prompt) >= model.vocabulary:
        raise RequestError(
            f"token ids must be from 0 to {model.vocabulary - 1}; use the tokenizer of {model.name!r}", field="prompt"
        )
    _validate_sampling(request.sampling, model)
    if request.resumed:
        _validate_resumed(request)


def _validate_resumed(request: Generate) -> None:
    _between("resumed", request.resumed, 0, len(request.prompt) - 1)
    if request.resumed >= request.sampling.max_tokens:
        raise RequestError("must be below max_tokens; the answer is complete", field="resumed")
    if request.sampling.prompt_logprobs is not None:
        raise RequestError("must be null where output is resumed", field="prompt_logprobs")


def _validate_sampling(sampling: SamplingParams, model: ModelInfo) -> None:
    _at_least("max_tokens", sampling.max_tokens, 1)
    _at_least("min_tokens", sampling.min_tokens, 0)
    if sampling.min_tokens > sampling.max_tokens:
        raise RequestError("must not be above max_tokens", field="min_tokens")
    _between("temperature", sampling.temperature, 0.0, 100.0)
    _at_least("top_k", sampling.top_k, 0)
    _between("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        raise RequestError("must be above 0; use temperature 0 for greedy decoding", field="top_p")
    _between("min_p", sampling.min_p, 0.0, 1.0)
    _between("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0)
    _between("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _between("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if count is not None:
            _between(name, count, 0, min(MAX_LOGPROBS, model.vocabulary))
    if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
        raise RequestError(f"at most {MAX_STOP_TOKENS} tokens", field="stop_token_ids")
    _tokens("stop_token_ids", sampling.stop_token_ids, model)
    if len(sampling.logit_bias) > MAX_LOGIT_BIASES:
        raise RequestError(f"at most {MAX_LOGIT_BIASES} tokens", field="logit_bias")
    _tokens("logit_bias", sampling.logit_bias, model)
    for bias in sampling.logit_bias.values():
        _between("logit_bias", bias, -100.0, 100.0)


def _between(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise RequestError(f"must be from {low:g} to {high:g}, not {value!r}", field=name)


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise RequestError(f"must be at least {low}, not {value}", field=name)


def _tokens(name: str, tokens: Iterable[int], model: ModelInfo) -> None:
    if not all(0 <= token < model.vocabulary for token in tokens):
        raise RequestError(f"token ids must be from 0 to {model.vocabulary - 1}", field=name)
