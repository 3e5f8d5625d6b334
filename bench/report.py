"""What benchmarks share for their results: options, tables, pictures, and the environment."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

RESULTS = Path(__file__).parent / "results"


class Environment(msgspec.Struct, frozen=True):
    """The machine, versions and date of a run."""

    date: str
    cpu: str
    cores: int
    torch: str
    transformers: str
    revision: str
    """Git revision, with a plus sign if files differ from it."""

    @classmethod
    def here(cls) -> Environment:
        return cls(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            cpu=_cpu(),
            cores=os.cpu_count() or 1,
            torch=version("torch"),
            transformers=version("transformers"),
            revision=_revision(),
        )

    def __str__(self) -> str:
        return f"{self.date}, revision {self.revision}, torch {self.torch}, {self.cpu}, {self.cores} cores"


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a command line for the module with this docstring; it has `--output` already."""
    spec = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(
        prog=f"python -m {spec.name}" if spec else None,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser


def table(header: str, rows: Iterable[str], words: int = 1) -> list[str]:
    """Return a Markdown table. Cells are separated by " | "; the first columns hold words, the others numbers."""
    rule = ["---"] * words + ["--:"] * (header.count(" | ") + 1 - words)
    return [f"| {header} |", f"|{'|'.join(rule)}|", *(f"| {row} |" for row in rows)]


@contextlib.contextmanager
def picture(path: Path, columns: int = 1, **settings: Any) -> Iterator[Any]:
    """Yield axes to plot on, an array of them if there are several columns; the picture is written at the end."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, layout="constrained", **settings)
    yield axes
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def publish(stem: Path, text: str, record: object) -> None:
    """Write a page and a record beside it, `stem.md` and `stem.json`, and show the page."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(text, "utf-8")
    stem.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    print(text)


def _cpu() -> str:
    """Return the CPU's model and the vector extensions that matter here."""
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for line in information.read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    flags = fields.get("flags", "").split()
    known = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
    extension = next((label for flag, label in known.items() if flag in flags), "")
    return f"{fields.get('model name', platform.machine())} {extension}".strip()


def _revision() -> str:
    root = Path(__file__).parent.parent
    try:
        revision = _git(root, "rev-parse", "--short", "HEAD")
        dirty = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision + ("+" if dirty else "")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()
