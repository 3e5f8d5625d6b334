"""Every key of the directory is documented."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.access.directory import schema


def test_keys_are_documented() -> None:
    """In docs/redis-keys.md."""
    page = Path("docs/redis-keys.md").read_text("utf-8").split("## Directory")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(rh1:\{directory\}:[^`]+)`", page))
    templates = [value for name, value in vars(schema).items() if isinstance(value, str) and value.startswith("rh1:")]
    names = {"kind": "<kind>", "tenant": "<tenant>", "user": "<user>", "digest": "<digest>"}
    used = {value.format(**names) if "{{" in value else value for value in templates}
    assert documented == used
