"""Writes of test processes to a registry; without torch, so that they start at once."""

from __future__ import annotations

from pathlib import Path

from engine.adapters.registry import AdapterRegistry


def point_names(url: str, writer: int, names: int, version: str) -> None:
    registry = AdapterRegistry(url)
    for name in range(names):
        registry.point(f"adapter-{writer}-{name}", version, model="demo")


def add(url: str, folder: Path, base: Path) -> None:
    AdapterRegistry(url).add(folder, base)
