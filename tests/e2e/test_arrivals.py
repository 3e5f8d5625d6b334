"""`roundhouse serve` on a machine without models: it fetches three, and answers from the first one on."""

from __future__ import annotations

import contextlib
import re
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import gguf
import msgspec
import openai
import pytest
from playwright.sync_api import Browser, expect

from gateway.processes.demo import TRAINED
from tests.e2e.browser import needs_chromium, visit
from tests.e2e.conftest import KEY, Installation
from tests.e2e.page import connected
from tests.engine.checkpoint.gguf.miniature import write_gguf
from tests.engine.checkpoints import write_checkpoint
from tests.gateway.models.catalogues import write_catalogue
from tests.gateway.models.servers import file_server

TIERS = ("small", "medium", "large")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """GGUF files of one tiny model under three names, which makes them differ."""
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = write_checkpoint(folder / "checkpoint", vocab_size=512, max_position_embeddings=2048)

    def file(tier: str) -> bytes:
        def rename(writer: gguf.GGUFWriter) -> None:
            writer.add_description(tier)

        return write_gguf(folder / f"{tier}.gguf", checkpoint, change=rename).read_bytes()

    return {tier: file(tier) for tier in TIERS}


@contextlib.contextmanager
def fetching(
    hub: str, files: dict[str, bytes], folder: Path, *, kv_tokens: int = 4096, **environment: str
) -> Iterator[Installation]:
    """A Roundhouse that has no models."""
    catalogue = write_catalogue(folder / "catalogue.toml", files, **dict.fromkeys(files, f"kv_tokens = {kv_tokens}"))
    running = Installation(
        tiers=(),
        ROUNDHOUSE_MODELS_SERVE=",".join(files),
        ROUNDHOUSE_MODELS_CATALOGUE=str(catalogue),
        ROUNDHOUSE_MODELS_STORE=str(folder / "store"),
        HF_ENDPOINT=hub,
        HF_HOME=str(folder / "hf"),
        XDG_STATE_HOME=str(folder / "state"),
        **environment,
    )
    try:
        yield running
    finally:
        running.close()


def ask(running: Installation, model: str) -> dict[str, object]:
    """Return how a request was routed."""
    with openai.OpenAI(base_url=running.api, api_key=KEY, max_retries=0) as client:
        asked = {"x-roundhouse-events": "true"}
        stream = client.responses.create(
            model=model, input="hello", max_output_tokens=2, stream=True, extra_headers=asked
        )
        events = [event.to_dict() for event in stream]
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    return next(event for event in events if event["type"] == "roundhouse.route")


def readiness(running: Installation) -> dict[str, object]:
    with urllib.request.urlopen(running.url + "/readyz", timeout=10) as response:
        found: dict[str, object] = msgspec.json.decode(response.read())
        return found


@needs_chromium
def test_the_first_model_answers_while_the_others_come(
    browser: Browser, files: dict[str, bytes], tmp_path: Path
) -> None:
    with file_server() as server:
        server.publish("small.gguf", files["small"])
        server.publish("medium.gguf", files["medium"], hold=True)
        server.publish("large.gguf", files["large"])
        with fetching(server.url, files, tmp_path) as running, visit(browser, running.url) as tab:
            running.wait_ready()
            running.wait_said("fetching the medium tier")
            tab.page.goto("/")
            connected(tab.page)
            line = tab.page.locator("#coming")
            expect(line).to_have_text(re.compile(r"Medium is coming: \d+ % of 1 MB\. Large is coming: 0 % of 1 MB\."))
            routed = ask(running, "medium")
            assert (routed["tier"], routed["reason"]) == ("small", "fallback")
            assert re.search(
                r"the medium tier is coming: \d+ % of 1 MB, the small tier stands in", str(routed["reasons"])
            )
            found = readiness(running)
            assert found["status"] == "ready"
            assert "the medium tier (tiny-medium) is coming" in str(found["problems"])
            with pytest.raises(openai.InternalServerError, match="'tiny-large' is coming"):
                ask(running, "tiny-large")
            server.release("medium.gguf")
            running.wait_said("the medium tier answers")
            running.wait_said("the large tier answers")
            expect(line).to_be_hidden()
            expect(tab.page.locator("#model")).to_contain_text("tiny-large")
            assert ask(running, "medium")["model"] == "tiny-medium"
            assert ask(running, "tiny-large")["tier"] == "large"
            assert readiness(running) == {"status": "ready", "problems": []}
            assert running.stop() == 0


def test_models_that_come_reach_every_gateway_process(files: dict[str, bytes], tmp_path: Path) -> None:
    two = {"ROUNDHOUSE_SERVER_GATEWAYS": "2"}
    fetched = {tier: files[tier] for tier in ("small", "medium")}
    with file_server() as server:
        server.publish("small.gguf", files["small"])
        server.publish("medium.gguf", files["medium"], hold=True)
        with fetching(server.url, fetched, tmp_path, kv_tokens=2048, **two) as running:
            assert "the small tier takes 1,024 tokens a request" in running.wait_ready()
            for _ in range(6):  # whichever process takes the connection
                routed = ask(running, "medium")
                assert routed["tier"] == "small" and "the medium tier is coming" in str(routed["reasons"])
            server.release("medium.gguf")
            running.wait_said("the medium tier takes 1,024 tokens a request")
            in_a_row, deadline = 0, time.monotonic() + 60
            while in_a_row < 12:
                in_a_row = in_a_row + 1 if ask(running, "medium")["tier"] == "medium" else 0
                assert time.monotonic() < deadline
            assert readiness(running) == {"status": "ready", "problems": []}
            assert running.stop() == 0


@pytest.mark.deep
@needs_chromium
def test_without_a_network_the_model_of_this_repository_answers(
    browser: Browser, files: dict[str, bytes], tmp_path: Path
) -> None:
    """The terminal and the page say so, and what to do."""
    with fetching("http://127.0.0.1:1", files, tmp_path) as running:
        said = running.wait_ready()
        assert "no model could be fetched" in said and "start again" in said
        with visit(browser, running.url) as tab:
            tab.page.goto("/")
            connected(tab.page)
            expect(tab.page.locator("#coming")).to_contain_text("No model could be fetched")
        for model in ("auto", "small"):
            assert ask(running, model)["model"] == "roundhouse-demo-2m"
        with pytest.raises(openai.NotFoundError, match="available: auto, small, "):
            ask(running, "large")
        assert running.stop() == 0


@pytest.mark.deep
def test_the_smallest_model_of_the_catalogue_is_served_as_it_is(smallest_model: Path) -> None:
    """The real file, from this user's store, with the adapters that were trained on it."""
    table = tomllib.loads((TRAINED / "adapters.toml").read_text())
    adapters = {name for name, adapter in table.items() if adapter["base"] == "smollm2-135m"}
    running = Installation(tiers=(), ROUNDHOUSE_MODELS_SERVE="small")
    try:
        assert "coming" not in running.wait_ready()
        with openai.OpenAI(base_url=running.api, api_key=KEY) as client:
            answer = client.responses.create(
                model="auto", input="What is the capital of France?", temperature=0, max_output_tokens=20
            )
            assert adapters and adapters <= {model.id for model in client.models.list()}
        assert answer.model == "smollm2-135m"
        assert "Paris" in answer.output_text
    finally:
        running.close()
