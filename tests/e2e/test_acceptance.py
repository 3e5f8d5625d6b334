"""What somebody who has never seen Roundhouse does in a browser, beginning with the address that `serve` prints.

The model is the catalogue's small one where this machine has it, else the one of this repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect

from gateway.config.default_pools import default_pools
from gateway.config.model_store import ModelStoreSettings
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.e2e.conftest import Installation
from tests.e2e.page import answer, answered, ask, connected
from tests.e2e.test_page_settings import use
from tests.gateway.admin.console.pages import dialog, open_view, press, row, wait_until

pytestmark = needs_chromium

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
QUESTION = "What is a prefix cache?"
ADAPTER = "house-voice"


def served() -> tuple[str, str, list[Path]]:
    """The tiers to serve, the model's name, and two adapters of it."""
    [pool] = default_pools(ModelStoreSettings(serve=["small"]))
    if Path(pool.model).exists():
        return "small", pool.name, [DEPLOY / "adapters" / "trained" / name for name in ("pirate", "socrates")]
    [pool] = default_pools(ModelStoreSettings(serve=[]))
    return "", pool.name, [DEPLOY / "demo" / "adapters" / name for name in ("pirate", "json")]


def test_nobody_needs_a_terminal(browser: Browser) -> None:
    """A tenant with a budget, an adapter, a key, answers with their cost and reasons, another version and back."""
    tiers, model, adapters = served()
    running = Installation(tiers=(), ROUNDHOUSE_MODELS_SERVE=tiers)
    try:
        [address] = re.findall(r"http://127\.0\.0\.1:\d+/auth/link\?secret=\S+", running.wait_said("/auth/link"))
        with visit(browser, running.url, service_workers="allow") as tab:
            page = tab.page
            page.goto(address)
            expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
            set_price(page, model)
            make_tenant_with_budget(page)
            open_view(page, "#/adapters", "Adapters")
            page.get_by_role("button", name="Upload an adapter").click()
            dialog(page).get_by_label("Name", exact=True).fill(ADAPTER)
            upload(page, adapters[0])
            chat = chat_with_new_key(tab)
            first = ask_for_reasons(chat)
            see_turns(page)

            open_view(page, f"#/adapters/{ADAPTER}", f"Adapter {ADAPTER}")
            page.get_by_role("button", name="Upload a version").click()
            upload(page, adapters[1])
            wait_until(lambda: again(chat) != first)
            page.get_by_role("button", name="Go back to").click()
            press(page, "Go back")
            expect(dialog(page)).to_have_count(0)
            wait_until(lambda: again(chat) == first)
        assert running.stop() == 0
    finally:
        running.close()


def set_price(page: Page, model: str) -> None:
    """Five dollars for a million tokens that are read, ten for a million that are written."""
    open_view(page, "#/prices", "Prices")
    page.get_by_role("button", name="Set a price").click()
    dialog(page).get_by_label("Model or adapter").fill(model)
    dialog(page).get_by_label("Tokens read, dollars per million").fill("5")
    dialog(page).get_by_label("Tokens written, dollars per million").fill("10")
    press(page, "Set")
    expect(row(page, model)).to_contain_text("$10.00")


def make_tenant_with_budget(page: Page) -> None:
    """A dollar a day for the bakery."""
    open_view(page, "#/tenants", "Tenants")
    page.get_by_role("button", name="Make a tenant").click()
    dialog(page).get_by_label("Name").fill("bakery")
    press(page, "Make")
    row(page, "bakery").get_by_role("link").click()
    page.get_by_role("navigation", name="Of bakery").get_by_role("link", name="Quotas").click()
    page.get_by_role("button", name="Change the tenant's limits").click()
    dialog(page).get_by_label("Dollars per day").fill("1")
    press(page, "Set")
    expect(budget(page)).to_contain_text("$1.00")


def budget(page: Page) -> Locator:
    return row(page, "spend per day")


def upload(page: Page, folder: Path) -> None:
    """Send the two files by the open dialog, and wait until the name leads to them."""
    files = [folder / "adapter_config.json", folder / "adapter_model.safetensors"]
    dialog(page).locator("input[type=file]").set_input_files(files)
    press(page, "Upload")
    expect(dialog(page).get_by_text(f"{ADAPTER} is ready.")).to_be_visible()
    press(page, "Close")


def chat_with_new_key(tab: Visit) -> Page:
    """Make a key of the bakery, and open the chat page with it; this tab keeps nothing of the key."""
    page = tab.page
    open_view(page, "#/tenants/bakery/keys", "Keys of bakery")
    page.get_by_role("button", name="Make a key").click()
    dialog(page).get_by_label("Description").fill("oven")
    press(page, "Make")
    key = page.locator("pre.made").inner_text()
    with page.expect_popup() as opened:
        press(page, "Chat with it")
    tab.watch(opened.value)
    connected(opened.value)
    press(page, "I have it")
    kept = "JSON.stringify([{ ...sessionStorage }, { ...localStorage }])"
    assert key not in page.evaluate(kept)
    assert key in opened.value.evaluate(kept)
    return opened.value


def ask_for_reasons(chat: Page) -> str:
    """Two answers, one by the router's choice and one of the adapter; each says why and what it cost -> the second."""
    use(chat, Temperature="0", Longest_answer="24")
    for name in ("auto", ADAPTER):
        chat.get_by_label("Who answers").select_option(name)
        ask(chat, QUESTION)
        answered(chat)
        card = chat.locator("details.route").last
        if not card.evaluate("card => card.open"):
            card.locator("summary").click()
        expect(card.locator("dt", has_text="Why")).to_be_visible()
        expect(card.locator("dd li").first).to_be_visible()
        expect(card.locator("dt:text-is('Cost') + dd")).to_have_text(re.compile(r"\$0\.0*[1-9]"))
    expect(card).to_contain_text(f"the request names {ADAPTER}")
    return str(answer(chat).inner_text())


def see_turns(page: Page) -> None:
    """What both cost and why they came from there, for those who administer; and what is left of the budget."""
    turns = page.locator("main .scroll tbody tr")

    def listed() -> bool:
        page.reload()
        open_view(page, "#/turns", "Turns")
        return turns.count() == 2

    wait_until(listed)
    expect(turns.first).to_contain_text(ADAPTER)
    for index in range(2):
        open_view(page, "#/turns", "Turns")
        turns.nth(index).get_by_role("link").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Turn")
        facts = page.locator("dl.pairs").first
        expect(facts).to_contain_text("bakery")
        expect(facts.locator("dt:text-is('Cost') + dd")).to_have_text(re.compile(r"\$0\.0*[1-9]"))
        expect(page.get_by_role("heading", name="Decision")).to_be_visible()
    expect(page.get_by_text("Complexity")).to_be_visible()
    open_view(page, "#/tenants/bakery/quotas", "Quotas of bakery")
    expect(budget(page)).to_have_text(re.compile(r"\$0\.0*[1-9]"))


def again(chat: Page) -> str:
    """The adapter's answer to the same question."""
    chat.get_by_role("button", name="Retry").last.click()
    answered(chat)
    return str(answer(chat).inner_text())
