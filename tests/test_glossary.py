"""docs/glossary.md and the names in the code."""

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
SHARED_BY = 5
"""Folders that use a class from which on the glossary explains it."""


@cache
def sources() -> dict[str, ast.Module]:
    """Python files of the repository, parsed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return {path: ast.parse((ROOT / path).read_text()) for path in listed if (ROOT / path).exists()}


def classes() -> dict[str, list[str]]:
    """Files outside the tests that define each public class."""
    found = defaultdict(list)
    for path, module in sources().items():
        if not path.startswith("tests/"):
            for node in module.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(path)
    return found


def identifiers(module: ast.Module) -> Iterator[str]:
    """Names that a module defines or uses."""
    for node in ast.walk(module):
        for field in ("name", "id", "attr", "arg", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name


def words(identifier: str) -> set[str]:
    """The words of an identifier in snake_case or CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def links() -> list[tuple[str, str]]:
    """Classes that the glossary names, each with the file that it links."""
    return re.findall(r"\[`(\w+)`\]\(\.\./([\w/.]+)\)", GLOSSARY)


def folder(path: str) -> str:
    """The folder whose question a file answers: two levels deep at most."""
    return "/".join(PurePosixPath(path).parts[:-1][:2])


def test_no_two_public_classes_share_a_name() -> None:
    assert {name: files for name, files in classes().items() if len(files) > 1} == {}


def test_classes_of_the_glossary_are_where_it_says() -> None:
    defined = classes()
    assert [(name, path) for name, path in links() if path not in defined.get(name, ())] == []


def test_classes_that_many_folders_use_are_explained() -> None:
    defined = {name: files[0] for name, files in classes().items() if len(files) == 1}
    users = defaultdict(set)
    for path, module in sources().items():
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and not path.startswith("tests/"):
                for alias in node.names:
                    if alias.name in defined:
                        users[alias.name].add(folder(path))
    shared = {name for name, used in users.items() if len(used - {folder(defined[name])}) >= SHARED_BY}
    assert shared - {name for name, _ in links()} == set()


def test_no_identifier_has_a_word_that_is_not_used() -> None:
    table = GLOSSARY.split("## Words that are not used")[1]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")][2:]
    forbidden = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert len(forbidden) >= len(rows)
    found = Counter(
        (path, name) for path, module in sources().items() for name in identifiers(module) if words(name) & forbidden
    )
    assert found == {}


def test_terms_are_explained_before_they_are_used() -> None:
    terms = [(match[1], match.start()) for match in re.finditer(r"^- \*\*(.+?)\*\*:", GLOSSARY, re.MULTILINE)]
    assert len(terms) == len({term for term, _ in terms})
    before = re.compile(r"^## .*$|`[^`]*`|\([^)]*\)|\*\*.*?\*\*", re.MULTILINE)
    body = GLOSSARY.index("\n## ")
    early = [
        term
        for term, start in terms
        if re.search(rf"(?<![\w-]){re.escape(term)}s?(?![\w-])", before.sub("", GLOSSARY[body:start]), re.IGNORECASE)
    ]
    assert early == []
