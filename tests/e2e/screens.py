"""Pictures of every view of the chat page and of the console, in light and dark, wide and narrow.

    make screens            writes docs/screens.md and docs/images/screens/

A whole `roundhouse serve` with the model of this repository, to which a tenant, an adapter, a route and some questions
have been given. Each picture has the four looks of a view, at half their size.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, expect

from tests.e2e.browser import chromium, visit
from tests.e2e.conftest import NAMES, Installation
from tests.e2e.page import answered, ask, connected, message
from tests.gateway.admin.console.pages import OPERATORS_VIEWS, open_view

DOCS = Path(__file__).resolve().parents[2] / "docs"
WIDTHS = (1280, 390)
HEIGHT = 800
GAP = 32
QUESTIONS = ("What is Roundhouse?", "What is a prefix cache?", "Tell me a joke.", "How do I get a real model?")
HEAD = """# What it looks like

Every view of the [chat page](chat-page.md) and of the [console](console.md), in light and dark, on a wide and on a
narrow screen. `make screens` takes these pictures and writes this page, with the model of this repository.
"""
PRICES = """
[[prices]]
name = "roundhouse-demo-2m"
input = 150000
output = 600000

[[prices]]
name = "roundhouse-demo-large"
input = 1500000
output = 6000000
"""
CONSOLE = {
    **{
        address.replace("shop", "acme"): heading.replace("shop", "acme") for address, heading in OPERATORS_VIEWS.items()
    },
    "#/adapters/pirate": "Adapter pirate",
    "#/routes/assistant": "Route assistant",
}
"""Heading of each view that has an address."""

ADMIN = """([method, path, body]) => fetch(`/admin/v1/${path}`, {
  method, body: JSON.stringify(body), headers: { "content-type": "application/json", "if-match": "*" },
}).then(async (answer) => {
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
})"""


def furnish(page: Page) -> None:
    """A tenant with users, keys and limits, a route with a canary, as an operator makes them."""

    def admin(method: str, path: str, body: dict[str, Any]) -> Any:
        return page.evaluate(ADMIN, [method, path, body])

    admin("POST", "tenants", {"name": "acme", "description": "Acme Corporation"})
    ada = admin("POST", "tenants/acme/users", {"subject": "ada"})["id"]
    admin("POST", "tenants/acme/keys", {"description": "Ada's notebook", "user": ada})
    admin("POST", "tenants/acme/keys", {"description": "build server", "scopes": ["chat"]})
    limits = {"requests_per_minute": 600, "output_tokens_per_minute": 100_000, "spend_per_day": 5_000_000}
    admin("PUT", "tenants/acme/quotas", {"quota": limits})
    targets = [{"model": NAMES["small"], "weight": 95}, {"model": NAMES["large"], "weight": 5}]
    admin("POST", "routes", {"name": "assistant", "description": "what the intranet asks", "targets": targets})


def picture(page: Page) -> Image.Image:
    """A view in its four looks: light above dark, wide beside narrow."""
    shots = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark", reduced_motion="reduce")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": HEIGHT})
            shots.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
    whole = Image.new("RGB", (sum(WIDTHS) + GAP, 2 * HEIGHT + GAP), (128, 128, 128))
    for index, shot in enumerate(shots):
        row, column = divmod(index, 2)
        whole.paste(shot, (column * (WIDTHS[0] + GAP), row * (HEIGHT + GAP)))
    return whole.resize((whole.width // 2, whole.height // 2), Image.Resampling.LANCZOS)


def to_end(page: Page) -> None:
    page.locator("#scroller").evaluate("scroller => scroller.scrollTo(0, scroller.scrollHeight)")


def chat_pictures(page: Page, save: Callable[[str, str], None]) -> None:
    """The states of the chat page."""
    page.goto("/")
    connected(page)
    expect(page.locator("#model option", has_text="pirate")).to_have_count(1)
    save("welcome", "The chat page, empty")
    for question in QUESTIONS:
        ask(page, question)
        answered(page)
    page.locator("details.route summary").last.click()
    to_end(page)
    save("answer", "An answer with its card")
    page.locator("details.route summary").last.click()
    page.get_by_role("button", name="Compare").last.click()
    expect(page.locator(".compare-form")).to_be_visible()
    save("compare-form", "Whom else to ask, and what that costs")
    page.locator(".compare-form").get_by_role("button", name="Ask").click()
    expect(page.get_by_role("button", name="Prefer this").first).to_be_visible()
    to_end(page)
    save("compare", "Answers side by side")
    page.locator(".comparison-foot").get_by_role("button", name="Close").click()
    for name, title in (("Settings", "Settings of a conversation"), ("Prompts", "The library of prompts")):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        save(name.lower(), title)
        page.keyboard.press("Escape")
    message(page).fill("")


def console_pictures(page: Page, save: Callable[[str, str], None]) -> None:
    """The views of the console, and the page of its API."""
    for address, heading in CONSOLE.items():
        open_view(page, address, heading)
        save(f"console-{heading.lower().replace(' ', '-')}", f"Console: {heading}")
    open_view(page, "#/turns", "Turns")
    page.locator("main .scroll tbody a").last.click()  # its tier was chosen
    expect(page.locator("dl.pairs")).to_be_visible()
    save("console-turn", "Console: one turn")
    open_view(page, "#/tenants/acme/keys", "Keys of acme")
    page.get_by_role("button", name="Make a key").click()
    save("console-change", "Console: a change, before it is made")
    page.keyboard.press("Escape")
    page.goto("/admin/api/")
    expect(page.locator("details.operation").first).to_be_visible()
    save("admin-api", "The page of the admin API")


def main() -> None:
    folder = DOCS / "images" / "screens"
    folder.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    running = Installation(tiers=["small", "large"], tables=PRICES)
    try:
        [address] = re.findall(r"http://127\.0\.0\.1:\d+/auth/link\?secret=\S+", running.wait_said("/auth/link"))
        with chromium() as browser, visit(browser, running.url) as tab:
            page = tab.page

            def save(name: str, title: str) -> None:
                picture(page).save(folder / f"{name}.webp", quality=60, method=6)
                parts.append(f"## {title}\n\n![{title}](images/screens/{name}.webp)\n")

            page.goto(address)
            expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
            furnish(page)
            chat_pictures(page, save)
            console_pictures(page, save)
    finally:
        running.close()
    (DOCS / "screens.md").write_text("\n".join(parts), "utf-8")


if __name__ == "__main__":
    main()
