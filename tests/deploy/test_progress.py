"""What an installation says of itself while it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deploy.progress import main, said

PIP = """\
Using pip 26.3 from /x/site-packages/pip (python 3.11)
Collecting torch<=2.13.0,>=2.11 (from roundhouse==0.1.0)
  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (31 kB)
  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (196.4 MB)
Progress 0 of 196400000
Progress 98200000 of 196400000
Collecting markdown-it-py>=2.2.0 (from rich)
  Using cached markdown_it_py-4.3.0-py3-none-any.whl (96 kB)
Progress 12 of 96000
Processing /opt/files/rich-15.0.0-py3-none-any.whl
  [3/48] Building CXX object CMakeFiles/roundhouse_cpu_avx2.dir/norm.cpp.o
  [4/48] /usr/bin/g++ -DROUNDHOUSE_AVX2=1 -I/opt/roundhouse/kernels/csrc -o norm.cpp.o -c kernels/csrc/cpu/norm.cpp
Installing collected packages: torch, rich, markdown-it-py
"""


def test_it_says_what_is_downloaded_compiled_and_how_far() -> None:
    """Of large files; small ones are there at once."""
    assert list(said(PIP.splitlines(keepends=True))) == [
        "package 1: torch 2.13.0 (31 kB)",
        "package 2: torch 2.13.0 (196.4 MB)",
        "package 2: torch 2.13.0, 0 of 196 MB",
        "package 2: torch 2.13.0, 98 of 196 MB",
        "package 3: markdown-it-py 4.3.0 (96 kB)",
        "package 4: rich 15.0.0",
        "compiling the kernels: 3 of 48",
        "compiling the kernels: 4 of 48",
        "unpacking 3 packages",
    ]


def test_it_says_how_long_the_same_thing_takes() -> None:
    lines = ["", "  [1/2] Building x\n", "", "", "another line\n", "", "Installing collected packages: a\n", ""]
    assert list(said(lines)) == [
        "compiling the kernels: 1 of 2",
        "compiling the kernels: 1 of 2, for 1 s",
        "compiling the kernels: 1 of 2, for 2 s",
        "compiling the kernels: 1 of 2, for 3 s",
        "unpacking 1 packages",
        "unpacking 1 packages, for 1 s",
    ]


def test_a_silent_command_is_not_met_with_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deploy.progress._SECONDS", 0.0)
    monkeypatch.setattr("deploy.progress._SILENCE", 0.05)
    words = "import time; print('  [1/2] Building x', flush=True); time.sleep(0.5)"
    assert main(tmp_path / "log", [sys.executable, "-c", words]) == 0
    assert "roundhouse: compiling the kernels: 1 of 2, for 0 s\n" in capsys.readouterr().out


def test_everything_is_in_the_log_and_the_status_is_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What went wrong is shown."""
    log = tmp_path / "log"
    words = "import sys; print('  [1/2] Building x'); print('no such package'); sys.exit(3)"
    assert main(log, [sys.executable, "-c", words]) == 3
    shown = capsys.readouterr()
    assert shown.out == "roundhouse: compiling the kernels: 1 of 2\n"
    assert "no such package" in shown.err
    assert log.read_text() == "  [1/2] Building x\nno such package\n"
    assert main(log, [sys.executable, "-c", "print('fine')"]) == 0
    assert capsys.readouterr().err == ""
