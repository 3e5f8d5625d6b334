"""What a host needs beside the gateway for what it is to do: extras of the installation, see docs/dependencies.md."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

Extra = Literal["engine", "embedder"]

_MODULES: dict[Extra, tuple[str, ...]] = {
    "engine": ("torch", "tvm_ffi"),
    "embedder": ("torch", "sentence_transformers"),
}


def missing(extra: Extra) -> str | None:
    """The command that installs an extra of which something is missing here; None if all of it is there."""
    for module in _MODULES[extra]:
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"pip install 'roundhouse[{extra}]'"
    return None
