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
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VERSION = "5.9.3"
SHA512 = "jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw=="
NOT_YET = frozenset(
    {
        *(
            f"console/views/{name}.js"
            for name in (
                "adapter-upload",
                "adapters",
                "keys",
                "live",
                "routes",
            )
        ),
    }
)
"""Scripts that are not strict yet. This list only becomes shorter."""


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
    """No error in any script but those that are not strict yet, each of which has one."""
    command = ["node", str(compiler), "--project", "jsconfig.json", "--pretty", "false"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240).stdout
    errors: dict[str, list[str]] = defaultdict(list)
    for line in said.splitlines():
        # The vendored libraries are what they are.
        if found := re.match(r"gateway/http/static/((?:js|console)/[^(]+)\(", line):
            errors[found[1]].append(line)
    unexpected = [line for file in sorted(errors.keys() - NOT_YET) for line in errors[file]]
    assert unexpected == []
    assert errors.keys() == NOT_YET, "a script has become strict: take it off the list"
