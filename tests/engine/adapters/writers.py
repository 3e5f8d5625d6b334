"""What processes of tests do to a registry; without torch, so that they start at once."""

from __future__ import annotations

from pathlib import Path

from engine.adapters.registry import Registry


def point_names(url: str, writer: int, names: int, version: str) -> None:
    registry = Registry(url)
    for name in range(names):
        registry.point(f"adapter-{writer}-{name}", version, model="demo")


def add(url: str, folder: Path, base: Path) -> None:
    Registry(url).add(folder, base)
