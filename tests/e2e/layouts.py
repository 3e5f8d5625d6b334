"""What pages look like in a font of boxes, beside what is recorded: where their regions are, and pictures.

    make layouts            records all anew; look at the pictures before they are committed

Recordings hold for one version of Chromium: with another one nothing is compared.
"""

from __future__ import annotations

import functools
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page, Route

from tests.e2e.box_font import box_font

RECORD = os.environ.get("ROUNDHOUSE_RECORD_LAYOUTS") == "1"
WIDTHS = (1280, 390)
HEIGHT = 800
MOST_DIFFERENT = 0.002
"""Part of the pixels that may differ."""
ROUNDED = 3
"""Steps of 255 by which edges and shadows may be rounded; any two colours of the pages differ by 5 or more."""

_PATIENCE = 20.0
"""Seconds for which a page may take to come to rest."""
_FOLDER = Path(__file__).parent / "layouts"
_STYLE = """
@font-face { font-family: Boxes; src: url("/boxes.ttf"); font-weight: 100 900; }
:root { --font: Boxes; --mono: Boxes; }
* { font-synthesis: none; caret-color: transparent; }
"""
_BOXES = """(regions) => Object.fromEntries(Object.entries(regions).map(([name, selector]) => {
  const { x, y, width, height } = document.querySelector(selector).getBoundingClientRect();
  return [name, [x, y, width, height].map((value) => Math.round(100 * value) / 100)];
}))"""


def in_boxes(page: Page) -> None:
    """Have all text of the pages stand in the font of boxes."""

    def restyle(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=response.text() + _STYLE)

    page.route("**/css/base.css", restyle)
    page.route("**/boxes.ttf", lambda route: route.fulfill(body=box_font(), content_type="font/ttf"))


class Layouts:
    """The recorded states of one page.

    Args:
        name: of the recording.
        browser: whose version it must be of, or the test is skipped.
    """

    def __init__(self, name: str, browser: Browser) -> None:
        self._name = name
        self._file = _FOLDER / f"{name}.json"
        version = browser.version.split(".")[0]
        self._known: dict[str, Any] = {"chromium": version}
        if not RECORD:
            self._known = json.loads(self._file.read_text("utf-8"))
            if self._known["chromium"] != version:
                pytest.skip(
                    f"recorded with Chromium {self._known['chromium']}, not {version}: layouts are not compared"
                )

    def compare(self, page: Page, state: str, regions: dict[str, str]) -> None:
        """Compare a state of the page, or record it.

        Args:
            regions: selectors by name.
        """
        page.evaluate("document.fonts.ready")
        boxes, shown = _seen(page, regions)
        picture = _FOLDER / f"{self._name}-{state}.png"
        if RECORD:
            self._known[state] = boxes
            _FOLDER.mkdir(exist_ok=True)
            shown.save(picture, optimize=True)
            self._file.write_text(json.dumps(self._known, indent=1) + "\n", "utf-8")
            return
        deadline = time.monotonic() + _PATIENCE
        while boxes != self._known[state] and time.monotonic() < deadline:  # it may not be at rest yet
            page.wait_for_timeout(100)
            boxes, shown = _seen(page, regions)
        assert boxes == self._known[state], (state, boxes, self._known[state])
        recorded = Image.open(picture).convert("RGB")
        assert shown.size == recorded.size
        part = different(shown, recorded)
        assert part <= MOST_DIFFERENT, f"{state}: {part:.2%} of the pixels differ"


def _seen(page: Page, regions: dict[str, str]) -> tuple[dict[str, list[float]], Image.Image]:
    boxes: dict[str, list[float]] = page.evaluate(_BOXES, regions)
    return boxes, Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")


def different(one: Image.Image, other: Image.Image, rounded: int = ROUNDED) -> float:
    """Part of the pixels of which one channel or more differs by more than this many steps of 255.

    Each channel counts for itself: in grey, a change of blue alone weighs a ninth.
    """
    channels = ImageChops.difference(one, other).split()
    farthest = functools.reduce(ImageChops.lighter, channels).histogram()
    return sum(farthest[rounded + 1 :]) / (one.width * one.height)
