"""A model of success that speaks for the pools of tests."""

from __future__ import annotations

from pathlib import Path

import msgspec

from router.success import SuccessModel, shipped, write
from router.tier import TIERS

TINY = tuple(f"tiny-{tier}" for tier in TIERS)


def learnt_from(folder: Path, models: tuple[str, ...] = TINY, *, like: SuccessModel | None = None) -> str:
    """Write a model as if it was learnt from these models; return its path. `like`: what it holds."""
    model, path = like or shipped(), folder / "learnt.safetensors"
    arrays = {name: array.astype(model.types[name]) for name, array in model.arrays.items()}
    path.write_bytes(write(arrays, msgspec.structs.replace(model.metadata, models=models)))
    return str(path)


def configuration(folder: Path, router_model: str) -> str:
    """Write a configuration with pools of these names and the model; return its path."""
    pools = "".join(f'[[pools]]\ntier = "{tier}"\nname = "tiny-{tier}"\nmodel = "m"\n' for tier in TIERS)
    path = folder / "roundhouse.toml"
    path.write_text(f'[router]\nmodel = "{router_model}"\n{pools}')
    return str(path)
