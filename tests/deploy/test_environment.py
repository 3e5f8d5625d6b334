"""The script that makes the virtual environment, as far as it decides whether there is anything to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "environment.sh"


@pytest.mark.parametrize(
    ("installed", "asked", "suffices"),
    [
        ("serve", "", True),
        ("train", "", True),
        ("dev", "", True),
        ("dev", "dev", True),
        ("serve", "dev", False),
        (None, "", False),
    ],
)
def test_what_includes_more_is_not_installed_again(
    tmp_path: Path, installed: str | None, asked: str, suffices: bool
) -> None:
    """There is no Python in its path, so that it fails where it would install."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dirname", "find"):
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    if installed:
        (tmp_path / f".installed-{installed}").touch()
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), *asked.split()],
        env={"PATH": str(programs), "VENV": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == suffices, done.stderr
    assert suffices or "Python 3.11, 3.12 or 3.13 is needed" in done.stderr
