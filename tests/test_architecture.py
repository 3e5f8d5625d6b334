"""docs/architecture.md and its diagrams show the folders and imports that there are, and folders say what they own."""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
DIAGRAMS = ROOT / "docs" / "diagrams"
ROOMS = ("gateway", "engine", "cache", "router", "kernels", "load", "scale")


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


@pytest.mark.parametrize("room", ["gateway", "engine"])
def test_the_diagram_s_arrows_are_the_imports(room: str) -> None:
    """An import that a longer way of imports implies has no arrow."""
    graph = grimp.build_graph(room)
    imports: dict[str, set[str]] = {}
    for module in graph.modules - {room}:
        part = module.split(".")[1]
        others = {other.split(".")[1] for other in graph.find_modules_directly_imported_by(module) if "." in other}
        imports.setdefault(part, set()).update(others - {part})

    @cache
    def reached(part: str) -> frozenset[str]:
        return frozenset(imports[part]).union(*(reached(other) for other in imports[part]))

    shortest = {
        part: {other for other in others if not any(other in reached(between) for between in others)}
        for part, others in imports.items()
    }
    drawn: dict[str, set[str]] = {part: set() for part in imports}
    for part, others in re.findall(r"(\w+) -> \{?([\w ]+)\}?;", (DIAGRAMS / f"{room}.dot").read_text("utf-8")):
        drawn[part] |= set(others.split())
    assert drawn == shortest


@pytest.mark.parametrize("source", sorted(DIAGRAMS.glob("*.dot")), ids=lambda source: source.name)
def test_every_picture_is_that_of_its_source(source: Path) -> None:
    """`make diagrams` writes the source's digest into the picture."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    assert f'<g id="{digest}"' in source.with_suffix(".svg").read_text("utf-8")
    assert f"(diagrams/{source.stem}.svg)" in "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_says_what_it_owns(room: str) -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in (ROOT / room).rglob("__init__.py")
        if not ast.get_docstring(ast.parse(file.read_text("utf-8")))
    ]
    assert silent == []


def test_the_kit_of_the_admin_api_may_import_the_errors_and_no_other_part_of_the_gateway() -> None:
    """Its contract names every part, those that are added later too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    [contract] = [each for each in contracts if each.get("source_modules") == ["gateway.admin.kit"]]
    rooms = {room for room in ROOMS if room != "gateway"}
    parts = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for folder in ("gateway", "gateway/admin")
        for file in (ROOT / folder).iterdir()
        if not file.name.startswith("_") and (file.suffix == ".py" or (file / "__init__.py").exists())
    }
    assert set(contract["forbidden_modules"]) == rooms | parts - {
        "gateway.admin",
        "gateway.admin.kit",
        "gateway.errors",
    }
