"""Names of the files that a model in GGUF consists of."""

from __future__ import annotations

import re
from pathlib import Path

PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
"""Names of the files of a split model: what is common to them, number and count."""


def parts_of(path: Path) -> list[Path]:
    """Return all files of the model at `path`: several if its name is that of the first part of a split model."""
    part = PART.fullmatch(path.name)
    if part is None or not int(part[2]) == 1 < int(part[3]):
        return [path]
    return [path.with_name(f"{part[1]}-{number:05}-of-{part[3]}.gguf") for number in range(1, int(part[3]) + 1)]
