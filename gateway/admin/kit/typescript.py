"""The types of an OpenAPI description in TypeScript, for the check of the pages' scripts and for editors. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def declarations(document: Schema) -> str:
    """Return an interface or a type for each schema of the document."""
    lines = ["// Generated from the description of the admin API by `make docs`."]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += ["", *_declaration(name, schema)]
    return "\n".join([*lines, ""])


def _declaration(name: str, schema: Schema) -> Iterator[str]:
    yield from _comment(schema, "")
    if "properties" not in schema:
        yield f"export type {name} = {_type(schema)};"
        return
    yield f"export interface {name} {{"
    for field, each in schema["properties"].items():
        yield from _comment(each, "  ")
        optional = "" if field in schema.get("required", ()) else "?"
        yield f"  {field}{optional}: {_type(each)};"
    yield "}"


def _comment(schema: Schema, indent: str) -> Iterator[str]:
    if text := " ".join(schema.get("description", "").split()):
        yield f"{indent}/** {text.replace('*/', '* /')} */"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for alternatives in ("anyOf", "oneOf"):
        if alternatives in schema:
            return " | ".join(_type(each) for each in schema[alternatives])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": each}) for each in kind)
    if kind == "array":
        return _array(schema)
    if kind == "object":
        return _object(schema)
    return _PLAIN.get(str(kind), "unknown")


def _array(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_type(each) for each in schema['prefixItems'])}]"
    item = _type(schema.get("items", {}))
    return f"({item})[]" if " " in item else f"{item}[]"


def _object(schema: Schema) -> str:
    more = schema.get("additionalProperties", True)
    return f"Record<string, {_type(more) if isinstance(more, Mapping) else 'unknown'}>"
