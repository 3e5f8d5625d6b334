"""Adapters in the console: dropped, swapped back, drained."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from engine.text.processor import TextProcessor
from tests.e2e import keyboard
from tests.e2e.browser import Visit, needs_chromium, visit
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.admin.conftest import ACME, Administer
from tests.gateway.admin.console.pages import dialog, open_view, press, row, sign_in
from tests.gateway.conftest import EngineThread
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.thread import ServingThread

pytestmark = needs_chromium

NAME = "acme:pirate"
FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass
class Installation:
    """A running gateway with one engine."""

    url: str
    key: str
    """Of acme's, which may ask adapters."""
    hold: Callable[[], None] = lambda: None
    """Has the engine say nothing until `release`."""
    release: Callable[[], None] = lambda: None

    def ask(self) -> httpx2.Response:
        """Have the adapter compute its likeliest answer."""
        body = {"model": NAME, "input": "hello", "temperature": 0, "max_output_tokens": 12}
        headers = {"authorization": f"Bearer {self.key}"}
        asked = body | {"roundhouse": {"cache": "no-store"}}
        return httpx2.post(f"{self.url}/v1/responses", json=asked, headers=headers, timeout=60)

    def answer(self) -> str:
        """The text of the adapter's next answer."""
        [message] = self.ask().raise_for_status().json()["output"]
        return str(message["content"][0]["text"])

    def version(self) -> str:
        headers = {"authorization": f"Bearer {ACME}"}
        return str(httpx2.get(f"{self.url}/admin/v1/adapters/{NAME}", headers=headers).json()["version"])


@contextlib.asynccontextmanager
async def installed(administer: Administer, address: str) -> AsyncIterator[Installation]:
    async with administer(engines={"small": [address]}) as api:
        made = await api.operator.post("/tenants/acme/keys", json={"scopes": ["chat", "adapters"]})
        yield Installation(api.served.url, made.raise_for_status().json()["key"])


@contextlib.asynccontextmanager
async def serving(administer: Administer, model: Path, folder: Path) -> AsyncIterator[Installation]:
    """A gateway whose engine takes whatever adapter it is asked for."""
    token, loop = TextProcessor.from_path(model).encode("a")[-1], asyncio.get_running_loop()
    async with (
        FrameEngine(folder / "one.sock", defaultdict(lambda: token)).serving() as engine,
        installed(administer, engine.address) as there,
    ):
        there.hold = partial(loop.call_soon_threadsafe, engine.gate.clear)
        there.release = partial(loop.call_soon_threadsafe, engine.gate.set)
        yield there
        engine.gate.set()


@pytest.fixture
def installation(administer: Administer, unsignalled: None, model: Path, tmp_path: Path) -> Iterator[Installation]:
    with ServingThread(partial(serving, administer, model, tmp_path)) as installation:
        yield installation


@pytest.fixture
def computing(administer: Administer, unsignalled: None, model: Path, tmp_path: Path) -> Iterator[Installation]:
    """With a real engine, which reads the gateway's registry."""
    with (
        EngineThread(model, adapters=tmp_path / "adapters") as engine,
        ServingThread(partial(installed, administer, engine.address)) as installation,
    ):
        yield installation


@pytest.fixture
def tab(browser: Browser, installation: Installation) -> Iterator[Visit]:
    with visit(browser, installation.url) as tab:
        yield tab


@pytest.fixture
def folders(model: Path, tmp_path: Path) -> list[Path]:
    """Two adapters of the gateway's model."""
    return [write_adapter(tmp_path / f"pirate-{seed}", model, "rank 8", seed=seed) for seed in range(2)]


def begin(page: Page) -> None:
    """Open the dialog that uploads an adapter, and name it."""
    keyboard.press(page.get_by_role("button", name="Upload an adapter"))
    keyboard.write(dialog(page).get_by_label("Name", exact=True), NAME)


def drop(page: Page, *files: Path) -> None:
    """Drag files from outside the browser to the open dialog, and drop them there."""
    box = dialog(page).locator(".drop").bounding_box()
    assert box is not None
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    mouse = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        mouse.send("Input.dispatchDragEvent", {"type": kind, **at, "data": data})
    mouse.detach()


def upload(page: Page, folder: Path) -> None:
    """Drop the two files into the open dialog, and send them."""
    drop(page, *(folder / name for name in FILES))
    expect(dialog(page).get_by_text("Both files are here.")).to_be_visible()
    press(page, "Upload")


def made(page: Page) -> None:
    """Wait until the name leads to what was uploaded."""
    expect(dialog(page).get_by_text(f"{NAME} is ready.")).to_be_visible()
    press(page, "Close")


def fact(page: Page, name: str) -> Locator:
    return page.locator("dl.pairs > div").filter(has=page.get_by_text(name, exact=True)).locator("dd")


