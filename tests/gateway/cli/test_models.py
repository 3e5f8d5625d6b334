"""`roundhouse models` as a user runs it, pulls in processes of their own, against a server with the API of the hub."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.root import main
from gateway.models.chunks import CHUNK
from tests.gateway.models.servers import COMMIT, REPOSITORY, FileServer, file_server

FILE = "tiny.Q4_1.gguf"
WHAT = f"hf:{REPOSITORY}/{FILE}"


@pytest.fixture
def environment(tmp_path: Path, server: FileServer) -> dict[str, str]:
    """Variables of a user who has nothing yet and whose hub is the test's server."""
    own = {"HOME": str(tmp_path), "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "COLUMNS": "200"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "ROUNDHOUSE_"))}
    return {**kept, **own}


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gateway.cli", "models", *words]


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), env=environment, cwd=environment["HOME"], capture_output=True, text=True, timeout=120
    )


def run_here(environment: dict[str, str], *words: str) -> Result:
    """Run a command in this process, as those that ask no hub can be."""
    return CliRunner().invoke(main, ["models", *words], env={**dict.fromkeys(os.environ), **environment})


def test_a_file_of_the_hub_is_pulled_listed_verified_and_removed(
    environment: dict[str, str], server: FileServer, tmp_path: Path
) -> None:
    data = random.Random(1).randbytes(100_000)
    server.publish(FILE, data)
    server.token = environment["HF_TOKEN"] = "hf_secret"
    pulled = run(environment, "pull", WHAT, "--json")
    assert pulled.returncode == 0, pulled.stderr
    model = json.loads(pulled.stdout)
    assert model["name"] == "tiny.q4_1" and model["licence"] == "apache-2.0"
    assert model["sha256"] == hashlib.sha256(data).hexdigest()
    assert Path(model["path"]).read_bytes() == data
    assert Path(model["path"]).is_relative_to(tmp_path / ".local" / "share" / "roundhouse" / "models")
    listed = {each["name"]: each for each in json.loads(run_here(environment, "list", "--json").stdout)}
    assert listed["tiny.q4_1"]["path"] == model["path"] and listed["smollm2-135m"]["path"] is None
    assert run_here(environment, "verify").stdout == f"{model['sha256']}  tiny.q4_1: as it was pulled\n"
    removed = run_here(environment, "rm", "tiny.q4_1")
    assert removed.exit_code == 0 and not Path(model["path"]).exists()


