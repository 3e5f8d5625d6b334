"""The functions that a client offers to the model, and what it wants done with them.

The Responses API spells a function flat, chat completions nest it under `function`; both become one `ToolUse`.
Functions only: tools that a server would have to run itself are refused by name.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.errors import invalid_value, unknown_parameter, unsupported_parameter
from gateway.protocol.output_format import checked_name, checked_schema, checked_type, type_name

MAX_TOOLS = 128
Mode = Literal["auto", "none", "required"]


class Tool(Struct, frozen=True):
    """A function of the client's."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments; None if it takes none."""
    strict: bool = False
    """Arguments keep to the schema whenever the model calls it."""
    param: str = "tools"
    """Path of the schema in the body."""

    @property
    def schema(self) -> dict[str, Any]:
        """Of its arguments; always that of an object."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}


class ToolUse(Struct, frozen=True, kw_only=True):
    """What the model may call in one turn."""

    tools: tuple[Tool, ...]
    mode: Mode = "auto"
    allowed: tuple[str, ...]
    """Names that may be called; all are shown to the model."""
    parallel: bool = True
    """More than one call in one answer."""
    choice: str | dict[str, Any] = "auto"
    """`tool_choice` as a response repeats it."""

    @property
    def active(self) -> bool:
        """Whether the model is shown the tools at all."""
        return self.mode != "none"

    @property
    def callable(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if tool.name in self.allowed)

    @property
    def enforced(self) -> bool:
        """Whether the answer has to be held to a grammar, as free text could break what was asked for."""
        narrow = len(self.allowed) < len(self.tools) or not self.parallel
        return self.mode == "required" or narrow or any(tool.strict for tool in self.callable)

    @property
    def size(self) -> int:
        """Characters, about, that the tools add to a prompt."""
        return sum(len(tool.name) + len(tool.description or "") + _length(tool.parameters) for tool in self.tools)


def parse_tools(tools: Any, choice: Any, parallel: bool | None, *, nested: bool) -> ToolUse | None:
    """What a body's `tools`, `tool_choice` and `parallel_tool_calls` ask for; None without tools.

    Args:
        nested: a function's fields lie in `function`, as in chat completions.

    Raises:
        InvalidRequest: `param` is the path of what is wrong or not served.
    """
    if tools is None or not checked_type(tools, list, "tools"):
        if choice not in (None, "auto", "none"):
            raise invalid_value("tool_choice", "there are no tools; send `tools` or leave it out")
        return None
    if len(tools) > MAX_TOOLS:
        raise invalid_value("tools", f"expected at most {MAX_TOOLS}, got {len(tools)}")
    functions = tuple(_tool(tool, f"tools[{index}]", nested) for index, tool in enumerate(tools))
    names = [function.name for function in functions]
    for index, name in enumerate(names):
        if name in names[:index]:
            where = f"tools[{index}]." + ("function.name" if nested else "name")
            raise invalid_value(where, f"{name!r} is the name of an earlier tool")
    mode, allowed, shown = _choice(choice, names, nested)
    # A function that is named is called once.
    named = isinstance(choice, dict) and choice.get("type") == "function"
    return ToolUse(
        tools=functions,
        mode=mode,
        allowed=tuple(name for name in names if name in allowed),
        parallel=parallel is not False and not named,
        choice=shown,
    )


def _tool(value: Any, path: str, nested: bool) -> Tool:
    if checked_type(value, dict, path).get("type") != "function":
        raise unsupported_parameter(
            f"{path}.type", f"{value.get('type')!r:.80} tools are not supported; send function tools"
        )
    fields: Any = {key: item for key, item in value.items() if key != "type"}
    if nested:
        _known(fields, path, ("function",))
        path = f"{path}.function"
        fields = checked_type(fields.get("function"), dict, path)
    _known(fields, path, ("name", "description", "parameters", "strict"))
    description, parameters, strict = (fields.get(key) for key in ("description", "parameters", "strict"))
    name = checked_name(fields.get("name"), f"{path}.name")
    if not isinstance(description, str | None):
        raise invalid_value(f"{path}.description", f"expected a string, got {type_name(description)}")
    if not isinstance(strict, bool | None):
        raise invalid_value(f"{path}.strict", f"expected a boolean, got {type_name(strict)}")
    if parameters is not None:
        checked_schema(parameters, f"{path}.parameters")
        if parameters.get("type", "object") != "object":
            raise invalid_value(f"{path}.parameters.type", "arguments are an object; expected 'object'")
    return Tool(name, description, parameters, bool(strict), f"{path}.parameters")


def _choice(choice: Any, names: list[str], nested: bool) -> tuple[Mode, list[str], str | dict[str, Any]]:
    """Mode, names that may be called, and the choice as a response repeats it."""
    if choice is None:
        return "auto", names, "auto"
    if choice in ("auto", "none", "required"):
        return choice, names, choice
    if not isinstance(choice, dict):
        raise invalid_value("tool_choice", "expected 'auto', 'none', 'required', a function or allowed_tools")
    match choice.get("type"):
        case "function":
            name = _name(choice, "tool_choice", names, nested)
            return "required", [name], {"type": "function", "name": name}
        case "allowed_tools":
            path = "tool_choice.allowed_tools" if nested else "tool_choice"
            fields = choice.get("allowed_tools") if nested else choice
            if not isinstance(fields, dict) or not isinstance(fields.get("tools"), list) or not fields["tools"]:
                raise invalid_value(f"{path}.tools", "expected a list of at least one function")
            mode = fields.get("mode")
            if mode not in ("auto", "required"):
                raise invalid_value(f"{path}.mode", "expected 'auto' or 'required'")
            allowed = [
                _name(tool, f"{path}.tools[{index}]", names, nested) for index, tool in enumerate(fields["tools"])
            ]
            tools = [{"type": "function", "name": name} for name in allowed]
            return mode, allowed, {"type": "allowed_tools", "mode": mode, "tools": tools}
        case other:
            raise unsupported_parameter(
                "tool_choice.type", f"{other!r:.80} is not supported; send function or allowed_tools"
            )


def _name(value: Any, path: str, names: list[str], nested: bool) -> str:
    """The name in `{"type": "function", ...}`, which must be that of a tool."""
    if not isinstance(value, dict) or value.get("type") != "function":
        raise invalid_value(path, "expected {'type': 'function', ...} with the name of a tool")
    if nested:
        path = f"{path}.function"
        value = checked_type(value.get("function"), dict, path)
    name = checked_name(value.get("name"), f"{path}.name")
    if name not in names:
        raise invalid_value(f"{path}.name", f"{name!r} is not among the tools")
    return name


def _known(fields: dict[str, Any], path: str, known: tuple[str, ...]) -> None:
    for key, value in fields.items():
        if key in known:
            continue
        # OpenAI's for tools that run elsewhere or later; without effect while they are off.
        if key in ("allowed_callers", "async", "defer_loading", "output_schema") and value in (None, False, ["direct"]):
            continue
        raise unknown_parameter(f"{path}.{key}")


def _length(schema: dict[str, Any] | None) -> int:
    return len(msgspec.json.encode(schema)) if schema else 0


def decoded_arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments, for APIs that have them as an object; none if they were cut off and are no JSON."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
