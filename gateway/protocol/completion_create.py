"""The body of `POST /v1/completions`: raw prompts, no chat template. Evaluation and load tools use it.

Prompts are text or token ids, one or many. `echo` with `logprobs` scores a prompt, which is how evaluation harnesses
ask for log-likelihoods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.errors import invalid_value
from gateway.protocol.caching import NOTHING, Caching
from gateway.protocol.choices import ChoicesRequest, CompletionFields, request_choices
from gateway.protocol.requests import (
    MAX_TOP_LOGPROBS,
    Sampling,
    converted,
    refuse_unsupported,
)

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""

TokenIds = Annotated[list[Annotated[int, Meta(ge=0, le=2**31 - 1)]], Meta(min_length=1)]

_NEUTRAL: dict[str, tuple[Any, ...]] = {"suffix": ("",)}
"""Known, not served: field -> the values that ask for nothing."""


class CompletionCreate(CompletionFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's parameters, then (inherited) sampling parameters that OpenAI does not have."""

    prompt: Any
    """One prompt or a list of prompts; see `_prompts`."""
    add_special_tokens: bool | None = None
    """vLLM's: whether a text gets the tokens that the tokenizer puts around one; true by default."""
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    # Refused unless neutral.
    best_of: Any = None
    suffix: Any = None


class _Texts(Struct):
    prompt: list[str]


class _Tokens(Struct):
    prompt: TokenIds


class _TokenBatch(Struct):
    prompt: list[TokenIds]


def parse_completion_create(body: Mapping[str, Any], given: Caching = NOTHING) -> ChoicesRequest:
    """Return the turns that a body asks for.

    Args:
        body: the decoded object.
        given: what the HTTP request's headers say about caches.

    Raises:
        InvalidRequest: a parameter is missing, unknown, of the wrong type, out of range or not served; `param` names
            it.
    """
    create = converted(body, CompletionCreate)
    prompts = _prompts(create.prompt)
    # As many candidates as answers is no search for the best one.
    refuse_unsupported(create, {**_NEUTRAL, "best_of": (create.n or 1,)})
    limit = DEFAULT_MAX_TOKENS if create.max_tokens is None else create.max_tokens
    if limit == 0 and not create.echo:
        raise invalid_value("max_tokens", "0 only makes sense with echo=true")
    common = create.turn(
        given,
        sampling=_sampling(create, limit),
        max_output_tokens=limit or None,
        format=create.format(),
        add_special_tokens=create.add_special_tokens is not False,
        generate=limit > 0,
        store=False,
    )
    return request_choices(
        [replace(common, prompt=prompt) for prompt in prompts],
        n=create.n,
        stream=create.stream,
        stream_options=create.stream_options,
        echo=bool(create.echo),
    )


def _sampling(create: CompletionCreate, limit: int) -> Sampling:
    scored = create.echo and create.logprobs is not None
    sampling = create.sampling(logprobs=create.logprobs, prompt_logprobs=create.logprobs if scored else None)
    if scored and limit == 1:
        # Harnesses that score prompts ask for one token and cut it off again, so it has to be there. An end-of-sequence
        # token would be no part of the answer, and they would cut off the prompt's last token instead.
        return replace(sampling, ignore_eos=True)
    return sampling


def _prompts(prompt: Any) -> list[str | tuple[int, ...]]:
    """Return one prompt (text, or a list of token ids), or a list of prompts of one kind, as a list."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise invalid_value(
            "prompt", "expected a text, a list of texts, a list of token ids or a list of lists of token ids"
        )
    body = {"prompt": prompt}
    if isinstance(prompt[0], str):
        return [*converted(body, _Texts).prompt]
    if isinstance(prompt[0], list):
        return [tuple(ids) for ids in converted(body, _TokenBatch).prompt]
    return [tuple(converted(body, _Tokens).prompt)]
