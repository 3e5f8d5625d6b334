"""The diagram of a step in docs/engine.md has the stages that the core runs, in their order."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

from engine.core import EngineCore

DIAGRAM = Path(__file__).parents[2] / "docs" / "diagrams" / "step.dot"


def written() -> dict[str, list[str]]:
    """The lists of `EngineCore._stages` by name: `expire` for `self._expire`, `drafts.propose` for one of drafts."""
    lists = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(EngineCore._stages)))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            stages = [each.values[-1] if isinstance(each, ast.BoolOp) else each for each in node.value.elts]
            names = [ast.unparse(stage).removeprefix("self._") for stage in stages]
            lists[ast.unparse(node.targets[0])] = names
    return lists


def test_the_diagram_has_the_stages_of_the_code() -> None:
    drawn = re.findall(r'shape=record, label="([^"]+)"', DIAGRAM.read_text("utf-8"))
    columns = [column.split(" | ") for column in drawn]
    assert {name: stages for name, *stages in columns} == written()
