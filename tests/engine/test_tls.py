"""Mutual TLS between gateways and engines, with certificates of authorities made here."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from engine.client.engine_client import EngineClient
from engine.server.command import main
from engine.tls import Certificate, client_context, server_context
from tests.engine.conftest import Checkpoint
from tests.engine.scripted_engine import ScriptedEngine, collect, params
from tests.engine.server.test_command import engine_process, readiness

pytestmark = pytest.mark.anyio

TIMEOUT = 30


class Authority:
    """Signs certificates and writes them to files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        self._name = name
        self.file = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, host: str, trusted: Authority | None = None) -> Certificate:
        """A certificate for a host; its owner trusts `trusted`, or this authority."""
        issued = self._ca.issue_cert(host)
        certificate, key = (str(self._folder / f"{self._name}-{host}.{kind}") for kind in ("pem", "key"))
        for index, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(certificate, append=index > 0)
        issued.private_key_pem.write_to_path(key)
        return Certificate((trusted or self).file, certificate, key)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strange"), "strange")


@pytest.fixture
async def engine(tmp_path: Path, authority: Authority) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(tmp_path / "unused", server_context(authority.issue("127.0.0.1")))
    await engine.start()
    yield engine
    await engine.stop()


async def refused(engine: ScriptedEngine, context: ssl.SSLContext | None, address: str | None = None) -> None:
    """The engine hangs up and keeps nothing. In TLS 1.3 a client learns that from its first read."""
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises((OSError, WebSocketException, EOFError)):
            async with connect(address or engine.address, ssl=context, proxy=None) as socket:
                await socket.recv()
    assert engine.server is not None and not engine.server._connections


async def test_a_gateway_with_a_certificate_is_served(engine: ScriptedEngine, authority: Authority) -> None:
    assert engine.address.startswith("wss://127.0.0.1:")
    async with (
        asyncio.timeout(TIMEOUT),
        EngineClient(engine.address, tls=authority.issue("gateway.internal")) as client,
    ):
        await client.wait_connected()
        async with client.generate([5, 6, 7], params(4)) as generation:
            assert [token for delta in await collect(generation) for token in delta.token_ids] == [5, 6, 7, 5]


async def test_one_without_a_certificate_is_refused(engine: ScriptedEngine, authority: Authority) -> None:
    await refused(engine, client_context(Certificate(authority.file)))


async def test_one_of_another_authority_is_refused(
    engine: ScriptedEngine, authority: Authority, stranger: Authority
) -> None:
    await refused(engine, client_context(stranger.issue("gateway.internal", trusted=authority)))


async def test_one_that_speaks_no_tls_is_refused(engine: ScriptedEngine) -> None:
    await refused(engine, None, engine.address.replace("wss://", "ws://"))


async def test_one_that_speaks_an_old_tls_is_refused(engine: ScriptedEngine, authority: Authority) -> None:
    context = client_context(authority.issue("gateway.internal"))
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    await refused(engine, context)


async def test_a_gateway_refuses_an_engine_of_another_authority(
    engine: ScriptedEngine, authority: Authority, stranger: Authority
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        async with connect(engine.address, ssl=client_context(authority.issue("g", trusted=stranger)), proxy=None):
            pass


async def test_a_gateway_refuses_an_engine_with_another_hosts_certificate(tmp_path: Path, authority: Authority) -> None:
    other = ScriptedEngine(tmp_path / "unused", server_context(authority.issue("other.internal")))
    await other.start()
    try:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"127\.0\.0\.1"):
            async with connect(other.address, ssl=client_context(authority.issue("gateway.internal")), proxy=None):
                pass
    finally:
        await other.stop()


async def test_a_certificate_may_be_for_a_name_instead_of_the_host(tmp_path: Path, authority: Authority) -> None:
    """One for all engines, wherever they are; a gateway takes no other name."""
    named = ScriptedEngine(tmp_path / "unused", server_context(authority.issue("engines.internal")))
    await named.start()
    ours = authority.issue("gateway.internal")
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            EngineClient(named.address, tls=ours, server_name="engines.internal") as client,
            EngineClient(named.address, tls=ours, server_name="else.internal") as other,
        ):
            await client.wait_connected()
            await asyncio.sleep(0.5)
            assert not other.connected
    finally:
        await named.stop()


async def test_renewed_files_are_used_by_the_next_connection(
    engine: ScriptedEngine, authority: Authority, stranger: Authority
) -> None:
    """Also where the first ones were of no use."""
    files = stranger.issue("gateway.internal", trusted=authority)
    async with asyncio.timeout(TIMEOUT), EngineClient(engine.address, tls=files) as client:
        good = authority.issue("gateway.internal")
        for new, old in ((good.certificate, files.certificate), (good.key, files.key)):
            shutil.copy(str(new), str(old))
        await client.wait_connected()


@pytest.mark.parametrize("listen", ["ws://127.0.0.1:0", "unix:///tmp/never.sock"])
async def test_certificates_are_never_ignored(tmp_path: Path, authority: Authority, listen: str) -> None:
    """An address that would be served in clear is refused if there are certificates, and the other way round."""
    engine = ScriptedEngine(tmp_path / "unused", server_context(authority.issue("127.0.0.1")))
    engine.address = listen
    with pytest.raises(ValueError, match="wss://"):
        await engine.start()
    plain = ScriptedEngine(tmp_path / "unused")
    plain.address = "wss://127.0.0.1:0"
    with pytest.raises(ValueError, match="wss://"):
        await plain.start()


@pytest.mark.parametrize("make", [server_context, client_context])
def test_a_file_that_is_no_good_is_named(tmp_path: Path, authority: Authority, make: object) -> None:
    assert callable(make)
    good = authority.issue("127.0.0.1")
    empty = tmp_path / "empty.pem"
    empty.touch()
    for files, name in (
        (Certificate(str(tmp_path / "missing.pem")), "missing.pem"),
        (Certificate(str(empty)), "empty.pem"),
        (Certificate(good.authority, str(empty), good.key), "empty.pem"),
        (Certificate(good.authority, good.certificate, str(tmp_path / "missing.key")), "missing.key"),
        (Certificate(good.authority, good.certificate, good.certificate), "127.0.0.1.pem"),
    ):
        with pytest.raises(ValueError, match=name):
            make(files)


async def test_the_command_line_serves_with_certificates(checkpoint: Checkpoint, authority: Authority) -> None:
    files = authority.issue("127.0.0.1")
    options = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--tls-client-ca", files.authority)
    model = ("--model", str(checkpoint("llama")), "--listen", "wss://127.0.0.1:0")
    async with engine_process(*model, *options) as process:
        ready = await readiness(process)
        async with EngineClient(str(ready["address"]), tls=authority.issue("gateway.internal")) as client:
            await client.wait_connected()


def test_the_command_line_wants_all_three(checkpoint: Checkpoint, authority: Authority) -> None:
    result = CliRunner().invoke(main, ["--model", str(checkpoint("llama")), "--tls-client-ca", authority.file])
    assert result.exit_code == 2
    assert "--tls-cert, --tls-key and --tls-client-ca belong together" in result.stderr
