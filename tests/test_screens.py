"""Every view of the chat page and of the console is among the pictures of docs/screens.md, and every picture that the
documentation shows is there. Where one is missing: tests/e2e/screens.py takes it, `make screens` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from gateway.http.page import STATIC
from tests.e2e.pictures import DOCS, FOLDER, SIZE

PAGES = {
    "index.html": "welcome",
    "shared.html": "shared",
    "admin/index.html": "console-overview",
    "admin/api/index.html": "admin-api",
    "sign_in.html.jinja": "sign-in",
}
"""Pages, and the pictures that begin with them."""


def listed() -> list[str]:
    """Names of the pictures that the page shows."""
    return re.findall(r"\(images/screens/([\w-]+)\.webp\)", (DOCS / "screens.md").read_text("utf-8"))


def test_every_picture_is_shown_once_in_four_looks() -> None:
    assert sorted(listed()) == sorted(file.stem for file in FOLDER.iterdir())
    for file in FOLDER.iterdir():
        with Image.open(file) as picture:
            assert (file.suffix, picture.size) == (".webp", SIZE), file.name


def test_the_documentation_shows_all_its_pictures_and_no_others() -> None:
    shown: set[Path] = set()
    for file in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        names = re.findall(r"!\[[^]]*\]\(([^)]+)\)", file.read_text("utf-8"))
        shown |= {(file.parent / name).resolve() for name in names}
    assert [file for file in shown if not file.is_file()] == []
    images = DOCS / "images"
    kept = {file for file in images.rglob("*") if file.is_file()}
    assert kept == {file for file in shown if images in file.parents}


def test_every_page_has_a_picture() -> None:
    pages = {file.relative_to(STATIC).as_posix() for file in STATIC.rglob("*.html")}
    assert pages | {file.name for file in STATIC.parent.glob("*.jinja")} == PAGES.keys()
    assert set(PAGES.values()) <= set(listed())


def test_every_dialog_of_the_chat_page_has_a_picture() -> None:
    """Each has a module of its own, but the one for the key, which is in the pages."""
    opening = {file.stem for file in (STATIC / "js").rglob("*.js") if "showModal()" in file.read_text("utf-8")}
    dialogs = {stem.removesuffix("-dialog") for stem in opening if stem.endswith("-dialog")}
    in_pages = re.findall(r'<dialog [^>]*id="(\w+)-dialog"', (STATIC / "index.html").read_text("utf-8"))
    assert opening == {f"{name}-dialog" for name in dialogs} | {"bar"} and in_pages == ["key"]
    assert dialogs | {"key"} <= set(listed())


def test_every_view_of_the_console_has_a_picture() -> None:
    views = re.findall(r"\bparts: \[.*?\], title: t\(\"(\w+)\"\)", (STATIC / "console" / "views.js").read_text("utf-8"))
    assert len(views) == (STATIC / "console" / "views.js").read_text("utf-8").count("load: async () =>") > 20
    assert {f"console-{title.lower()}" for title in views} <= set(listed())
