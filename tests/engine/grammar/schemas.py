"""Random JSON schemas of the supported keywords, and random documents that a grammar lets through."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.grammar.source import GrammarLimits, to_llguidance
from engine.wire import Grammar

Schema = dict[str, Any]

BYTES = LLTokenizer("byte")
"""A vocabulary of one token per byte: what it accepts is what the grammar accepts, without a tokenizer in between."""
_LIMITS = LLParserLimits(verbose_errors=False)
_LIKELY = frozenset(b'{}[]",:0123456789.-eE\\abcxyz \n')
_CLOSING = frozenset(b'"}]')

NAMES = st.sampled_from(["a", "b", "ab", "name", "x y", 'q"q', "ä", "a/b", "z~", "\t"])
NUMBERS = st.integers(-1000, 1000) | st.sampled_from([0.5, -0.25, 12.75, 1e3, -1.5, 0.1, 99.9])
SCALARS = st.none() | st.booleans() | NUMBERS | st.text('abxyz 0\n"\\é', max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=4
)
PATTERNS = st.sampled_from(["^[a-c]+$", "^x", "z$", "a|b", "^(ab)*$", "[0-9]{2,3}", "^$", "[^a]", "^a.b$", "\\d\\w"])
FORMATS = st.sampled_from(["ipv4", "uuid", "hostname", "email", "ipv6"])


def _optional(draw: st.DrawFn, **keywords: st.SearchStrategy[Any]) -> Schema:
    return {name: draw(value) for name, value in keywords.items() if draw(st.booleans())}


@st.composite
def _bounds(draw: st.DrawFn, low: str, high: str, most: int) -> Schema:
    first, second = sorted([draw(st.integers(0, most)), draw(st.integers(0, most))])
    return _optional(draw, **{low: st.just(first), high: st.just(second)})


@st.composite
def _string(draw: st.DrawFn) -> Schema:
    how = draw(st.integers(0, 3))
    if how == 0:
        return {"type": "string", "format": draw(FORMATS)}
    if how == 1:
        return {"type": "string", "pattern": draw(PATTERNS)}
    return {"type": "string"} | draw(_bounds("minLength", "maxLength", 5))


@st.composite
def _number(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": draw(st.sampled_from(["integer", "number"]))}
    if draw(st.integers(0, 3)) == 0:
        return schema | {"multipleOf": draw(st.sampled_from([1, 2, 7, 10, 0.5, 0.25, 60, 1000]))}
    low, high = sorted([draw(NUMBERS), draw(NUMBERS)])
    return schema | _optional(
        draw,
        **{
            draw(st.sampled_from(["minimum", "exclusiveMinimum"])): st.just(low),
            draw(st.sampled_from(["maximum", "exclusiveMaximum"])): st.just(high),
        },
    )


def _array(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    @st.composite
    def array(draw: st.DrawFn) -> Schema:
        schema: Schema = {"type": "array"} | draw(_bounds("minItems", "maxItems", 3))
        return schema | _optional(draw, items=inner, prefixItems=st.lists(inner, min_size=1, max_size=2))

    return array()


def _object(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    @st.composite
    def object_(draw: st.DrawFn) -> Schema:
        properties = draw(st.dictionaries(NAMES, inner, max_size=3))
        schema: Schema = {"type": "object", "properties": properties}
        schema["required"] = draw(st.lists(st.sampled_from([*properties]), unique=True)) if properties else []
        schema |= _optional(
            draw,
            additionalProperties=st.booleans() | inner,
            patternProperties=st.dictionaries(PATTERNS, inner, min_size=1, max_size=1),
        )
        if draw(st.integers(0, 3)) == 0:
            schema |= draw(_bounds("minProperties", "maxProperties", 3))
        return schema

    return object_()


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Schema]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"anyOf": some}),
        st.fixed_dictionaries({"oneOf": some}),
        st.fixed_dictionaries({"allOf": some}),
        st.builds(lambda one, other: one | other, inner, inner),
    )


_LEAVES = st.one_of(
    _string(),
    _number(),
    st.fixed_dictionaries({"const": VALUES}),
    st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)}),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {}, {"type": ["string", "null"]}]),
    st.sampled_from([{"minimum": 3}, {"maxLength": 2}, {"type": ["integer", "array"], "minItems": 1}]),
)


def _nested(leaves: st.SearchStrategy[Schema], most: int) -> st.SearchStrategy[Schema]:
    return st.recursive(leaves, lambda inner: _array(inner) | _object(inner) | _combined(inner), max_leaves=most)


_REFERENCE = st.just({"$ref": "#/$defs/d"})
SCHEMAS: st.SearchStrategy[Schema] = st.one_of(
    _nested(_LEAVES, 6),
    st.builds(
        lambda schema, definition: schema | {"$defs": {"d": definition}},
        _nested(_LEAVES | _REFERENCE, 5),
        _nested(_LEAVES, 3),
    ),
)


def compiled(schema: Any) -> LLMatcher:
    """A matcher of bytes; raises RequestError if the schema is refused."""
    source = to_llguidance(Grammar("json_schema", json.dumps(schema)), GrammarLimits())
    return LLMatcher(BYTES, source, log_level=0, limits=_LIMITS)


def accepts(start: LLMatcher, text: str) -> bool:
    """Whether the whole text is in the grammar's language."""
    matcher = start.deep_copy()
    data = list(text.encode("utf-8", "surrogatepass"))
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def legal(matcher: LLMatcher) -> list[int]:
    """Bytes that may come next, without the end."""
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return [int(byte) for byte in np.unpackbits(bits, bitorder="little")[:256].nonzero()[0]]


def wander(start: LLMatcher, generator: random.Random, length: int = 80) -> bytes | None:
    """A random text of the grammar's language; None if the way to its end was too long."""
    matcher, text = start.deep_copy(), bytearray()
    while len(text) < 2 * length and not matcher.is_stopped():
        if matcher.is_accepting() and generator.random() < 0.3:
            break
        options = legal(matcher)
        closing = [byte for byte in options if byte in _CLOSING]
        likely = [byte for byte in options if byte in _LIKELY]
        if len(text) > length / 2 and closing and generator.random() < 0.7:
            options = closing
        elif likely and generator.random() < 0.9:
            options = likely
        if not options:
            break
        text.append(generator.choice(options))
        matcher.consume_token(text[-1])
    return bytes(text) if matcher.is_accepting() else None
