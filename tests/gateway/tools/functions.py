"""Functions that tests offer to models, and requests that let a model with random weights call them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Berlin", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"$ref": "#/$defs/unit"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"unit": {"enum": ["C", "F", None]}},
}
ROLL: dict[str, Any] = {
    "type": "object",
    "properties": {"sides": {"type": "array", "items": {"enum": [4, 6, 20]}, "minItems": 1, "maxItems": 2}},
    "required": ["sides"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "roll_dice": ROLL}
TOOLS: Any = [
    {"type": "function", "name": name, "description": f"does {name}", "parameters": schema, "strict": True}
    for name, schema in SCHEMAS.items()
]
RANDOM: dict[str, Any] = {"model": "auto", "temperature": 2.0, "max_output_tokens": 600}


def check_call(name: str, arguments: str) -> None:
    """Check that arguments keep to the schema of their function."""
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
