"""GGUF files of real models for benchmarks: those of the catalogue, where `roundhouse models pull` keeps them.

A is the small one, B the medium one and C the large one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore, default_folder

FILES = dict(zip("ABC", (model.name for model in catalogue()), strict=True))


def real_file(name: str) -> Path:
    """Return the path of A, B, C or any other GGUF file.

    Raises:
        argparse.ArgumentTypeError: it is not there; the message says how to fetch it.
    """
    if name not in FILES:
        path = Path(name)
        if not path.is_file():
            raise argparse.ArgumentTypeError(f"{name} is neither a file nor one of {', '.join(FILES)}")
        return path
    store = ModelStore(default_folder())
    stored = store.model(FILES[name])
    if stored is None:
        raise argparse.ArgumentTypeError(f"{name} is not here; fetch it: roundhouse models pull {FILES[name]}")
    return store.path(stored)
