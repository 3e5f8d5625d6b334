"""Pictures of pages for the documentation, as `make screens` takes them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from tests.e2e.layouts import HEIGHT, MOST_DIFFERENT, WIDTHS, different

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER = DOCS / "images" / "screens"
GAP = 32
ENCODED = 16
"""Steps of 255 that pixels around a change may differ by, as pictures are written with losses."""
SIZE = ((sum(WIDTHS) + GAP) // 2, (2 * HEIGHT + GAP) // 2)


def seen(page: Page) -> Image.Image:
    """What the page shows."""
    return Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")


def four_looks(page: Page, arrange: Callable[[Page], None]) -> Image.Image:
    """A view in its four looks at half their size: light above dark, wide beside narrow.

    Args:
        arrange: what a reader does on a screen of this size before looking.
    """
    whole = Image.new("RGB", (sum(WIDTHS) + GAP, 2 * HEIGHT + GAP), (128, 128, 128))
    for row, scheme in enumerate(("light", "dark")):
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark", reduced_motion="reduce")
        for column, width in enumerate(WIDTHS):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            arrange(page)
            page.mouse.move(0, 0)
            whole.paste(seen(page), (column * (WIDTHS[0] + GAP), row * (HEIGHT + GAP)))
    page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
    return whole.resize(SIZE, Image.Resampling.LANCZOS)


def nothing(page: Page) -> None:
    """What a reader does who only looks."""


def keep(picture: Image.Image, file: Path, quality: int) -> None:
    """Write a picture, unless what is there looks the same: each change of a picture stays in the repository."""
    written = io.BytesIO()
    picture.save(written, "webp", quality=quality, method=6)
    if file.exists():
        before, now = (Image.open(each).convert("RGB") for each in (file, written))
        if before.size == now.size and different(before, now, ENCODED) <= MOST_DIFFERENT:
            return
    file.write_bytes(written.getvalue())


class Album:
    """The pictures of a page of the documentation, in its order."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}
        """By the names of their files."""

    def add(self, page: Page, name: str, title: str, arrange: Callable[[Page], None] = nothing) -> None:
        """Take a picture of what the page shows now."""
        assert name not in self._titles
        keep(four_looks(page, arrange), FOLDER / f"{name}.webp", quality=60)
        self._titles[name] = title

    def close(self, head: str) -> None:
        """Write the page of the documentation, and remove pictures that are not among these."""
        parts = [f"## {title}\n\n![{title}](images/screens/{name}.webp)\n" for name, title in self._titles.items()]
        (DOCS / "screens.md").write_text("\n".join((head, *parts)), "utf-8")
        for file in FOLDER.iterdir():
            if file.stem not in self._titles:
                file.unlink()
