"""A real Prometheus that scrapes a real gateway, and answers every query of the dashboard and of the alerts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import yaml
from prometheus_client import generate_latest, start_http_server

from tests.deploy.test_monitoring import ALERTS, controlled, expressions, rules
from tests.gateway.conftest import EngineThread, Serve, Served
from tests.ports import free_port

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is not installed: apt-get install prometheus"
    ),
]


@contextlib.asynccontextmanager
async def prometheus(targets: Sequence[int], folder: Path, rules: Path = ALERTS) -> AsyncIterator[httpx2.AsyncClient]:
    """A Prometheus that scrapes these ports twice a second, and evaluates rules once a second."""
    addresses = {"targets": [f"127.0.0.1:{port}" for port in targets]}
    scraped = {"job_name": "roundhouse", "scrape_interval": "500ms", "static_configs": [addresses]}
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        yaml.safe_dump(
            {"global": {"evaluation_interval": "1s"}, "rule_files": [str(rules)], "scrape_configs": [scraped]}
        )
    )
    address = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://{address}/api/v1", timeout=20, verify=False) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def result(client: httpx2.AsyncClient, query: str) -> list[Any]:
    response = await client.get("/query", params={"query": query})
    assert response.status_code == 200, f"{query}: {response.text}"  # while it starts: 503, in plain text
    body = response.json()
    assert body["status"] == "success", f"{query}: {response.text}"
    assert not body.get("warnings"), f"{query}: {response.text}"
    found: list[Any] = body["data"]["result"]
    return found


async def scraped(client: httpx2.AsyncClient, times: int) -> None:
    """Wait until each target was scraped so many times since now."""
    async with asyncio.timeout(60):
        for _ in range(times):
            before = await _scrapes(client)
            while await _scrapes(client) <= before:  # noqa: ASYNC110  what is waited for has no event
                await asyncio.sleep(0.1)


async def _scrapes(client: httpx2.AsyncClient) -> int:
    try:
        found = await result(client, "min(count_over_time(up[1h]))")
    except (httpx2.HTTPError, AssertionError):  # it is starting
        return 0
    return int(found[0]["value"][1]) if found else 0


async def turn(served: Served, text: str) -> None:
    await served.client.chat.completions.create(
        model="auto", messages=[{"role": "user", "content": text}], max_tokens=4, extra_body={"ignore_eos": True}
    )


async def test_every_query_is_answered(serve: Serve, tmp_path: Path) -> None:
    """None fails, and a panel whose metrics all have samples shows something."""
    controller = controlled().registry
    server, _ = start_http_server(0, "127.0.0.1", controller)
    async with serve() as served, prometheus([served.port, server.server_port], tmp_path) as client:
        await turn(served, "hello")
        await scraped(client, 2)
        await turn(served, "hello again")
        await scraped(client, 2)
        page = (served.gateway.metrics.page() + generate_latest(controller)).decode()
        sampled = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}
        alerts = {rule["expr"] for rule in rules()}
        answered = 0
        for where, expression in expressions():
            query = expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$pool", ".*")
            found = await result(client, query)
            if expression not in alerts and set(re.findall(r"\broundhouse_\w+", query)) <= sampled:
                for _ in range(20):  # after a scrape that took too long there is nothing until the next one
                    if found:
                        break
                    await asyncio.sleep(0.5)
                    found = await result(client, query)
                assert found, f"{where}: {query}"
            answered += bool(found)
        assert answered > 30
        groups = (await client.get("/rules")).json()["data"]["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
        await served.settle()
    server.shutdown()
    server.server_close()


SECONDS = {"5m": 4, "10m": 5, "30m": 6, "1h": 8, "6h": 12, "3d": 20}
"""By range of the rules, the seconds that stand in for it in a test."""
PAGE = "RoundhouseAvailabilityBurnFast"


def hastened(folder: Path) -> Path:
    """The rules, with seconds for minutes, hours and days."""
    file = folder / "hastened.yml"
    file.write_text(re.sub(r"\[(\w+)\]", lambda found: f"[{SECONDS[found[1]]}s]", ALERTS.read_text("utf-8")))
    return file


async def firing(client: httpx2.AsyncClient) -> dict[str, Any]:
    """Annotations by name of each alert that fires."""
    alerts = (await client.get("/alerts")).json()["data"]["alerts"]
    return {each["labels"]["alertname"]: each["annotations"] for each in alerts if each["state"] == "firing"}


async def paging(client: httpx2.AsyncClient, wanted: bool) -> None:
    """Wait until the page's alert fires, or no longer does."""
    while (PAGE in await firing(client)) is not wanted:  # noqa: ASYNC110  what is waited for has no event
        await asyncio.sleep(0.5)


async def ask_on(served: Served) -> None:
    """Ask one question after the other, whatever becomes of them."""
    for number in itertools.count():
        with contextlib.suppress(openai.APIStatusError):
            await turn(served, f"hello {number}")
        await asyncio.sleep(0.05)


async def test_an_outage_pages_until_it_is_mended(serve: Serve, model: Path, tmp_path: Path) -> None:
    with EngineThread(model) as mortal:
        async with (
            serve(engines={"small": [mortal.address]}, turns={"move_timeout": 1.0}) as served,
            prometheus([served.port], tmp_path, hastened(tmp_path)) as client,
            asyncio.timeout(120),
        ):
            asking = asyncio.create_task(ask_on(served))
            await scraped(client, 6)
            assert PAGE not in await firing(client)
            await asyncio.to_thread(mortal.stop)
            await paging(client, True)
            assert (await firing(client))[PAGE]["runbook_url"] == f"docs/runbooks/{PAGE}.md"
            fresh = EngineThread(model)
            fresh.address = mortal.address
            with fresh:
                await paging(client, False)
                asking.cancel()
                await asyncio.wait([asking])
                await served.settle()
