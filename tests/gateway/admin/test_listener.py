"""The admin API on a listener of its own."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx2
import msgspec
import pytest

from gateway.admin.app import create_admin_app
from gateway.admin.listener import listening
from gateway.config.configuration import Configuration
from gateway.config.settings import AdminSettings, SettingsError, demo_settings
from tests.gateway.admin.conftest import OPERATOR, TENANTS
from tests.gateway.conftest import Serve
from tests.ports import free_port

pytestmark = pytest.mark.anyio

HEADERS = {"authorization": f"Bearer {OPERATOR}"}


async def test_it_is_absent_from_the_public_port_then(serve: Serve) -> None:
    """And its own port serves nothing else."""
    port = free_port()
    async with (
        serve(tenants=TENANTS, admin=AdminSettings(listen=f"127.0.0.1:{port}")) as served,
        httpx2.AsyncClient() as http,
    ):
        public = await http.get(f"{served.url}/admin/v1/tenants", headers=HEADERS)
        assert public.status_code == 404
        own = await http.get(f"http://127.0.0.1:{port}/admin/v1/tenants", headers=HEADERS)
        assert own.status_code == 200
        assert (await http.get(f"http://127.0.0.1:{port}/admin/static/js/admin.js")).status_code == 200
        assert (await http.get(f"http://127.0.0.1:{port}/v1/models", headers=HEADERS)).status_code == 404
        link = f"http://127.0.0.1:{port}/auth/link?secret={await served.gateway.sign_in.links.make()}"
        assert (await http.get(link)).headers["location"] == "/admin/"
        assert (await http.get(f"http://127.0.0.1:{port}/admin/v1/me")).json()["session"]["method"] == "link"
        elsewhere = {**HEADERS, "host": "attacker.example"}
        assert (await http.get(f"http://127.0.0.1:{port}/admin/v1/tenants", headers=elsewhere)).status_code == 403


async def test_a_unix_socket_is_its_owners(serve: Serve, tmp_path: Path) -> None:
    """Nobody else may connect; the file is gone afterwards."""
    path = tmp_path / "admin.sock"
    async with serve(tenants=TENANTS, admin=AdminSettings(listen=f"unix:{path}")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        transport = httpx2.AsyncHTTPTransport(uds=str(path))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost/admin/v1") as http:
            assert (await http.get("/tenants", headers=HEADERS)).status_code == 200
    assert not path.exists()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", "unix:/nowhere/admin.sock", "192.0.2.1:80"])
async def test_an_address_that_cannot_be_used_is_an_error(address: str) -> None:
    """That names the setting."""
    settings = msgspec.structs.replace(demo_settings(), admin=AdminSettings(listen=address))
    with pytest.raises(SettingsError, match=r"admin\.listen"):
        async with listening(create_admin_app(), Configuration(settings)):
            pass


@pytest.mark.parametrize(("trusted", "second"), [([], 429), (["127.0.0.1"], 401)])
async def test_a_forwarded_address_is_believed_of_trusted_proxies_only(
    serve: Serve, trusted: list[str], second: int
) -> None:
    """A program on this machine is not a proxy because of where it runs."""
    port = free_port()
    server = {"failed_keys_per_minute": 1, "trusted_proxies": trusted}
    admin = AdminSettings(listen=f"127.0.0.1:{port}")
    async with serve(tenants=TENANTS, admin=admin, server=server), httpx2.AsyncClient() as http:
        statuses = []
        for address in ("192.0.2.1", "192.0.2.2"):
            guess = {"authorization": "Bearer guess", "x-forwarded-for": address}
            statuses.append((await http.get(f"http://127.0.0.1:{port}/admin/v1/tenants", headers=guess)).status_code)
    assert statuses == [401, second]
