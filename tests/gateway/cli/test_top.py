"""`roundhouse top` over real gateways and a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.root import main
from gateway.engines.heartbeat import MAX_ADAPTERS, MAX_TENANTS, overview, turns_with
from gateway.storage.presence import FACTS
from gateway.telemetry.activity import TenantActivity
from tests.gateway.conftest import Serve, Served, eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(tmp_path: Path, redis_url: str) -> str:
    file = tmp_path / "top.toml"
    file.write_text(f'[redis]\nurl = "{redis_url}"\n')
    return str(file)


async def top(config: str, *options: str) -> Result:
    command = ["top", "--config", config, *options]
    return await asyncio.to_thread(CliRunner(env={"COLUMNS": "160"}).invoke, main, command)


async def ask(served: Served, question: str) -> None:
    await served.client.responses.create(model="small", input=question, max_output_tokens=6)


async def beats(*servers: Served) -> None:
    """Let gateways tell what they do, which not every heartbeat does."""
    for served in servers:
        for _ in range(FACTS):
            await served.gateway.presence.beat()


async def test_one_object_tells_of_all_gateways_together(serve: Serve, config: str) -> None:
    async with serve() as first, serve() as second, second.connect():
        await ask(first, "one")
        await ask(second, "two")
        await ask(second, "three")
        await eventually(lambda: second.gateway.connections.open == 1)
        await beats(first, second)
        result = await top(config, "--json")
        names = {first.gateway.presence.id, second.gateway.presence.id}
    seen = json.loads(result.output)
    assert {gateway["id"] for gateway in seen["gateways"]} == names
    assert [(replica["name"], replica["up"]) for replica in seen["replicas"]] == [("small-0", True)]
    [tenant] = seen["tenants"]
    assert (tenant["name"], tenant["running"], tenant["minute"]["turns"]) == ("demo", 0, 3)
    assert tenant["minute"]["output_tokens"] == seen["minute"]["output_tokens"] == 18
    assert sum(gateway["connections"] for gateway in seen["gateways"]) == 1


async def test_one_table_is_printed_and_names_what_was_asked_of(serve: Serve, config: str) -> None:
    async with serve() as served:
        await ask(served, "one")
        await beats(served)
        result = await top(config, "--once", "--url", served.url)
    assert result.exit_code == 0, result.output
    for shown in ("1 gateway", "small-0", "tiny-small", "demo", "first token", "overhead", "ms"):
        assert shown in result.output


async def test_in_a_pipe_nothing_is_cut_off(serve: Serve, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    async with serve() as served:
        await ask(served, "one")
        await beats(served)
        result = await asyncio.to_thread(CliRunner().invoke, main, ["top", "--config", config, "--once"])
        for shown in ("tiny-small", "prompt cached", "demo"):
            assert shown in result.output
    assert "…" not in result.output


async def test_without_a_gateway_it_says_so(config: str, serve: Serve) -> None:
    """`serve` empties Redis."""
    result = await top(config, "--once")
    assert result.exit_code == 1
    assert "roundhouse serve" in result.output


async def test_an_address_that_does_not_answer_is_named(serve: Serve, config: str) -> None:
    async with serve() as served:
        await beats(served)
        result = await top(config, "--once", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9" in result.output


async def test_the_live_table_follows_its_keys(serve: Serve, config: str) -> None:
    """In a terminal of its own: s sorts, p pauses, q ends it."""
    async with serve() as served:
        await ask(served, "one")
        await beats(served)
        terminal, child = pty.openpty()
        os.set_blocking(terminal, False)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway.cli", "top", "--config", config),
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"},
        )
        os.close(child)
        shown = ""

        def shows(text: str) -> bool:
            nonlocal shown
            with contextlib.suppress(BlockingIOError):
                shown += os.read(terminal, 65536).decode(errors="replace")
            return text in shown

        try:
            # It starts an interpreter, which on a busy machine takes longer than anything that a gateway does.
            await eventually(lambda: shows("s sort (tokens)"), lambda: shown, seconds=120)
            assert "small-0" in shown
            os.write(terminal, b"s")
            await eventually(lambda: shows("s sort (turns)"), lambda: shown)
            os.write(terminal, b"p")
            await eventually(lambda: shows("p go on"), lambda: shown)
            os.write(terminal, b"q")
            assert await asyncio.wait_for(process.wait(), 20) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            os.close(terminal)


async def test_a_heartbeat_is_small_however_many_tenants_and_adapters_there_are(serve: Serve) -> None:
    async with serve() as served:
        for number in range(3 * MAX_TENANTS):
            served.gateway.metrics.activity.started(f"tenant-{number:060d}", 0.0)
        for number in range(3 * MAX_ADAPTERS):
            served.gateway.metrics.activity.adapters[f"{number:0128d}"] = 3 * MAX_ADAPTERS - number
        facts = served.gateway.presence.facts()
        for number in range(3 * MAX_TENANTS):
            served.gateway.metrics.activity.ended(f"tenant-{number:060d}", "completed", 0.0)
    assert len(facts["state"]) < 64 * 1024
    seen = overview({"gw": facts})
    assert len(seen.tenants) == MAX_TENANTS
    assert all(isinstance(tenant, TenantActivity) for tenant in seen.tenants)
    assert turns_with(f"{7:0128d}", {"gw": facts}) == 3 * MAX_ADAPTERS - 7
    assert turns_with(f"{MAX_ADAPTERS:0128d}", {"gw": facts}) is None, "there was no room for it"


def test_a_gateway_of_another_version_is_named_and_hides_no_other() -> None:
    assert overview({"gw_old": {"state": "{}"}, "gw_none": {}}).unreadable == ["gw_none", "gw_old"]
    assert turns_with("pirate", {"gw_none": {}}) is None
    assert turns_with("pirate", {}) == 0
