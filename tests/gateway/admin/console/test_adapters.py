"""Adapters in the console: uploaded, swapped back, drained."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from engine.text.processor import TextProcessor
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.admin.conftest import ACME, Administer
from tests.gateway.admin.console.pages import dialog, focused, open_view, press, row, sign_in
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.thread import ServingThread

pytestmark = needs_chromium

NAME = "acme:pirate"


@contextlib.asynccontextmanager
async def serving(administer: Administer, model: Path, folder: Path) -> AsyncIterator[str]:
    """A gateway whose engine takes whatever adapter it is asked for -> its address."""
    token = TextProcessor.from_path(model).encode("a")[-1]
    async with (
        FrameEngine(folder / "one.sock", defaultdict(lambda: token)).serving() as engine,
        administer(engines={"small": [engine.address]}) as api,
    ):
        yield api.served.url


@pytest.fixture
def url(administer: Administer, unsignalled: None, model: Path, tmp_path: Path) -> Iterator[str]:
    with ServingThread(partial(serving, administer, model, tmp_path)) as url:
        yield url


@pytest.fixture
def tab(browser: Browser, url: str) -> Iterator[Visit]:
    with visit(browser, url) as tab:
        yield tab


@pytest.fixture
def folders(model: Path, tmp_path: Path) -> list[Path]:
    """Two adapters of the gateway's model."""
    return [write_adapter(tmp_path / f"pirate-{seed}", model, "only q_proj", seed=seed) for seed in range(2)]


def upload(page: Page, folder: Path) -> None:
    """Choose the two files in the open dialog, and send them."""
    files = [folder / "adapter_config.json", folder / "adapter_model.safetensors"]
    dialog(page).locator("input[type=file]").set_input_files(files)
    expect(dialog(page).get_by_text("Both files are here.")).to_be_visible()
    press(page, "Upload")


def test_an_adapter_is_uploaded_swapped_back_and_drained(tab: Visit, url: str, folders: list[Path]) -> None:
    """By an admin of the tenant, whose name begins its adapters' names."""
    page = tab.page

    def version() -> str:
        headers = {"authorization": f"Bearer {ACME}"}
        return str(httpx2.get(f"{url}/admin/v1/adapters/{NAME}", headers=headers).json()["version"])

    sign_in(page, ACME, "#/adapters")
    page.get_by_role("button", name="Upload an adapter").click()
    expect(dialog(page).get_by_label("Name", exact=True)).to_have_value("acme:")
    dialog(page).get_by_label("Name", exact=True).fill(NAME)
    upload(page, folders[0])
    expect(dialog(page).get_by_text(f"{NAME} is ready.")).to_be_visible()
    expect(dialog(page).get_by_role("list", name="Steps").get_by_role("listitem")).to_have_count(4)
    press(page, "Close")
    first = version()

    row(page, NAME).get_by_role("link").press("Enter")
    page.get_by_role("button", name="Upload a version").click()
    upload(page, folders[1])
    expect(dialog(page).get_by_text(f"{NAME} is ready.")).to_be_visible()
    press(page, "Close")
    assert version() != first

    page.get_by_role("button", name=f"Go back to {first[:12]}").click()
    press(page, "Go back")
    expect(row(page, first[:12])).to_contain_text("now in use")
    assert version() == first
    assert focused(page) != "body"

    page.get_by_role("button", name="Drain", exact=True).click()
    press(page, "Drain")
    expect(page.locator("dl")).to_contain_text("takes no requests")
    open_view(page, "#/adapters", "Adapters")
    expect(row(page, NAME)).to_contain_text("takes no requests")


def test_a_file_that_is_chosen_again_takes_the_place_of_the_first(
    tab: Visit, folders: list[Path], tmp_path: Path
) -> None:
    """And a step that could not be asked for is asked for again."""
    page = tab.page
    wrong = tmp_path / "adapter_model.safetensors"
    wrong.write_bytes(b"no weights")
    sign_in(page, ACME, "#/adapters")
    page.get_by_role("button", name="Upload an adapter").click()
    dialog(page).get_by_label("Name", exact=True).fill(NAME)
    dialog(page).locator("input[type=file]").set_input_files(wrong)
    expect(dialog(page).get_by_text("Missing: adapter_config.json.")).to_be_visible()
    page.route("**/admin/v1/jobs/*", lambda route: route.abort(), times=1)
    upload(page, folders[0])
    expect(dialog(page).get_by_text(f"{NAME} is ready.")).to_be_visible()
    expect(dialog(page).get_by_role("alert")).to_have_count(0)


def test_a_broken_file_is_told_by_its_code(tab: Visit, folders: list[Path]) -> None:
    """And the name leads nowhere."""
    page = tab.page
    weights = folders[0] / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    sign_in(page, ACME, "#/adapters")
    page.get_by_role("button", name="Upload an adapter").click()
    dialog(page).get_by_label("Name", exact=True).fill(NAME)
    upload(page, folders[0])
    expect(dialog(page).get_by_role("alert")).to_contain_text("Code: ")
    press(page, "Close")
    expect(page.get_by_text("There is no adapter yet.")).to_be_visible()
