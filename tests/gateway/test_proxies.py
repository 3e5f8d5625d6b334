"""The proxies of deploy/proxies in front of a real gateway: turns over WebSockets and HTTP, and what stays inside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import trustme
from websockets.asyncio.client import connect

from tests.gateway.conftest import KEY, Serve, Served, receive, send, text_of, until_end
from tests.gateway.sockets import VARIED
from tests.ports import free_port

pytestmark = pytest.mark.anyio

PROXIES = Path(__file__).parents[2] / "deploy" / "proxies"
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def certificate(authority: trustme.CA, tmp_path: Path) -> Path:
    """Certificate and key for `localhost`, in one file."""
    file = tmp_path / "localhost.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(file))
    return file


@contextlib.asynccontextmanager
async def running(*command: str, port: int, **environment: str) -> AsyncIterator[str]:
    """Run a proxy; yields `localhost:port` once it listens."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.05)
        yield f"localhost:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


def nginx_configuration(served: Served, certificate: Path, folder: Path, port: int) -> Path:
    """Write the example with this machine's ports and files, in what Debian's nginx.conf has around it."""
    example = (PROXIES / "nginx.conf").read_text("utf-8")
    for stands, here in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "server_name chat.example.com": "server_name localhost",
        "/etc/nginx/certificates/chat.example.com.pem": str(certificate),
        "/etc/nginx/certificates/chat.example.com.key": str(certificate),
        "server 127.0.0.1:8080": f"server 127.0.0.1:{served.port}",
        "server 127.0.0.1:8081": f"server 127.0.0.1:{free_port()}",  # one that is away
    }.items():
        assert stands in example
        example = example.replace(stands, here)
    (folder / "roundhouse.conf").write_text(example)
    paths = "".join(
        f"    {kind}_temp_path {folder / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = folder / "main.conf"
    main.write_text(
        f"daemon off;\npid {folder / 'pid'};\nerror_log stderr;\nevents {{}}\n"
        f"http {{\n    access_log off;\n{paths}    include {folder / 'roundhouse.conf'};\n}}\n"
    )
    return main


@contextlib.asynccontextmanager
async def nginx(served: Served, certificate: Path, folder: Path) -> AsyncIterator[str]:
    port = free_port()
    main = str(nginx_configuration(served, certificate, folder, port))
    checked = await asyncio.create_subprocess_exec("nginx", "-t", "-e", "stderr", "-c", main, stderr=-1)
    _, errors = await checked.communicate()
    assert checked.returncode == 0 and b"[warn]" not in errors, errors.decode()
    async with running("nginx", "-e", "stderr", "-c", main, port=port) as address:
        yield address


@contextlib.asynccontextmanager
async def caddy(served: Served, certificate: Path, folder: Path) -> AsyncIterator[str]:
    port = free_port()
    example = (PROXIES / "Caddyfile").read_text("utf-8")
    site = "{$ROUNDHOUSE_SITE:localhost} {\n"
    assert site in example
    file = folder / "Caddyfile"
    # Its own certificate instead of one that it would have to ask for.
    file.write_text(
        "{\n\tadmin off\n\tauto_https off\n}\n" + example.replace(site, f"{site}\ttls {certificate} {certificate}\n")
    )
    environment = {
        "ROUNDHOUSE_SITE": f"localhost:{port}",
        "ROUNDHOUSE_GATEWAYS": f"127.0.0.1:{free_port()} 127.0.0.1:{served.port}",  # the first one is away
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
    }
    command = ("caddy", "run", "--config", str(file), "--adapter", "caddyfile")
    async with running(*command, port=port, **environment) as address:
        yield address


async def streamed(client: httpx2.AsyncClient, **body: object) -> str:
    """Return the text of an answer that is sent as server-sent events."""
    async with client.stream("POST", "/v1/responses", json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines()]
    return text_of([json.loads(line[5:]) for line in lines if line.startswith("data: {")])


@pytest.mark.parametrize(
    "proxy",
    [
        pytest.param(start, id=name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"apt-get install {name}"))
        for name, start in {"nginx": nginx, "caddy": caddy}.items()
    ],
)
async def test_turns_go_through_and_what_is_inside_stays_there(
    proxy: object, serve: Serve, certificate: Path, authority: trustme.CA, tmp_path: Path
) -> None:
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    async with (
        serve(server={"trusted_proxies": ["127.0.0.1"]}) as served,
        proxy(served, certificate, tmp_path) as address,  # type: ignore[operator]
        httpx2.AsyncClient(base_url=f"https://{address}", verify=trusted, headers=HEADERS) as client,
    ):
        short = {"model": "small", "input": "Hello", "max_output_tokens": 8, "temperature": 0}
        async with connect(f"wss://{address}/v1/responses", ssl=trusted, additional_headers=HEADERS) as websocket:
            await send(websocket, type="response.create", **short)
            events = await until_end(lambda: receive(websocket))
        assert text_of(events)
        assert await streamed(client, **short) == text_of(events)
        # What has begun arrives while the turn still runs: nothing is held back.
        long = {"model": "small", "input": "Hello", "max_output_tokens": 3000, **VARIED}
        async with client.stream("POST", "/v1/responses", json={**long, "stream": True}) as response:
            await anext(response.aiter_lines())
            assert served.gateway.turns.running == 1
        assert (await client.get("/")).status_code == 200
        for inside in ("/metrics", "/healthz", "/readyz", "/admin", "/admin/v1/tenants"):
            assert (await client.get(inside)).status_code == 404, inside
