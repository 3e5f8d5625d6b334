"""`roundhouse serve` as an operator meets it: start, stop, crashes, and what must not be left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import openai
import pytest
from websockets.sync.client import ClientConnection, connect

from engine.checkpoint.digests import checkpoint_digest
from gateway.config.settings import demo_settings
from tests.e2e.conftest import KEY, Installation, installation

LONG = {"type": "response.create", "model": "small", "input": "hello", "ignore_eos": True, "max_output_tokens": 600}
REDIS = r"(valkey|redis)-server"
"""The embedded Redis: the wheel's, or one that is installed."""


def open_socket(running: Installation) -> ClientConnection:
    asked = {"Authorization": f"Bearer {KEY}", "x-roundhouse-events": "true"}
    return connect(running.socket, additional_headers=asked)


def send(socket: ClientConnection, event: dict[str, object]) -> None:
    socket.send(msgspec.json.encode(event).decode())


def receive(socket: ClientConnection) -> dict[str, object]:
    event: dict[str, object] = msgspec.json.decode(socket.recv(timeout=60))
    return event


def until(socket: ClientConnection, *types: str) -> list[dict[str, object]]:
    """All events up to and including the first of one of these types."""
    events = [receive(socket)]
    while events[-1]["type"] not in types:
        events.append(receive(socket))
    return events


def gone(running: Installation) -> bool:
    deadline = time.monotonic() + 20
    while running.pids(f"engine.server|{REDIS}"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_sigterm_lets_a_running_answer_finish_and_leaves_nothing_behind() -> None:
    with installation(tiers=["small"], ROUNDHOUSE_SERVER_DRAIN_TIMEOUT="120") as running:
        assert len(running.pids("engine.server")) == 1
        with open_socket(running) as socket:
            send(socket, LONG)
            until(socket, "response.output_text.delta")
            running.process.send_signal(signal.SIGTERM)
            events = until(socket, "response.completed", "response.incomplete", "response.failed")
            assert events[-1]["type"] == "response.incomplete"
            assert any(event["type"] == "roundhouse.draining" for event in events)
        assert running.process.wait(timeout=60) == 0
        assert gone(running)


def test_nothing_survives_a_supervisor_that_is_killed() -> None:
    with installation(tiers=["small"]) as running:
        assert running.pids(REDIS)
        running.stop(signal.SIGKILL)
        assert gone(running)


def test_several_gateway_processes_start_with_the_same_advice_as_one(engine: str, tmp_path: Path) -> None:
    """That nobody may send requests yet; `test_arrivals` has what they say of tiers."""
    [pool] = demo_settings().pools
    config = tmp_path / "roundhouse.toml"
    config.write_text(f'[[pools]]\ntier = "small"\nname = "demo"\nmodel = "{pool.model}"\nengines = ["{engine}"]\n')
    running = Installation(tiers=(), ROUNDHOUSE_CONFIG=str(config), ROUNDHOUSE_SERVER_GATEWAYS="2")
    try:
        running.wait_said("nobody may send requests yet")
        assert running.stop() == 0
    finally:
        running.close()


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Installation, Path, str]]:
    """An installation, the checkpoint of its small tier, and what it says until it is ready.

    The large tier's checkpoint is so damaged that not even its tokenizer can be read. The medium tier has a cache for
    less than its model's context.
    """
    [pool] = demo_settings().pools
    folder = tmp_path_factory.mktemp("checkpoints")
    small, large = (Path(shutil.copytree(pool.model, folder / tier)) for tier in ("small", "large"))
    (large / "tokenizer.json").write_bytes(b"{")
    digest = checkpoint_digest(small)
    tables = f'''
[[pools]]
tier = "small"
name = "exchanged"
model = "{small}"
sha256 = "{digest}"
[[pools]]
tier = "medium"
name = "good"
model = "{pool.model}"
kv_tokens = 1024
[[pools]]
tier = "large"
name = "damaged"
model = "{large}"
'''
    running = Installation(tiers=(), tables=tables)
    try:
        yield running, small, running.wait_ready()
        assert running.stop() == 0
    finally:
        running.close()


