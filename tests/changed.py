"""The test files of whatever imports a changed module: `python -m tests.changed [--base COMMIT] [--run PYTEST_ARGS]`.

A file that is no module (a script of a page, a table, a kernel's source) counts as a change of the nearest package
above it, and of the test files that name it. What a test starts in other processes is not seen, nor a command of
`roundhouse` that is loaded by its name: `make test` runs everything.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "router", "cache", "engine", "kernels", "load", "scale", "deploy", "bench", "tests")


def changed_files(base: str) -> list[str]:
    """Paths of files that differ from a commit, or that git does not know yet; deleted ones too."""
    words = ("git", "diff", "--name-only", base), ("git", "ls-files", "--others", "--exclude-standard")
    found = [subprocess.run(each, cwd=ROOT, capture_output=True, text=True, check=True).stdout for each in words]
    return sorted(set("".join(found).splitlines()))


def module(path: str) -> str:
    """The name of a file's module."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package(path: str) -> str:
    """The name of the nearest package above a file; empty: there is none."""
    folder = ROOT / path
    while (folder := folder.parent) != ROOT:
        if (folder / "__init__.py").exists():
            return ".".join(folder.relative_to(ROOT).parts)
    return ""


def conftests(test: str) -> list[str]:
    """Modules of fixtures that a test file may ask for, but those of all tests, which few files use."""
    folders = test.split("/")[:-1]
    return [".".join([*folders[:depth], "conftest"]) for depth in range(2, len(folders) + 1)]


def affected(changed: Collection[str], tests: Mapping[str, str], graph: grimp.ImportGraph) -> list[str]:
    """Return the test files that reach a changed module, or that name another changed file.

    Args:
        tests: text by path of all test files.
    """
    modules, names = set(), set()
    everything = "tests/conftest.py" in changed
    for path in changed:
        name = module(path) if path.endswith(".py") else package(path)
        if name in graph.modules:
            modules |= {name, *graph.find_downstream_modules(name, as_package=not path.endswith(".py"))}
        if not path.endswith(".py"):
            names.add(Path(path).name)
    return [
        test
        for test, text in tests.items()
        if everything or modules & {module(test), *conftests(test)} or any(name in text for name in names)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", default="HEAD", help="compare with this commit (default: the last one)")
    parser.add_argument("--run", nargs=argparse.REMAINDER, help="run them with pytest, with these arguments")
    options = parser.parse_args()
    files = changed_files(options.base)
    tests = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py")}
    found = affected(files, dict(sorted(tests.items())), grimp.build_graph(*PACKAGES, cache_dir=None))
    print(f"{len(found)} of {len(tests)} test files, for {len(files)} changed files", file=sys.stderr)
    if options.run is None:
        print("\n".join(found))
    elif found:
        sys.exit(subprocess.run([sys.executable, "-m", "pytest", *options.run, *found], cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
