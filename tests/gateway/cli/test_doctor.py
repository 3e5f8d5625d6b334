"""`roundhouse doctor`: each thing that can be wrong is named, with what to do, and nothing is changed by looking."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from engine.client.engine_client import EngineClient
from gateway.cli import examination
from gateway.cli.check_result import CheckResult
from gateway.cli.root import main
from gateway.config.settings import DEMO
from gateway.processes import redis_server
from tests.gateway.conftest import EngineThread, Serve
from tests.gateway.upstreams.doubles import Vllm, listening
from tests.gateway.upstreams.message_doubles import Ollama
from tests.gateway.upstreams.subjects import of_message_double

_MODEL = DEMO / "model"
_CPU = [CheckResult("cpu", "kernels", "amx: the best that this CPU has"), CheckResult("cuda", "device", "none")]


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests do without the process that loads torch."""
    monkeypatch.setattr(examination, "kernels", lambda: list(_CPU))
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.delenv("ROUNDHOUSE_REDIS_DATA", raising=False)


class Installation:
    """A configuration of one pool, and what is found out about it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.file = folder / "roundhouse.toml"

    def write(self, *lines: str, model: Path = _MODEL, pool: str = "", url: str = "") -> None:
        redis = f'[redis]\ndata = "{self.data}"\n' + (f'url = "{url}"\n' if url else "")
        pools = f'[[pools]]\ntier = "small"\nname = "mine"\nmodel = "{model}"\n{pool}\n[[tenants]]\nname = "acme"\n'
        self.file.write_text("\n".join(lines) + "\n" + redis + pools)

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["doctor", "--config", str(self.file), "--json", *words])

    def examine(self, *words: str, broken: bool = False) -> dict[str, dict[str, Any]]:
        result = self.run(*words)
        assert result.exit_code == (1 if broken else 0), result.output
        found = {finding["name"]: finding for finding in json.loads(result.stdout)}
        assert all(finding["remedy"] for finding in found.values() if finding["state"] != "ok")
        return found


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    installation = Installation(tmp_path)
    installation.write("[server]\nport = 0")
    return installation


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on who is no gateway."""
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        other.settimeout(0.1)
        yield other.getsockname()[1]


def test_an_installation_that_is_well_says_so_and_stays_as_it_is(installation: Installation) -> None:
    found = installation.examine()
    for name in ("roundhouse", "python", "settings", "data folder", "model of small", "redis", "kernels"):
        assert found[name]["state"] == "ok", name
    assert "serve starts" in found["redis"]["value"]
    assert not installation.data.exists()


