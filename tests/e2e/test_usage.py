"""The ledger of a whole Roundhouse with real engines: what a client was shown is what it owes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.conftest import KEY, Installation, installation

PRICES = """
[[prices]]
name = "roundhouse-demo-2m"
input = 1_000_000
cached_input = 0
output = 1_000_000
"""


@pytest.fixture(scope="module")
def priced(engine: str) -> Iterator[Installation]:
    """An installation whose small model has a price: a micro-dollar per token."""
    with installation(tiers=(), served={"small": engine}, tables=PRICES) as running:
        yield running


def usage(installation: Installation, *arguments: str) -> str:
    """What `roundhouse usage` prints, while everything runs."""
    environment = {**os.environ, "ROUNDHOUSE_REDIS_DATA": str(installation.folder / "data")}
    command = [sys.executable, "-m", "gateway.cli", "usage", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=60).stdout


def entries(installation: Installation, turns: int) -> dict[str, dict[str, Any]]:
    """The ledger by response id, once it holds so many turns."""
    deadline = time.monotonic() + 20
    while True:
        lines = usage(installation, "--turns", "--json").splitlines()
        if len(lines) >= turns:
            return {entry["turn"]: entry for entry in map(json.loads, lines)}
        assert time.monotonic() < deadline, lines
        time.sleep(0.2)


@pytest.fixture
def client(priced: Installation) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=priced.api, api_key=KEY, max_retries=0) as client:
        yield client


def test_a_cancelled_answer_owes_exactly_what_was_delivered(priced: Installation, client: openai.OpenAI) -> None:
    """Beside one that ended; the table, the CSV and the books agree."""
    whole: Any = client.responses.create(model="small", input="What is Roundhouse?", max_output_tokens=30)
    deltas = 0
    stream = client.responses.create(
        model="small",
        input="Tell me a long story.",
        max_output_tokens=2000,
        stream=True,
        include=["message.output_text.logprobs"],
        extra_body={"ignore_eos": True},
    )
    shown, cancelled = 0, ""
    final: Any = None
    for event in stream:
        if event.type == "response.created":
            cancelled = event.response.id
        elif event.type == "response.output_text.delta":
            shown += len(event.logprobs)
            deltas += 1
            if deltas == 8:
                client.responses.cancel(cancelled)
        elif event.type in ("response.incomplete", "response.completed"):
            final = event.response
    assert final.status == "cancelled"
    ledger = entries(priced, 2)
    assert ledger.keys() == {whole.id, cancelled}
    assert (ledger[cancelled]["outcome"], ledger[cancelled]["output"]) == ("cancelled", shown)
    for response in (whole, final):
        entry, told = ledger[response.id], response.usage
        assert (entry["input"], entry["output"]) == (told.input_tokens, told.output_tokens)
        owed = told.input_tokens - told.input_tokens_details.cached_tokens + told.output_tokens
        assert entry["picodollars"] == owed * 1_000_000
        assert response.roundhouse == {"cost_microdollars": owed}
    total = json.loads(usage(priced, "--json"))["total"]
    assert total["output_tokens"] == whole.usage.output_tokens + shown
    assert total["cost_microdollars"] == sum(entry["picodollars"] for entry in ledger.values()) // 1_000_000
    assert "2 turns, 2 of them with their entries" in usage(priced, "verify")
