"""A file has at most 400 lines, a function at most 60 lines and 7 parameters; what has more is listed with a reason.

Of scripts and style sheets only the lines are counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".js", ".css"}
ROOMS = ("gateway", "engine", "cache", "router", "kernels", "load", "scale", "deploy", "bench", "tests")
FILE_LINES, FUNCTION_LINES, PARAMETERS = 400, 60, 7

EXCEPTIONS: dict[str, str] = {
    "gateway/pipeline/sources/cache_key.py:parts": "parts of an identity have no defaults: none is forgotten",
    "gateway/pipeline/sources/semantic_cache.py:SimilarAnswers.__init__": "its parts, which semantic_parts.py makes",
    "tests/gateway/pipeline/sources/test_cache_key.py:digest": "the parts of an identity, each of which a test changes",
}
"""By file, or by file and function: why it is larger."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """All functions, methods and nested functions, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        name = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{node.name}" if within else node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, name)


def parameters(function: Function) -> int:
    """Without `self` and `cls`; none for a test, whose parameters are fixtures and cases."""
    if function.name.startswith("test_"):
        return 0
    taken = function.args
    names = [each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def larger(file: Path) -> Iterator[str]:
    text = file.read_text("utf-8")
    path = file.relative_to(ROOT).as_posix()
    if text.count("\n") > FILE_LINES:
        yield path
    if file.suffix != ".py":
        return
    for name, function in functions(ast.parse(text)):
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        if lines > FUNCTION_LINES or parameters(function) > PARAMETERS:
            yield f"{path}:{name}"


def test_what_is_larger_is_listed() -> None:
    """And only that: an exception that is no longer needed goes."""
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*") if file.suffix in SUFFIXES]
    own = [file for file in files if file.is_file() and not {"vendor", "node_modules"} & set(file.parts)]
    assert {file.suffix for file in own} == SUFFIXES
    found = {each for file in own for each in larger(file)}
    assert found == EXCEPTIONS.keys()
