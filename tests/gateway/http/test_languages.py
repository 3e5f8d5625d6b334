"""The texts of the pages: each is in every catalogue, and no catalogue has any other."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gateway.http import page
from scale.reasons import SENTENCES

ROOT = Path(__file__).parents[3]
SIGN_IN_PAGE = ROOT / "gateway/http/sign_in.html.jinja"
PAGES = {
    ("chat", "answers"): ["index.html", "shared.html"],
    ("console", "administration", "answers", "names"): ["admin/index.html"],
}
"""The pages of each list of catalogues. Those that several lists name have what all their pages say."""
SIGN_IN = ("answers", "sign-in")
"""Catalogues of the pages for signing in, which have no texts of their own: the server says them."""
LANGUAGES = {"de": {"one", "other"}}
"""The forms of each language's plurals."""
CATALOGUES = [(language, names) for language in LANGUAGES for names in PAGES]

_IMPORT = re.compile(r'(?:\bfrom|\bimport) ?\(?"(\.[^"]+\.js)"')
_EXPORT = re.compile(r"^export (?:default|const (\w+) =) (\{.*?^\});", re.MULTILINE | re.DOTALL)
_LITERAL = r'"(?:[^"\\]|\\.)*"'
_TEXT = rf"{_LITERAL}(?:\s*\+\s*{_LITERAL})*"
_T = re.compile(rf"\bt\(\s*({_TEXT})")
_PLURAL = re.compile(rf"\bplural\(\s*({_TEXT}),\s*({_TEXT}),")
_CALL = re.compile(r"(?<!function )\b(t|plural)\(")
_PLACE = re.compile(r"\{\w+\}")
_ATTRIBUTES = {"aria-label", "placeholder", "title"}
_VOID = {"input", "link", "meta", "path", "circle", "rect", "use"}


def modules(name: str) -> set[Path]:
    """Our own modules that a page loads, at once or later."""
    html = (page.STATIC / name).read_text("utf-8")
    waiting = [page.STATIC / each for each in re.findall(r'<script type="module" src="static/([^"]+)"', html)]
    seen: set[Path] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or "vendor" in module.parts or module.name == "language.js":
            continue
        seen.add(module)
        waiting += [(module.parent / each).resolve() for each in _IMPORT.findall(module.read_text("utf-8"))]
    return seen


class Said(HTMLParser):
    """Texts of a page that people read or hear, but for those that are the same in each language."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()
        self._open: list[bool] = []
        """Whether what is in each open element is left as it is."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        kept = tag in {"noscript", "svg", "code"} or given.get("translate") == "no"
        if tag not in _VOID:
            self._open.append(kept or any(self._open))
        if not kept:
            self.texts |= {value for name, value in attrs if name in _ATTRIBUTES and value}

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not any(self._open) and re.search(r"\w", data):
            self.texts.add(data.strip())


def literal(text: str) -> str:
    return "".join(json.loads(part) for part in re.findall(_LITERAL, text))


def said(pages: list[str]) -> tuple[set[str], dict[str, str]]:
    """Texts of pages; texts that depend on a number, with their other form first."""
    texts, plurals = set[str](), dict[str, str]()
    for name in pages:
        html = Said()
        html.feed((page.STATIC / name).read_text("utf-8"))
        texts |= html.texts
        for module in modules(name):
            source = re.sub(r"/\*.*?\*/", "", module.read_text("utf-8"), flags=re.DOTALL)
            found, counted = _T.findall(source), _PLURAL.findall(source)
            assert len(found) + len(counted) == len(_CALL.findall(source)), (
                f"{module.name}: a text is not written out in the call"
            )
            texts |= {literal(text) for text in found}
            plurals |= {literal(other): literal(one) for one, other in counted}
    return texts, plurals