def test_a_pull_that_was_killed_goes_on_and_reads_nothing_twice(
    environment: dict[str, str], server: FileServer, tmp_path: Path
) -> None:
    data = random.Random(2).randbytes(2 * CHUNK + 12345)
    server.publish(FILE, data)
    sidecars = tmp_path / ".local" / "share" / "roundhouse" / "models" / "partial"
    server.pause_after = CHUNK + 1000
    with subprocess.Popen(command("pull", WHAT), env=environment, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 100
        while not any(path.stat().st_size for path in sidecars.glob("*.chunks")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    server.pause_after = None
    pulled = run(environment, "pull", WHAT)
    assert pulled.returncode == 0, pulled.stderr
    assert "17 MB are here" in pulled.stderr and 'tier = "small"' in pulled.stdout
    path = f"/{REPOSITORY}/resolve/{COMMIT}/{FILE}"
    assert server.read == [(path, 0, len(data)), (path, CHUNK, len(data))]


def test_a_damaged_model_is_found_and_only_its_damaged_part_is_fetched(
    environment: dict[str, str], server: FileServer
) -> None:
    data = random.Random(3).randbytes(CHUNK + 12345)
    server.publish(FILE, data)
    model = Path(json.loads(run(environment, "pull", WHAT, "--json").stdout)["path"])
    model.chmod(0o644)
    with model.open("r+b") as file:
        file.seek(CHUNK + 100)
        file.write(b"damage")
    verified = run_here(environment, "verify")
    assert verified.exit_code == 1
    assert "it is damaged in 1 of its parts (12,345 bytes); mend it: roundhouse models pull hf:" in verified.stdout
    server.read.clear()
    assert run(environment, "pull", WHAT).returncode == 0
    assert [(start, end) for _, start, end in server.read] == [(CHUNK, len(data))]
    assert run_here(environment, "verify").exit_code == 0


def test_a_file_in_the_hub_s_cache_is_used_where_it_lies_also_offline(
    environment: dict[str, str], tmp_path: Path
) -> None:
    data = random.Random(4).randbytes(1000)
    repository = tmp_path / "hf" / "hub" / f"models--{REPOSITORY.replace('/', '--')}"
    blob = repository / "blobs" / hashlib.sha256(data).hexdigest()
    snapshot = repository / "snapshots" / COMMIT
    for folder in (blob.parent, snapshot, repository / "refs"):
        folder.mkdir(parents=True)
    blob.write_bytes(data)
    (snapshot / FILE).symlink_to(blob)
    (repository / "refs" / "main").write_text(COMMIT)
    environment["HF_HUB_OFFLINE"] = "1"
    pulled = run(environment, "pull", WHAT, "--json")
    assert pulled.returncode == 0, pulled.stderr
    assert Path(json.loads(pulled.stdout)["path"]).samefile(blob)
    other = run(environment, "pull", f"hf:{REPOSITORY}/other.gguf")
    assert other.returncode == 1 and "HF_HUB_OFFLINE is set" in other.stderr


@pytest.mark.parametrize(
    "what, said",
    [
        (f"hf:{REPOSITORY}/none.gguf", f"has no file none.gguf; it has {FILE}"),
        ("hf:acme/none/x.gguf", "no such repository, or a private one, which needs HF_TOKEN"),
        (f"{WHAT} --sha256 {'0' * 64}", f"has another file: sha256 .*, not {'0' * 64}"),
    ],
)
def test_what_the_hub_does_not_have_is_refused_by_name(
    environment: dict[str, str], server: FileServer, what: str, said: str
) -> None:
    server.publish(FILE, b"weights")
    refused = run(environment, "pull", *what.split())
    assert refused.returncode == 1
    [line] = [line for line in refused.stderr.splitlines() if line.startswith("Error: ")]
    assert re.search(said, line), line


def test_any_file_s_digest_is_printed_and_a_name_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_MODELS_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gguf").write_bytes(b"weights")
    shown = CliRunner().invoke(main, ["models", "verify", "mine.gguf"])
    assert shown.output.split()[0] == hashlib.sha256(b"weights").hexdigest()
    refused = CliRunner().invoke(main, ["models", "verify", "none"])
    assert refused.exit_code == 1 and "none is no model of the store and no file" in refused.output
    assert "the store is empty" in CliRunner().invoke(main, ["models", "verify"]).output


def test_a_manifest_is_written_compared_and_replaced_only_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_MODELS_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gguf").write_bytes(b"weights")
    written = json.loads(CliRunner().invoke(main, ["models", "digest", "mine.gguf", "--json"]).output)
    listing = (tmp_path / "mine.gguf.manifest.json").read_bytes()
    assert written == {
        "manifest": "mine.gguf.manifest.json",
        "sha256": hashlib.sha256(listing).hexdigest(),
        "files": 1,
        "bytes": 7,
    }
    assert "as its manifest says" in CliRunner().invoke(main, ["models", "verify", "./mine.gguf"]).output
    (tmp_path / "mine.gguf").write_bytes(b"weighty")
    for words in (["verify", "./mine.gguf"], ["digest", "mine.gguf"]):
        refused = CliRunner().invoke(main, ["models", *words])
        assert refused.exit_code == 1 and "mine.gguf is damaged or exchanged: bytes 0 to 6" in refused.output
    assert (tmp_path / "mine.gguf.manifest.json").read_bytes() == listing
    replaced = CliRunner().invoke(main, ["models", "digest", "--replace", "mine.gguf"])
    assert replaced.exit_code == 0 and "mine.gguf.manifest.json: 1 files, 0 MB" in replaced.output
    assert CliRunner().invoke(main, ["models", "digest", "mine.gguf"]).output == replaced.output


def test_a_model_that_a_pool_serves_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_MODELS_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gguf").write_bytes(b"weights")
    pulled = CliRunner().invoke(main, ["models", "pull", "mine.gguf"])
    pool = pulled.stdout[pulled.stdout.index("[[pools]]") :]
    (tmp_path / "roundhouse.toml").write_text(pool)
    refused = CliRunner().invoke(main, ["models", "rm", "mine"])
    assert refused.exit_code == 1 and "is the model of a pool in this configuration" in refused.output
    (tmp_path / "roundhouse.toml").unlink()
    assert CliRunner().invoke(main, ["models", "rm", "mine"]).exit_code == 0
    assert (tmp_path / "mine.gguf").exists()
