"""A gateway in front of an engine that wants certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import trustme

from engine.client.engine_client import EngineClient
from engine.tls import Certificate, server_context
from gateway.config.identity import EngineTlsSettings
from gateway.records.section import SettingsError
from tests.gateway.conftest import EngineThread, Serve

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return issued_for("127.0.0.1", tmp_path)


def issued_for(name: str, tmp_path: Path) -> dict[str, str]:
    """Make an authority, and one certificate for both sides."""
    authority, paths = trustme.CA(), {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    issued = authority.issue_cert(name)
    authority.cert_pem.write_to_path(paths["ca"])
    issued.cert_chain_pems[0].write_to_path(paths["cert"])
    issued.private_key_pem.write_to_path(paths["key"])
    return paths


async def test_it_answers_over_tls(serve: Serve, model: Path, files: dict[str, str]) -> None:
    context = server_context(Certificate(files["ca"], files["cert"], files["key"]))
    with EngineThread(model, tls=context) as engine:
        assert engine.address.startswith("wss://")
        async with serve(engines={"small": [engine.address]}, engine_tls=EngineTlsSettings(**files)) as served:
            answer = await served.client.completions.create(model="auto", prompt="hello", max_tokens=3)
            assert answer.usage is not None and answer.usage.completion_tokens == 3
            await served.settle()


async def test_one_certificate_may_be_for_all_configured_engines(serve: Serve, model: Path, tmp_path: Path) -> None:
    """Of engines that stand in the configuration, as of those that announce themselves; another name is refused."""
    files = issued_for("engines.internal", tmp_path)
    with EngineThread(model, tls=server_context(Certificate(files["ca"], files["cert"], files["key"]))) as engine:
        named = EngineTlsSettings(**files, server_name="engines.internal")
        async with serve(engines={"small": [engine.address]}, engine_tls=named) as served:
            answer = await served.client.completions.create(model="auto", prompt="hello", max_tokens=3)
            assert answer.usage is not None and answer.usage.completion_tokens == 3
            await served.settle()
        async with EngineClient(engine.address, tls=named.files()) as nameless:
            await asyncio.sleep(0.3)
            assert not nameless.connected


def test_without_the_section_there_are_no_files() -> None:
    assert EngineTlsSettings().files() is EngineTlsSettings(server_name="engines.internal").files() is None


@pytest.mark.parametrize("left_out", ["ca", "cert", "key"])
def test_files_that_belong_together_are_asked_for(files: dict[str, str], left_out: str) -> None:
    with pytest.raises(SettingsError, match="engine_tls"):
        EngineTlsSettings(**{name: path for name, path in files.items() if name != left_out}).files()


def test_a_file_that_is_no_good_is_named(files: dict[str, str]) -> None:
    Path(files["cert"]).write_text("no certificate")
    with pytest.raises(SettingsError, match=r"engine_tls: .*cert\.pem"):
        EngineTlsSettings(**files).files()
