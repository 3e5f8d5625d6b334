"""Checks that the extras of the installation which the settings need are there; see docs/dependencies.md."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

Extra = Literal["engine", "embedder"]

_MODULES: dict[Extra, tuple[str, ...]] = {
    "engine": ("torch", "tvm_ffi"),
    "embedder": ("torch", "sentence_transformers"),
}


def missing(extra: Extra) -> str | None:
    """Return the command that installs a missing extra; None if nothing is missing."""
    for module in _MODULES[extra]:
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"pip install 'roundhouse[{extra}]'"
    return None
