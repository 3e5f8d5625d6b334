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

ROOT = Path(__file__).parents[3]
PAGES = {
    ("chat", "answers"): ["index.html", "shared.html"],
    ("console", "administration", "answers", "names"): ["admin/index.html"],
}
"""The pages of each list of catalogues. Those that several lists name have what all their pages say."""
NAMES = "names"
"""The catalogue of what the API calls things."""
LANGUAGES = {"de": {"one", "other"}}
"""The forms of each language's plurals."""
CATALOGUES = [(language, names) for language in LANGUAGES for names in PAGES]

_IMPORT = re.compile(r'(?:\bfrom|\bimport) ?\(?"(\.[^"]+\.js)"')
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


def read(language: str, name: str) -> dict[str, Any]:
    """The entries of a catalogue, none of which may be there twice."""
    source = (page.STATIC / "languages" / language / f"{name}.js").read_text("utf-8")
    body = source[source.index("export default") + len("export default") : source.rindex("}") + 1]
    pairs = re.sub(r",(\s*\})", r"\1", re.sub(r"^\s*//.*$", "", body, flags=re.MULTILINE))

    def once(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [each for each, _ in found]
        assert len(set(names)) == len(names), [each for each in names if names.count(each) > 1]
        return dict(found)

    entries: dict[str, Any] = json.loads(pairs, object_pairs_hook=once)
    return entries


def texts_of(language: str, catalogues: tuple[str, ...]) -> dict[str, Any]:
    """All entries of catalogues but names; none is in two of them."""
    found: dict[str, Any] = {}
    for name in catalogues:
        entries = read(language, name) if name != NAMES else {}
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
    there, wanted = texts_of(language, catalogues).keys(), texts | plurals.keys()
    assert (wanted - there, there - wanted) == (set(), set()), "missing, and unused"


@pytest.mark.parametrize(("language", "catalogues"), CATALOGUES)
def test_translations_have_the_places_of_their_texts(language: str, catalogues: tuple[str, ...]) -> None:
    """And as many forms as the language has."""
    _, plurals = said(PAGES[catalogues])
    for text, entry in texts_of(language, catalogues).items():
        assert isinstance(entry, dict) == (text in plurals), text
        assert isinstance(entry, str) or entry.keys() == LANGUAGES[language], text
        for form in forms(entry):
            missing = places(text) - places(form)
            assert places(form) <= places(text), text
            # "One file" needs no number.
            assert not missing or (text in plurals and missing == {"{count}"}), text
            assert form.strip() == form and form, text


@pytest.mark.parametrize("catalogues", PAGES)
def test_pages_name_their_catalogues_and_languages(catalogues: tuple[str, ...]) -> None:
    """As `early.js` reads it."""
    tag = f'<html lang="en" data-catalogue="{" ".join(catalogues)}" data-languages="{" ".join(["en", *LANGUAGES])}">'
    for name in PAGES[catalogues]:
        assert tag in (page.STATIC / name).read_text("utf-8")


def sentences() -> set[str]:
    """What the rooms that speak to readers may say, with `{}` for each value."""
    found = set[str]()
    html = Said()
    html.feed((ROOT / "gateway/http/sign_in.html.jinja").read_text("utf-8"))
    found |= {re.sub(r"\{\{.*?\}\}", "{}", text) for text in html.texts}
    rooms = ("router", "gateway/pipeline", "gateway/access", "gateway/safety")
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    for file in [*files, ROOT / "gateway/http/sign_in.py", ROOT / "gateway/admin/alerts.py"]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.add("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_translated_of_the_server_is_what_it_says(language: str) -> None:
    known = sentences()
    entries = read(language, "server")
    assert [text for text in entries if _PLACE.sub("{}", text) not in known] == []
    assert [text for text, entry in entries.items() if places(text) != places(entry)] == []
