"""Checks that the extras of the installation which the settings need are there; see docs/dependencies.md."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

Extra = Literal["engine", "embedder", "calibrate", "ray"]

_MODULES: dict[Extra, tuple[str, ...]] = {
    "engine": ("torch", "tvm_ffi"),
    "embedder": ("torch", "sentence_transformers"),
    "calibrate": ("sklearn", "matplotlib"),
    "ray": ("ray",),
}


def missing(extra: Extra) -> str | None:
    """Return the command that installs a missing extra; None if nothing is missing."""
    try:
        installed = all(find_spec(module) for module in _MODULES[extra])
    except ModuleNotFoundError:
        installed = False
    return None if installed else f"pip install 'roundhouse[{extra}]'"