def read(language: str, name: str) -> dict[str, dict[str, Any]]:
    """What a catalogue exports: texts by `default`, `names` of the API, what the server has `said`. No entry of an
    export may be there twice."""

    def once(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [each for each, _ in found]
        assert len(set(names)) == len(names), [each for each in names if names.count(each) > 1]
        return dict(found)

    source = (page.STATIC / "languages" / language / f"{name}.js").read_text("utf-8")
    exports = dict[str, dict[str, Any]]()
    for exported, body in _EXPORT.findall(source):
        pairs = re.sub(r",(\s*\})", r"\1", re.sub(r"^\s*//.*$", "", body, flags=re.MULTILINE))
        exports[exported or "default"] = json.loads(pairs, object_pairs_hook=once)
    assert len(exports) == source.count("export ")
    return exports


def entries_of(language: str, catalogues: tuple[str, ...], exported: str) -> dict[str, Any]:
    """What catalogues export by one name; no entry is in two of them."""
    found: dict[str, Any] = {}
    for name in catalogues:
        entries = read(language, name).get(exported, {})
        assert not found.keys() & entries.keys()
        found |= entries
    return found


def places(text: str) -> set[str]:
    return set(_PLACE.findall(text))


def forms(entry: str | dict[str, str]) -> Iterator[str]:
    yield from [entry] if isinstance(entry, str) else entry.values()


@pytest.mark.parametrize(("language", "catalogues"), CATALOGUES)
def test_catalogues_have_all_texts_of_their_pages_and_no_other(language: str, catalogues: tuple[str, ...]) -> None:
    texts, plurals = said(PAGES[catalogues])
    there, wanted = entries_of(language, catalogues, "default").keys(), texts | plurals.keys()
    assert (wanted - there, there - wanted) == (set(), set()), "missing, and unused"


@pytest.mark.parametrize(("language", "catalogues"), CATALOGUES)
def test_translations_have_the_places_of_their_texts(language: str, catalogues: tuple[str, ...]) -> None:
    """And as many forms as the language has."""
    _, plurals = said(PAGES[catalogues])
    for text, entry in entries_of(language, catalogues, "default").items():
        assert isinstance(entry, dict) == (text in plurals), text
        assert isinstance(entry, str) or entry.keys() == LANGUAGES[language], text
        for form in forms(entry):
            missing = places(text) - places(form)
            assert places(form) <= places(text), text
            # "One file" needs no number.
            assert not missing or (text in plurals and missing == {"{count}"}), text
            assert form.strip() == form and form, text


def test_pages_name_their_catalogues_and_languages() -> None:
    """As `early.js` reads it. No other catalogue is there."""
    for catalogues, names in PAGES.items():
        for name in names:
            assert first_tag(catalogues) in (page.STATIC / name).read_text("utf-8")
    assert first_tag(SIGN_IN) in SIGN_IN_PAGE.read_text("utf-8")
    named = {name for catalogues in (*PAGES, SIGN_IN) for name in catalogues}
    for language in LANGUAGES:
        assert {file.stem for file in (page.STATIC / "languages" / language).iterdir()} == named


def first_tag(catalogues: tuple[str, ...]) -> str:
    return f'<html lang="en" data-catalogue="{" ".join(catalogues)}" data-languages="{" ".join(["en", *LANGUAGES])}">'


ALSO = (
    "gateway/http/sign_in.py",
    "gateway/admin/alerts.py",
    "gateway/admin/endpoints/plan.py",
    "scale/reasons.py",
)
"""Files that speak to readers, beside the rooms that do."""
FOR_THE_COMMAND = {"ProbedEngine", "_by_simulation", "_simulated", "scheduler_config"}
"""What of the planner only `roundhouse plan` shows: it simulates, and takes engines that were timed."""


def sentences() -> set[str]:
    """What the rooms that speak to readers may say, with `{}` for each value."""
    found = set[str]()
    html = Said()
    html.feed(SIGN_IN_PAGE.read_text("utf-8"))
    found |= {re.sub(r"\{\{.*?\}\}", "{}", text) for text in html.texts}
    rooms = ("router", "gateway/pipeline", "gateway/access", "gateway/safety", "scale/planning")
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    for file in [*files, *(ROOT / name for name in ALSO)]:
        found |= strings(ast.parse(file.read_text("utf-8")))
    return found


def strings(tree: ast.AST) -> set[str]:
    """Strings of a piece of code, with `{}` for each value."""
    found = set[str]()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(_PLACE.sub("{}", node.value))
        if isinstance(node, ast.JoinedStr):
            found.add("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
            waiting += [part for part in node.values if isinstance(part, ast.FormattedValue)]
        else:
            waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("catalogues", [*PAGES, SIGN_IN])
def test_what_is_translated_of_the_server_is_what_it_says(language: str, catalogues: tuple[str, ...]) -> None:
    known = sentences()
    entries = entries_of(language, catalogues, "said")
    assert [text for text in entries if _PLACE.sub("{}", text) not in known] == []
    assert [text for text, entry in entries.items() if places(text) != places(entry)] == []


def planned() -> set[str]:
    """Reasons, units and refusals of the planner that the console shows."""
    found, left = set[str](), set[str]()
    for name in ("plan", "kinds", "bounds"):
        for node in ast.parse((ROOT / f"scale/planning/{name}.py").read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in FOR_THE_COMMAND:
                left.add(node.name)
                continue
            for each in ast.walk(node):
                if isinstance(each, ast.FunctionDef | ast.ClassDef):
                    each.body = [part for part in each.body if not documents(part)]
                if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "PlanFigure":
                    found |= strings(each.args[2])
            if not documents(node):
                found |= {text for text in strings(node) if re.search(r"[a-z]", text) and " " in text.strip("; {}")}
    assert left == FOR_THE_COMMAND
    return found - {"", "the load of {} requests/s"}  # what a load binds is not shown


def documents(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_that_the_planner_says_is_translated(language: str) -> None:
    said = {_PLACE.sub("{}", text) for text in entries_of(language, ("administration",), "said")}
    assert planned() - said == set()


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_reasons_of_pools_sizes_are_translated(language: str) -> None:
    said = entries_of(language, ("administration",), "said")
    assert {each for sentences in SENTENCES.values() for each in sentences} - said.keys() == set()