def problems(running: Installation) -> list[str]:
    """What `/readyz` finds of an installation that is not whole."""
    with urllib.request.urlopen(running.url + "/readyz", timeout=10) as response:
        found = msgspec.json.decode(response.read())
    assert found["status"] == "degraded"
    return list(found["problems"])


def test_a_tier_whose_checkpoint_is_damaged_at_the_start_is_out_and_the_others_are_served(
    partly: tuple[Installation, Path, str],
) -> None:
    """Its own name is refused with the reason. What another tier takes is said on the terminal, too."""
    running, _, said = partly
    assert "the medium tier takes 512 tokens a request, its model could take 2,048" in said
    assert "the large tier is out of service, the others answer for it: pools: damaged: model:" in said
    assert not running.pids("engine-large")
    with openai.OpenAI(base_url=running.api, api_key=KEY, max_retries=0) as client:
        assert client.responses.create(model="large", input="hello").model in ("good", "exchanged")
        with pytest.raises(openai.InternalServerError, match="'damaged' is out of service: its checkpoint cannot be"):
            client.responses.create(model="damaged", input="hello")
    reason = "the large tier (damaged) is out of service: its checkpoint cannot be used"
    assert reason in problems(running)


def test_a_tier_whose_checkpoint_was_exchanged_is_out_and_the_others_go_on(
    partly: tuple[Installation, Path, str],
) -> None:
    running, folder, _ = partly
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    [pid] = running.pids("engine-small")
    os.kill(pid, signal.SIGKILL)
    said = running.wait_said("the small tier is out of service")
    assert "was damaged or exchanged; correct pools.model or pools.sha256; then start again" in said
    with openai.OpenAI(base_url=running.api, api_key=KEY) as client:
        assert client.responses.create(model="small", input="hello").model == "good"
    assert any("the small tier" in problem for problem in problems(running))


def test_a_cut_socket_resumes_with_no_lost_or_doubled_character(roundhouse: Installation) -> None:
    create = {**LONG, "model": "medium", "max_output_tokens": 200, "temperature": 1, "seed": 11}
    with open_socket(roundhouse) as socket:
        send(socket, create)
        text, last, response_id = "", -1, ""
        while len(text) < 60:
            event = receive(socket)
            last = int(str(event.get("sequence_number", last)))
            if event["type"] == "response.created":
                response = event["response"]
                assert isinstance(response, dict)
                response_id = response["id"]
            if event["type"] == "response.output_text.delta":
                text += str(event["delta"])
        socket.socket.close()
    with open_socket(roundhouse) as socket:
        send(socket, {"type": "response.resume", "response_id": response_id, "starting_after": last})
        events = until(socket, "response.incomplete")
        text += "".join(str(event["delta"]) for event in events if event["type"] == "response.output_text.delta")
    with open_socket(roundhouse) as socket:
        send(socket, {**create, "roundhouse": {"cache": "no-store"}})
        events = until(socket, "response.incomplete")
        whole = "".join(str(event["delta"]) for event in events if event["type"] == "response.output_text.delta")
    assert text == whole


def test_a_taken_port_and_a_taken_data_folder_are_named_with_the_remedy(roundhouse: Installation) -> None:
    again = Installation(ROUNDHOUSE_REDIS_DATA=str(roundhouse.folder / "data"))
    try:
        assert again.process.wait(timeout=60) == 1
        assert "ROUNDHOUSE_REDIS_DATA" in again.log.read_text()
    finally:
        again.close()
    other = Installation(port=roundhouse.port)
    try:
        assert other.process.wait(timeout=60) == 1
        assert "make serve PORT=" in other.log.read_text()
    finally:
        other.close()


def test_the_health_pages_answer(roundhouse: Installation) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        with urllib.request.urlopen(roundhouse.url + path, timeout=10) as response:
            assert response.status == 200
            body = response.read().decode()
    assert 'roundhouse_engine_up{model="roundhouse-demo-2m"' in body


def test_logs_hold_no_prompt_and_no_key(roundhouse: Installation) -> None:
    secret = "the cobalt giraffe is asleep"
    with openai.OpenAI(base_url=roundhouse.api, api_key=KEY) as client:
        client.responses.create(model="small", input=secret)
    log = roundhouse.log.read_text()
    assert "giraffe" not in log
    # The demo models' names begin with the demo key.
    assert not re.search(rf"{KEY}(?!-)", log)
