"""A step has the stages of what an engine offers; the diagram in docs/engine.md has all of them, in their order."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

from engine.core import EngineCore, SchedulerConfig
from tests.engine.ledger_runner import LedgerRunner, model_info

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


def test_what_an_engine_does_not_offer_has_no_stage() -> None:
    core = EngineCore(LedgerRunner(4), model_info(), SchedulerConfig(4))
    named = [[getattr(stage, "__name__", "") for stage in stages] for stages in core._stages()]
    assert named == [["_expire", "_schedule"], ["_launch", "_await"], ["_commit"]]
