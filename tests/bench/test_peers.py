"""The environments of peers: what is set up counts until its section of the file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import peers
from bench.subjects.registry import SUBJECTS

NOTHING = peers.PeerEnvironment(requirements=["./no-such-package"])


def test_every_peer_has_an_environment_with_pinned_versions() -> None:
    found = peers.environments()
    assert set(found) == {kind.environment for kind in SUBJECTS.values() if kind.environment is not None} | {"guidellm"}
    assert all("==" in requirement for each in found.values() for requirement in each.requirements)


def test_an_environment_is_set_up_until_its_section_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peers.python_of("openvino", tmp_path) is None
    place = peers.folder("openvino", tmp_path)
    place.mkdir(parents=True)
    (place / "installed").write_text(peers.environments()["openvino"].digest)
    assert peers.python_of("openvino", tmp_path) == place / "bin" / "python"
    monkeypatch.setattr(peers, "environments", lambda: {"openvino": NOTHING})
    assert peers.python_of("openvino", tmp_path) is None


@pytest.mark.deep
def test_a_peer_that_cannot_be_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "environments", lambda: {"broken": NOTHING})
    peers.main(["--cache", str(tmp_path)])
    output = capfd.readouterr()
    assert "left out by the benchmark: broken" in output.out
    assert "no-such-package" in output.err
    assert peers.python_of("broken", tmp_path) is None


def test_a_name_that_no_peer_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["nobody"])
    assert "there is no peer nobody" in capsys.readouterr().err
