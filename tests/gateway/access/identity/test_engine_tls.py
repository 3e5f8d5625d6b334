"""A gateway in front of an engine that wants certificates."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from engine.tls import Certificate, server_context
from gateway.config.identity import EngineTlsSettings
from gateway.records.section import SettingsError
from tests.gateway.conftest import EngineThread, Serve

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """One authority, and one certificate for both sides."""
    authority, paths = trustme.CA(), {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    issued = authority.issue_cert("127.0.0.1")
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


def test_without_the_section_there_are_no_files() -> None:
    assert EngineTlsSettings().files() is None


@pytest.mark.parametrize("left_out", ["ca", "cert", "key"])
def test_files_that_belong_together_are_asked_for(files: dict[str, str], left_out: str) -> None:
    with pytest.raises(SettingsError, match="engine_tls"):
        EngineTlsSettings(**{name: path for name, path in files.items() if name != left_out}).files()


def test_a_file_that_is_no_good_is_named(files: dict[str, str]) -> None:
    Path(files["cert"]).write_text("no certificate")
    with pytest.raises(SettingsError, match=r"engine_tls: .*cert\.pem"):
        EngineTlsSettings(**files).files()
