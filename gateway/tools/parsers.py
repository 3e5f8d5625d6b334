"""The formats in which common models write calls. See `gateway.tools.parser` for how they are read."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

from gateway.tools.parser import CallParser, Reading

_NAME = re.compile(r"[\w.-]")
_IDENTIFIER = re.compile(r"\w")
MAX_LITERAL = 65_536
"""Most characters of one argument in Python's notation."""


class HermesParser(CallParser):
    """`{"name": ..., "arguments": {...}}` between `<tool_call>` and `</tool_call>`: Hermes, Qwen 2.5 and 3, others.

    The object may also stand at the start of the answer, alone, in a block of code or between `<tools>` and `</tools>`,
    which are around the functions in its prompt: so Qwen 2.5 Coder writes it, whatever its template says.
    """

    begin, end = "<tool_call>", "</tool_call>"
    fence, language = "```", "json"
    offered, offered_end = "<tools>", "</tools>"

    def _parse(self) -> Reading[None]:
        if self._bare:
            yield from self._opening()
        while (yield from self._prose(self.begin)):
            yield from self._space()
            if (yield from self._call_object()):
                yield from self._space()
                yield from self._accept(self.end)
            else:
                self._no_call()

    def _opening(self) -> Reading[None]:
        """Read calls, and nothing of what is none."""
        fenced = listed = False
        while True:
            self._mark = self._at
            yield from self._space()
            if listed and (yield from self._accept(self.offered_end)):
                listed = False
                continue
            if (yield from self._accept(self.offered)):
                listed = True
                yield from self._space()
            if (yield from self._accept(self.fence)):
                fenced = not fenced
                if not fenced:
                    continue
                yield from self._accept(self.language)
                yield from self._space()
            if not (yield from self._call_object()):
                break
        self._end_call()
        if self._mark is not None:
            self._at, self._mark = self._mark, None


class LlamaParser(CallParser):
    """`{"name": ..., "parameters": {...}}`, several separated by semicolons: Llama 3.x.

    The object stands at the start of the answer, or anywhere after `<|python_tag|>`.
    """

    tag = "<|python_tag|>"

    def _parse(self) -> Reading[None]:
        if self._bare:
            self._mark = 0
            yield from self._space()
            yield from self._accept(self.tag)
        elif not (yield from self._prose(self.tag)):
            return
        while True:
            yield from self._space()
            if (yield from self._call_object()):
                self._mark = self._at
                yield from self._space()
                if (yield from self._accept(";")):
                    continue
                if (yield from self._peek()) == "{":
                    continue
            self._no_call()
            if not (yield from self._prose(self.tag)):
                return


class MistralParser(CallParser):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`: Mistral.

    Newer models write `[TOOL_CALLS]name[ARGS]{...}`, over and over.
    """

    begin, identifier, arguments = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

    def _parse(self) -> Reading[None]:
        while (yield from self._prose(self.begin)):
            yield from self._space()
            if (yield from self._accept("[")):
                yield from self._list()
            elif not (yield from self._named()):
                self._no_call()

    def _list(self) -> Reading[None]:
        while True:
            yield from self._space()
            if not (yield from self._call_object()):
                break
            self._mark = self._at
            yield from self._space()
            if (yield from self._accept("]")):
                self._mark = None
                return
            if not (yield from self._accept(",")):
                break
        self._no_call()

    def _named(self) -> Reading[bool]:
        name = yield from self._word(_NAME)
        if (yield from self._accept(self.identifier)):
            yield from self._word(_NAME)
        yield from self._accept(self.arguments)
        yield from self._space()
        if (yield from self._peek()) != "{" or not self._call(name):
            return False
        yield from self._value(stream=True)
        self._end_call()
        return True


class PythonicParser(CallParser):
    """`[name(argument=value, ...), ...]`, Python's notation or JSON's for the values: Llama 4 and others.

    The list stands at the start of the answer, or anywhere after `<|python_start|>`.
    """

    begin, end = "<|python_start|>", "<|python_end|>"

    def _parse(self) -> Reading[None]:
        self._mark = 0
        yield from self._space()
        yield from self._accept(self.begin)
        while True:
            yield from self._space()
            if (yield from self._accept("[")):
                yield from self._list()
            self._no_call()
            if self._after_call:
                yield from self._space()
                yield from self._accept(self.end)
            if not (yield from self._prose(self.begin)):
                return

    def _list(self) -> Reading[None]:
        while True:
            yield from self._space()
            name = yield from self._word(_NAME)
            if not (yield from self._accept("(")) or not self._call(name):
                return
            if not (yield from self._keywords()):
                return
            self._end_call()
            self._mark = self._at
            yield from self._space()
            if (yield from self._accept("]")):
                self._mark = None
                return
            if not (yield from self._accept(",")):
                return

    def _keywords(self) -> Reading[bool]:
        """Read `a=1, b=2)` as a call's arguments, a JSON object."""
        written = 0
        while True:
            yield from self._space()
            if (yield from self._accept(")")):
                self._argue("}" if written else "{}")
                return True
            spread = yield from self._accept("**")
            name = "" if spread else (yield from self._word(_IDENTIFIER))
            yield from self._space()
            if not spread and not (name and (yield from self._accept("="))):
                return False
            yield from self._space()
            read = yield from self._literal()
            values = _values(read, None if spread else name)
            if values is None:
                return False
            for item in values:
                self._argue((", " if written else "{") + item)
                written += 1
            if (yield from self._peek()) != ")" and not (yield from self._accept(",")):
                return False

    def _literal(self) -> Reading[str]:
        """Read up to the comma or parenthesis that ends an argument."""
        read, quote, depth, escaped = "", "", 0, False
        while character := (yield from self._peek()):
            if escaped:
                escaped = False
            elif quote:
                escaped = character == "\\"
                quote = "" if character == quote else quote
            elif character in "'\"":
                quote = character
            elif not depth and character in ",)":
                break
            else:
                depth += (character in "([{") - (character in ")]}")
            read += character
            self._at += 1
        return read


def _values(source: str, name: str | None) -> list[str] | None:
    """Return `name: value` in JSON, or a dictionary's items if there is no name; None if the source cannot be read."""
    if len(source) > MAX_LITERAL:
        return None
    try:
        value = _evaluated(source)
        values: Any = {name: value} if name is not None else value
        return [f"{_json(str(key))}: {_json(item)}" for key, item in values.items()]
    # Whatever these parsers may raise for arbitrary text.
    except (ValueError, TypeError, SyntaxError, AttributeError, RecursionError, MemoryError):
        return None


def _evaluated(source: str) -> Any:
    try:
        return json.loads(source)
    except ValueError:
        with warnings.catch_warnings():  # about escapes that Python does not know
            warnings.simplefilter("ignore")
            return ast.literal_eval(source.strip())


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
        return json.dumps(value, allow_nan=False)
    return text
