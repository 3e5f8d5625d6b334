"""TypeScript's types of an OpenAPI description."""

from __future__ import annotations

from gateway.admin.kit.typescript import declarations

REFERENCE = {"$ref": "#/components/schemas/Level"}
SCHEMAS = {
    "Turn": {
        "type": "object",
        "description": "What was\n asked. */",
        "required": ["id"],
        "properties": {
            "id": {"type": "string"},
            "at": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "Unix time."},
            "levels": {"type": "array", "items": REFERENCE},
            "names": {"type": "array", "items": {"type": ["string", "null"]}},
            "pair": {"type": "array", "prefixItems": [{"type": "number"}, {"const": "x"}]},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "more": {"type": "object"},
        },
    },
    "Level": {"enum": ["low", "high"]},
}


def test_each_schema_becomes_a_type() -> None:
    """Sorted by name; what a request may leave out is marked, and descriptions become comments."""
    assert (
        declarations({"components": {"schemas": SCHEMAS}})
        == """\
// Generated from the description of the admin API by `make docs`.

export type Level = "low" | "high";

/** What was asked. * / */
export interface Turn {
  id: string;
  /** Unix time. */
  at?: number | null;
  levels?: Level[];
  names?: (string | null)[];
  pair?: [number, "x"];
  counts?: Record<string, number>;
  more?: Record<string, unknown>;
}
"""
    )
