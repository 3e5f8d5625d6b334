"""The suite itself: what it tells of a client, and what it keeps from one."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from tests.clients import page
from tests.clients.client import FOLDER, REMEDY, Client, clients
from tests.clients.environments import UnavailableError, cache_folder, environment
from tests.clients.running import Check, Outcome, Server, run

SERVER = Server("http://127.0.0.1:1", "key", "model")
HERE = Path(sys.prefix)
"""An environment: that of these tests."""


def client(script: Path, **fields: object) -> Client:
    return Client("pypi", ["nothing==1"], str(script), "words", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", clients())
def test_a_client_is_pinned_and_has_a_script(name: str) -> None:
    described = clients()[name]
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for _, version in described.pins)
    assert (FOLDER / "scripts" / described.script).is_file()


def test_the_page_shows_the_versions_that_are_pinned() -> None:
    assert page.stale() == [], REMEDY
    assert len(page.rows()) == len(clients()), REMEDY


def test_checks_that_do_not_come_out_as_said_are_surprises() -> None:
    described = client(Path("a.py"), differs={"b": "OpenAI refuses it, too"})
    assert Outcome([Check("a", True), Check("b", False, "no")]).surprises(described) == []
    assert Outcome([Check("a", False, "no"), Check("b", True)]).surprises(described) == [
        "a: no",
        "b: passes, and clients.toml says it fails",
    ]
    assert Outcome(skipped="no network").surprises(described) == []


def test_a_script_is_told_of_the_server_and_not_of_this_users_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its home is an empty folder; lines that are no checks are left out."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os\n"
        "print('a banner')\n"
        "told = os.environ['ROUNDHOUSE_URL'] == 'http://127.0.0.1:1' and 'OPENAI_API_KEY' not in os.environ\n"
        "print(json.dumps({'name': 'told', 'ok': told}))\n"
        "home = os.environ['HOME']\n"
        "print(json.dumps({'name': 'home', 'ok': os.path.samefile(home, '.') and not os.listdir(home)}))\n"
    )
    assert run(client(script), HERE, SERVER).checks == [Check("told", True), Check("home", True)]


def test_a_script_that_fails_is_no_success(tmp_path: Path) -> None:
    """The checks that it printed before count."""
    script = tmp_path / "script.py"
    script.write_text("""print('{"name": "one", "ok": true}', flush=True); raise SystemExit('broken')""")
    first, last = run(client(script), HERE, SERVER).checks
    assert first.ok and not last.ok and "broken" in last.detail


def test_a_script_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    pid = tmp_path / "pid"
    script.write_text(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    [check] = run(client(script, seconds=5), HERE, SERVER).checks
    assert not check.ok
    deadline = time.monotonic() + 20
    while Path("/proc", pid.read_text(), "cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path("/proc", pid.read_text(), "cmdline").exists()


def test_an_environment_is_made_once_for_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other versions take its place; what cannot be installed is unavailable, with the registry's reason."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    described = client(Path("a.py"))
    made = cache_folder() / "some" / described.digest
    made.mkdir(parents=True)
    (made / "installed").touch()
    assert environment("some", described) == made
    with pytest.raises(UnavailableError, match="No matching distribution found for nothing==2"):
        environment("some", Client("pypi", ["nothing==2"], "a.py", "words"))
    assert not list(cache_folder().rglob("installed"))


def test_without_node_its_clients_are_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(UnavailableError, match="no node here"):
        environment("some", Client("npm", ["nothing@1"], "a.mjs", "words"))
