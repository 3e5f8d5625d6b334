"""docs/architecture.md names the levels that import-linter checks, and every folder says what it owns."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("gateway", "engine", "cache", "router", "kernels")


def levels(room: str) -> list[str]:
    """The folders and files of a room's layers contract, from the highest to the lowest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [contract] = [each for each in project["tool"]["importlinter"]["contracts"] if each.get("containers") == [room]]
    return [name for layer in contract["layers"] for name in layer.split(" | ")]


@pytest.mark.parametrize("room", ["gateway", "engine"])
def test_the_page_draws_the_levels_in_their_order(room: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    [section] = re.findall(rf"^### Levels inside the {room}\n(.*?)^(?:### |`make)", page, flags=re.M | re.S)
    drawn = [each.removesuffix("/").removesuffix(".py") for each in re.findall(r"`([a-z_]+(?:/|\.py))`", section)]
    within = {"admin": ("kit", "endpoints"), "pipeline": ("routing", "sources")} if room == "gateway" else {}
    inner = {name for names in within.values() for name in names}
    order = list(dict.fromkeys(name for name in drawn if name not in inner))
    assert order == levels(room)
    for folder, names in within.items():
        assert all((ROOT / room / folder / name).is_dir() for name in names)


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_says_what_it_owns(room: str) -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in (ROOT / room).rglob("__init__.py")
        if not ast.get_docstring(ast.parse(file.read_text("utf-8")))
    ]
    assert silent == []
