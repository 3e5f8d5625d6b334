"""Determines the format in which a model writes its calls: from its chat template, or from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from gateway.tools import grammar
from gateway.tools.grammar import Calls, Marker
from gateway.tools.parser import CallParser
from gateway.tools.parsers import HermesParser, LlamaParser, MistralParser, PythonicParser

FormatName = Literal["hermes", "llama", "mistral", "mistral-list", "pythonic", "neutral"]


class ToolFormat(Struct, frozen=True, kw_only=True):
    """The way in which one family of models writes calls."""

    name: FormatName
    parser: type[CallParser]
    grammar: Callable[[Calls, Marker], str]
    markers: tuple[str, ...] = ()
    """Texts that surround calls; a tokenizer may have tokens of its own for them, which then have to be shown."""
    native: bool = True
    """Whether the chat template presents tools and calls itself."""


FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat(
        name="hermes", parser=HermesParser, grammar=grammar.hermes, markers=(HermesParser.begin, HermesParser.end)
    ),
    ToolFormat(name="llama", parser=LlamaParser, grammar=grammar.llama, markers=(LlamaParser.tag,)),
    ToolFormat(
        name="mistral",
        parser=MistralParser,
        grammar=grammar.mistral_named,
        markers=(MistralParser.begin, MistralParser.identifier, MistralParser.arguments),
    ),
    ToolFormat(name="mistral-list", parser=MistralParser, grammar=grammar.mistral_list, markers=(MistralParser.begin,)),
    ToolFormat(
        name="pythonic",
        parser=PythonicParser,
        grammar=grammar.pythonic,
        markers=(PythonicParser.begin, PythonicParser.end),
    ),
    ToolFormat(
        name="neutral",
        parser=HermesParser,
        grammar=grammar.hermes,
        markers=(HermesParser.begin, HermesParser.end),
        native=False,
    ),
)

_BY_NAME = {format.name: format for format in FORMATS}

_SIGNS: tuple[tuple[str, FormatName], ...] = (
    ("[ARGS]", "mistral"),
    ("[TOOL_CALLS]", "mistral-list"),
    ("<function=", "neutral"),
    ("<arg_key>", "neutral"),
    ("<tool_call>", "hermes"),
    ("<|python_start|>", "pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama"),
    ('"parameters": dictionary', "llama"),
)
"""What a template that presents tools says to its model, the most telling first. The two that lead to `neutral` are
formats in XML that are not read here."""


def tool_format(template: str, configured: FormatName | Literal["auto"] = "auto") -> ToolFormat:
    """Return the format for a model.

    Args:
        template: source of the chat template that it gets when there are tools.
        configured: a format's name, or `auto`: the one that the template shows, or `neutral`, which any model can be
            given, if it shows none.
    """
    if configured != "auto":
        return _BY_NAME[configured]
    if "tools" in template:
        for sign, name in _SIGNS:
            if sign in template:
                return _BY_NAME[name]
    return _BY_NAME["neutral"]
