"""A real Prometheus that scrapes a real gateway, and answers every query of the dashboard and of the alerts."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tests.deploy.test_monitoring import ALERTS, expressions
from tests.gateway.conftest import Serve, Served

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is not installed: apt-get install prometheus"
    ),
]


@contextlib.asynccontextmanager
async def prometheus(target: str, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A Prometheus that scrapes a target twice a second, and evaluates the alerts."""
    scraped = {"job_name": "roundhouse", "scrape_interval": "500ms", "static_configs": [{"targets": [target]}]}
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        yaml.safe_dump(
            {"global": {"evaluation_interval": "1s"}, "rule_files": [str(ALERTS)], "scrape_configs": [scraped]}
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
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
    """Wait until the target was scraped so many times since now."""
    async with asyncio.timeout(60):
        for _ in range(times):
            before = await _scrapes(client)
            while await _scrapes(client) <= before:  # noqa: ASYNC110  what is waited for has no event
                await asyncio.sleep(0.1)


async def _scrapes(client: httpx2.AsyncClient) -> int:
    try:
        found = await result(client, "count_over_time(up[1h])")
    except (httpx2.HTTPError, AssertionError):  # it is starting
        return 0
    return int(found[0]["value"][1]) if found else 0


async def turn(served: Served, text: str) -> None:
    await served.client.chat.completions.create(
        model="auto", messages=[{"role": "user", "content": text}], max_tokens=4, extra_body={"ignore_eos": True}
    )


async def test_every_query_is_answered(serve: Serve, tmp_path: Path) -> None:
    """None fails, and a panel whose metrics all have samples shows something."""
    async with serve() as served, prometheus(f"127.0.0.1:{served.port}", tmp_path) as client:
        await turn(served, "hello")
        await scraped(client, 2)
        await turn(served, "hello again")
        await scraped(client, 2)
        page = served.gateway.metrics.page().decode()
        sampled = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if not line.startswith("#")}
        alerts = {rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
        answered = 0
        for where, expression in expressions():
            query = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
            found = await result(client, query)
            answered += bool(found)
            if expression not in alerts and set(re.findall(r"\broundhouse_\w+", query)) <= sampled:
                assert found, f"{where}: {query}"
        assert answered > 30
        groups = (await client.get("/rules")).json()["data"]["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
        await served.settle()