def test_an_adapter_is_dropped_and_its_steps_are_seen(
    tab: Visit, installation: Installation, folders: list[Path]
) -> None:
    """By an admin of the tenant, whose name begins its adapters' names. The engine has not answered with it yet."""
    page = tab.page
    sign_in(page, ACME, "#/adapters")
    keyboard.press(page.get_by_role("button", name="Upload an adapter"))
    expect(dialog(page).get_by_label("Name", exact=True)).to_have_value("acme:")
    keyboard.write(dialog(page).get_by_label("Name", exact=True), NAME)
    installation.hold()
    drop(page, folders[0] / FILES[1])
    expect(dialog(page).get_by_text("Missing: adapter_config.json.")).to_be_visible()
    upload(page, folders[0])
    steps = dialog(page).get_by_role("list", name="Steps").get_by_role("listitem")
    expect(steps).to_have_count(4)
    expect(dialog(page).locator("[aria-current=step]")).to_have_text("An engine answers with it")
    expect(dialog(page).locator("[data-done=true]")).to_have_text(
        ["Waits for its turn", "Compared with the base model"]
    )
    installation.release()
    expect(dialog(page).locator("[data-done=true]")).to_have_count(4)
    made(page)
    expect(row(page, NAME)).to_contain_text("active")


def test_back_to_the_former_version_changes_the_next_answer(
    browser: Browser, computing: Installation, folders: list[Path]
) -> None:
    """Which a real engine computes with the weights that were dropped."""
    with visit(browser, computing.url) as tab:
        page = tab.page
        sign_in(page, ACME, "#/adapters")
        begin(page)
        upload(page, folders[0])
        made(page)
        first, said = computing.version(), computing.answer()

        keyboard.press(row(page, NAME).get_by_role("link"))
        keyboard.press(page.get_by_role("button", name="Upload a version"))
        upload(page, folders[1])
        made(page)
        assert computing.version() != first
        assert computing.answer() != said

        keyboard.press(page.get_by_role("button", name=f"Go back to {first[:12]}"))
        press(page, "Go back")
        expect(row(page, first[:12])).to_contain_text("now in use")
        assert computing.version() == first
        assert computing.answer() == said
        keyboard.kept(page)


def test_draining_empties_an_adapter(tab: Visit, installation: Installation, folders: list[Path]) -> None:
    """It takes no new request; the running one ends whole, and the view counts it until then. The view asks for the
    adapter, again and again, and for its versions."""
    page = tab.page
    asked: set[str] = set()
    sign_in(page, ACME, "#/adapters")
    begin(page)
    upload(page, folders[0])
    made(page)
    with ThreadPoolExecutor() as threads:
        installation.hold()
        running = threads.submit(installation.ask)
        page.on("request", lambda request: asked.add(request.url) if "/admin/v1/" in request.url else None)
        keyboard.press(row(page, NAME).get_by_role("link"))
        expect(fact(page, "Running turns")).to_have_text("1")
        keyboard.press(page.get_by_role("button", name="Drain", exact=True))
        press(page, "Drain")
        expect(fact(page, "State")).to_have_text("takes no requests")
        expect(fact(page, "Running turns")).to_have_text("1")
        refused = installation.ask()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "adapter_drained")
        installation.release()
        assert running.result().raise_for_status().json()["status"] == "incomplete"  # it has as many tokens as it may
    expect(fact(page, "Running turns")).to_have_text("0")
    path = f"{installation.url}/admin/v1/adapters/{quote(NAME)}"
    assert asked == {path, f"{path}/versions"}
    open_view(page, "#/adapters", "Adapters")
    expect(row(page, NAME)).to_contain_text("takes no requests")


def test_a_file_that_is_chosen_again_takes_the_place_of_the_first(
    tab: Visit, folders: list[Path], tmp_path: Path
) -> None:
    """And a step that could not be asked for is asked for again."""
    page = tab.page
    wrong = tmp_path / FILES[1]
    wrong.write_bytes(b"no weights")
    sign_in(page, ACME, "#/adapters")
    begin(page)
    picker = dialog(page).locator("input[type=file]")
    picker.set_input_files(wrong)
    expect(dialog(page).get_by_text("Missing: adapter_config.json.")).to_be_visible()
    page.route("**/admin/v1/jobs/*", lambda route: route.abort(), times=1)
    picker.set_input_files([folders[0] / name for name in FILES])
    expect(dialog(page).get_by_text("Both files are here.")).to_be_visible()
    press(page, "Upload")
    expect(dialog(page).get_by_text(f"{NAME} is ready.")).to_be_visible()
    expect(dialog(page).get_by_role("alert")).to_have_count(0)


def test_a_broken_file_is_told_by_its_code(tab: Visit, folders: list[Path]) -> None:
    """And the name leads nowhere."""
    page = tab.page
    weights = folders[0] / FILES[1]
    weights.write_bytes(weights.read_bytes()[:100])
    sign_in(page, ACME, "#/adapters")
    begin(page)
    upload(page, folders[0])
    expect(dialog(page).get_by_role("alert")).to_contain_text("Code: adapter_refused")
    press(page, "Close")
    expect(page.get_by_text("There is no adapter yet.")).to_be_visible()
