"""Anthropic's `tools` and `tool_choice` as the `ToolUse` that every endpoint shares."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.errors import invalid_value, unknown_parameter, unsupported_parameter
from gateway.protocol.output_format import checked_name, checked_schema, checked_type
from gateway.protocol.requests import converted
from gateway.protocol.tools import MAX_TOOLS, Mode, Tool, ToolUse

_MODES: dict[str, Mode] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_HINTS = ("type", "cache_control", "eager_input_streaming", "input_examples", "allowed_callers", "defer_loading")
"""Keys of a tool that cannot change a valid answer."""


class ToolChoice(Struct, forbid_unknown_fields=True):
    """The `tool_choice` of a body."""

    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Body(Struct):
    tool_choice: ToolChoice | None = None
    tools: Annotated[list[Any], Meta(max_length=MAX_TOOLS)] | None = None


def parse_anthropic_tools(tools: Any, choice: Any) -> ToolUse | None:
    """Return what a body's `tools` and `tool_choice` ask for; None without tools.

    Raises:
        InvalidRequest: `param` is the path of what is wrong or not served.
    """
    body = converted({"tools": tools, "tool_choice": choice}, _Body)
    wanted = body.tool_choice or ToolChoice()
    functions = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ()))
    names = [function.name for function in functions]
    if not names:
        if wanted.type in ("any", "tool"):
            raise invalid_value("tool_choice", "there are no tools; send `tools` or leave it out")
        return None
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid_value(f"tools[{index}].name", f"{name!r} is the name of an earlier tool")
    named = wanted.type == "tool"
    if named and wanted.name not in names:
        raise invalid_value("tool_choice.name", f"{wanted.name!r:.80} is not among the tools")
    return ToolUse(
        tools=functions,
        mode=_MODES[wanted.type],
        allowed=tuple(name for name in names if not named or name == wanted.name),
        parallel=not named and not wanted.disable_parallel_tool_use,
    )


def _tool(value: Any, path: str) -> Tool:
    fields = checked_type(value, dict, path)
    if fields.get("type") not in (None, "custom"):
        raise unsupported_parameter(
            f"{path}.type", f"{fields['type']!r:.80} tools are not supported; send tools with an input_schema"
        )
    for key in fields.keys() - {"name", "description", "input_schema", "strict", *_HINTS}:
        raise unknown_parameter(f"{path}.{key}")
    name = checked_name(fields.get("name"), f"{path}.name")
    description = fields.get("description")
    if description is not None:
        checked_type(description, str, f"{path}.description")
    where = f"{path}.input_schema"
    schema = checked_type(fields.get("input_schema"), dict, where)
    checked_schema(schema, where)
    if schema.get("type", "object") != "object":
        raise invalid_value(f"{where}.type", "the input of a tool is an object; expected 'object'")
    return Tool(name, description, schema, fields.get("strict") is True, where)
