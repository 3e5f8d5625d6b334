"""A picture of a conversation that is answered by an engine of ours and by llama.cpp's server, with both route cards.

    make screens            writes docs/images/other-engine.webp

A whole `roundhouse serve`: its small tier is an engine with the model of this repository, its large one llama.cpp's own
server with the second smallest model of the catalogue. The router chooses by complexity.
"""

from __future__ import annotations

import re
import sys

from playwright.sync_api import Page, expect

from bench.servers import listening
from gateway.models.catalogue import catalogue
from gateway.models.store import ModelStore, default_folder
from tests.e2e.browser import chromium, visit
from tests.e2e.conftest import Installation
from tests.e2e.layouts import WIDTHS
from tests.e2e.page import answered, ask, connected
from tests.e2e.pictures import DOCS, keep, seen

SIZE = {"width": WIDTHS[0], "height": 1900}
SIMPLE, HARD = (
    "Hello! Who are you?",
    "Explain how TCP differs from UDP, and compare what each is used for, in two sentences.",
)
TABLES = """
[router]
by_complexity = true

[[pools]]
tier = "large"
name = "{name}"
model = "{model}"
dialect = "llama.cpp"
engines = ["http://127.0.0.1:{port}"]
"""


def conversation(page: Page) -> None:
    """One question for each tier, and the cards of both answers."""
    for question, tier in ((SIMPLE, "small"), (HARD, "large")):
        ask(page, question)
        answered(page)
        expect(page.locator("details.route").last).to_have_attribute("data-tier", tier)
    for card in page.locator("details.route").all():
        card.locator("summary").click()
        expect(card).to_have_attribute("open", "")


def main() -> None:
    model = sorted(catalogue(), key=lambda each: each.bytes)[1]
    path = ModelStore(default_folder()).path(model)
    command = [sys.executable, "-m", "bench.xllamacpp_server", str(path)]
    with listening(lambda port: [*command, str(port), "--own-template"], ready="/health") as (port, _):
        tables = TABLES.format(name=f"{model.name}-llama.cpp", model=path, port=port)
        running = Installation(tiers=["small"], tables=tables)
        try:
            [address] = re.findall(r"http://127\.0\.0\.1:\d+/auth/link\?secret=\S+", running.wait_said("/auth/link"))
            with chromium() as browser, visit(browser, running.url, viewport=SIZE) as tab:
                tab.page.emulate_media(color_scheme="light", reduced_motion="reduce")
                tab.page.goto(address)
                expect(tab.page.get_by_role("heading", level=1)).to_have_text("Overview")
                tab.page.goto("/")
                connected(tab.page)
                expect(tab.page.locator("#model option", has_text="large")).to_have_count(1)
                conversation(tab.page)
                shot = seen(tab.page)
        finally:
            running.close()
    keep(shot, DOCS / "images" / "other-engine.webp", quality=80)


if __name__ == "__main__":
    main()
