"""What chat completions and completions share: several answers to one request, and the sum of their usage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.errors import InvalidRequest, invalid_value
from gateway.protocol.output_format import OutputFormat, one_format, parse_guided, parse_structured_outputs
from gateway.protocol.requests import SamplingFields, TurnRequest
from gateway.protocol.stream import TokenUsage

MAX_CHOICES = 128
"""Most answers to one request: prompts times `n`."""

Count = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    """The `stream_options` of a body."""

    include_usage: bool | None = None
    """Whether one more chunk comes at the end, with the usage of the whole request."""
    continuous_usage_stats: bool | None = None
    """Whether every chunk has the usage so far, as in vLLM; load tools ask for it. Needs `include_usage`."""
    include_obfuscation: bool | None = None
    """Accepted and without effect: no padding is ever sent."""


class CompletionFields(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Request-body fields that both completion endpoints share. Base class of their body structs."""

    n: Count | None = None
    stream_options: StreamOptions | None = None
    structured_outputs: Any = None
    """vLLM's output formats; see `gateway.protocol.output_format`."""
    guided_json: Any = None
    """vLLM's older parameters for the same, this and the next three."""
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    def format(self) -> OutputFormat | None:
        """Return the output format that vLLM's fields ask for.

        Raises:
            InvalidRequest: `param` is the path of what is wrong; two are set.
        """
        guided = parse_guided(
            json=self.guided_json, regex=self.guided_regex, choice=self.guided_choice, grammar=self.guided_grammar
        )
        return one_format(parse_structured_outputs(self.structured_outputs), guided)


class ChoicesRequest(Struct, frozen=True, kw_only=True):
    """A request for one or more answers."""

    turns: tuple[TurnRequest, ...]
    """Turns of the request, one per answer; those of the same prompt are neighbours."""
    n: int = 1
    """Number of answers per prompt."""
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    """Whether the prompt is put before each answer (`/v1/completions` only)."""


def request_choices(
    prompts: Sequence[TurnRequest],
    *,
    n: int | None,
    stream: bool | None,
    stream_options: StreamOptions | None,
    echo: bool = False,
) -> ChoicesRequest:
    """Make a request for `n` answers to each of `prompts`. The seeds of a prompt's answers count up from the one given.

    Raises:
        InvalidRequest: too many answers, or `stream_options` without `stream`.
    """
    n = n or 1
    if n * len(prompts) > MAX_CHOICES:
        raise InvalidRequest(
            f"{len(prompts)} prompts with n={n} ask for {n * len(prompts)} answers; one request may ask for "
            f"{MAX_CHOICES}: send fewer prompts or lower n",
            param="n" if len(prompts) == 1 else "prompt",
            code="invalid_value",
        )
    if stream_options is not None and not stream:
        raise invalid_value("stream_options", "only allowed with stream=true")
    options = stream_options or StreamOptions()

    def each(prompt: TurnRequest) -> TurnRequest:
        return replace(prompt, caching=replace(prompt.caching, several=True)) if n > 1 else prompt

    return ChoicesRequest(
        turns=tuple(_numbered(prompt, index) for prompt in map(each, prompts) for index in range(n)),
        n=n,
        stream=bool(stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        echo=echo,
    )


def total_usage(usages: Iterable[TokenUsage], n: int) -> dict[str, Any]:
    """Add up the usage of a request's answers. A prompt counts once however many answers it has."""
    usages = list(usages)
    prompts = usages[::n]
    prompt_tokens = sum(usage.input_tokens for usage in prompts)
    completion_tokens = sum(usage.output_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in prompts)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _numbered(request: TurnRequest, index: int) -> TurnRequest:
    """Return the request for answer number `index` to a prompt: with another seed, if the client gave one."""
    seed = request.sampling.seed
    if seed is None or index == 0:
        return request
    wrapped = (seed + index + 2**63) % 2**64 - 2**63
    return replace(request, sampling=replace(request.sampling, seed=wrapped))