def test_the_table_is_for_people(installation: Installation) -> None:
    result = CliRunner().invoke(main, ["doctor", "--config", str(installation.file)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    lines = {" ".join(line.split()) for line in result.output.splitlines()}
    assert "✓ kernels amx: the best that this CPU has" in lines
    assert "everything is as it should be" in lines


def test_only_problems_are_shown_if_asked_for(installation: Installation) -> None:
    installation.write("[server]\nport = 0", model=installation.file.parent)
    assert list(installation.examine("--problems", broken=True)) == ["model of small"]


def test_a_configuration_that_cannot_be_read_hides_nothing_else(installation: Installation) -> None:
    installation.file.write_text("[server]\nport = 'high'\n")
    found = installation.examine(broken=True)
    assert "port" in found["settings"]["value"] and found["settings"]["state"] == "broken"
    assert "kernels" in found


def test_a_configuration_without_tenants_is_told_how_to_make_the_first(installation: Installation) -> None:
    installation.file.write_text(installation.file.read_text().replace('[[tenants]]\nname = "acme"\n', ""))
    settings = installation.examine()["settings"]
    assert settings["state"] == "note" and "roundhouse tenant add NAME" in settings["remedy"]


def test_the_demos_key_where_other_machines_reach_it_is_broken(installation: Installation) -> None:
    installation.file.write_text('[server]\nhost = "0.0.0.0"\nport = 0\n')
    settings = installation.examine(broken=True)["settings"]
    assert settings["state"] == "broken" and settings["value"].startswith("server.host: 0.0.0.0")


def test_a_model_without_weights_cannot_be_served(installation: Installation, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in _MODEL.iterdir():
        if path.suffix != ".safetensors" and path.is_file():
            (model / path.name).write_bytes(path.read_bytes())
    installation.write("[server]\nport = 0", model=model)
    finding = installation.examine(broken=True)["model of small"]
    assert finding["state"] == "broken" and "safetensors" in finding["value"]


def test_a_data_folder_that_cannot_be_made_is_broken(installation: Installation, tmp_path: Path) -> None:
    installation.data = tmp_path / "file" / "data"
    (tmp_path / "file").write_text("")
    installation.write("[server]\nport = 0")
    assert installation.examine(broken=True)["data folder"]["state"] == "broken"


def test_a_port_that_is_taken_by_something_else_is_broken(installation: Installation, taken: int) -> None:
    installation.write(f"[server]\nport = {taken}")
    finding = installation.examine(broken=True)["port"]
    assert finding["state"] == "broken" and "something else" in finding["value"]


@pytest.mark.anyio
async def test_a_gateway_and_an_engine_that_run_are_as_they_should_be(
    installation: Installation, serve: Serve, engine: EngineThread, redis_url: str
) -> None:
    async with serve() as served:
        port = served.port
        installation.write(f"[server]\nport = {port}", pool=f'engines = ["{engine.address}"]', url=redis_url)
        found = await asyncio.to_thread(installation.examine)
    assert (found["port"]["state"], found["port"]["value"]) == ("ok", f"a gateway runs at 127.0.0.1:{port}")
    assert found["redis"]["state"] == "ok" and redis_url in found["redis"]["value"]
    assert found["engine of small"]["value"].startswith("tiny at ")


@pytest.mark.anyio
async def test_a_server_of_another_project_says_what_it_serves(
    installation: Installation, engine: EngineThread, model: Path
) -> None:
    async with EngineClient(engine.address) as behind:
        await behind.wait_connected()
        async with listening(Vllm(behind).app) as address:
            pool = f'dialect = "vllm"\nengines = ["{address}", "http://127.0.0.1:9"]'
            installation.write("[server]\nport = 0", model=model, pool=pool)
            result = await asyncio.to_thread(installation.run)
    found = [each for each in json.loads(result.stdout) if each["name"] == "engine of small"]
    assert [each["state"] for each in found] == ["ok", "broken"]
    assert found[0]["value"] == f"org/tiny at {address}, vllm"
    assert "docs/upstreams.md" in found[1]["remedy"]


@pytest.mark.anyio
async def test_a_server_that_takes_messages_needs_no_checkpoint_here(
    installation: Installation, engine: EngineThread, model: Path
) -> None:
    async with of_message_double(Ollama, engine.address, model) as server:
        pool = f'dialect = "ollama"\ncontext = 256\nengines = ["{server.address}"]'
        installation.write("[server]\nport = 0", model=Path(server.model), pool=pool)
        found = await asyncio.to_thread(installation.examine)
    assert found["model of small"]["value"] == f"mine is {server.model} of its ollama servers"
    assert found["engine of small"]["value"] == f"{server.model} at {server.address}, ollama"


def test_a_redis_that_does_not_answer_is_broken_and_its_password_stays_secret(installation: Installation) -> None:
    installation.write("[server]\nport = 0", url="redis://:geheim@127.0.0.1:1/0")
    finding = installation.examine(broken=True)["redis"]
    assert finding["state"] == "broken" and "127.0.0.1:1" in finding["value"]
    assert "geheim" not in json.dumps(finding)


def test_a_redis_that_cannot_be_started_is_broken(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "binary", lambda: "/no/such/redis-server")
    finding = installation.examine(broken=True)["redis"]
    assert "apt-get install redis-server" in finding["remedy"]


def test_an_engine_that_does_not_answer_is_broken(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "PATIENCE", 0.2)
    installation.write("[server]\nport = 0", pool='engines = ["unix:///no/such/socket"]')
    finding = installation.examine(broken=True)["engine of small"]
    assert "roundhouse engine serve" in finding["remedy"]


def test_a_pool_for_cuda_without_a_device_is_broken(installation: Installation) -> None:
    installation.write("[server]\nport = 0", pool='device = "cuda"')
    assert installation.examine(broken=True)["pool small"]["state"] == "broken"


def test_kernels_that_cannot_be_imported_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("ROUNDHOUSE_CPU_ISA", "sse")
    [finding] = examination.kernels()
    assert finding.state == "broken" and "ROUNDHOUSE_CPU_ISA is 'sse'" in finding.value


def test_the_kernels_are_examined_by_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    names = {finding.name for finding in examination.kernels()}
    assert {"torch", "kernels", "threads"} <= names
