"""The scripts of the pages are what their types say: TypeScript's compiler, strict, with the types in their comments.

The compiler is fetched once, by version and digest, into ~/.cache/roundhouse. Where that cannot be, the check is
skipped, and says so.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VERSION = "5.9.3"
SHA512 = "jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw=="


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path("~/.cache/roundhouse").expanduser() / f"typescript-{VERSION}"
    program = folder / "package" / "lib" / "tsc.js"
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("no node and npm on the PATH: the types of the pages were not checked")
    if not program.exists():
        fetched = tmp_path_factory.mktemp("typescript")
        command = [npm, "pack", f"typescript@{VERSION}", "--silent", "--pack-destination", str(fetched)]
        if subprocess.run(command, cwd=fetched, capture_output=True, timeout=120).returncode:
            pytest.skip("TypeScript cannot be fetched: the types of the pages were not checked")
        [archive] = fetched.glob("*.tgz")
        assert base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() == SHA512
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return program


def test_the_types_of_the_pages_are_right(compiler: Path) -> None:
    """No error in any script. The vendored libraries are what they are; their errors show that the compiler ran."""
    command = ["node", str(compiler), "--project", "jsconfig.json", "--pretty", "false"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert "gateway/http/static/vendor/" in run.stdout, run.stderr
    ours = re.compile(r"gateway/http/static/(js|console|languages)/")
    assert [line for line in run.stdout.splitlines() if ours.match(line)] == []
