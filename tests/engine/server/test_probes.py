"""Plain HTTP on the engine's own port."""

from __future__ import annotations

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from engine.server.host import EngineServer
from tests.engine.peers import peer_of
from tests.ports import free_port

pytestmark = pytest.mark.anyio


async def test_an_engine_says_whether_it_lives_is_ready_and_how_loaded_it_is(
    address: str, server: EngineServer
) -> None:
    url = address.replace("ws://", "http://")
    async with httpx2.AsyncClient(base_url=url) as client:
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/nothing", 426)):
            assert (await client.get(path)).status_code == status
        async with peer_of(address) as peer:
            await peer.probe()
        page = await client.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families(page.text)
            for sample in family.samples
        }
        assert samples["roundhouse_engine_total_blocks"] == 64
        assert samples["roundhouse_engine_preemptions_total"] == 0
        assert (await client.get("/metrics", headers={"Origin": "http://x"})).status_code != 200
        server.drain(0.0)
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200


async def test_a_second_port_answers_probes_and_nothing_else(server: EngineServer) -> None:
    """For engines at wss://, whose own port asks for a certificate that an orchestrator does not have."""
    probes = f"127.0.0.1:{free_port()}"
    async with (
        server.listening("ws://127.0.0.1:0"),
        server.probed(probes),
        httpx2.AsyncClient(base_url=f"http://{probes}") as client,
    ):
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/", 404)):
            assert (await client.get(path)).status_code == status
        with pytest.raises(InvalidStatus):
            await connect(f"ws://{probes}")
