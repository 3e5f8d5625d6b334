"""A wall clock that a test turns, for real processes: libfaketime, loaded into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HOUR = 3600


class WallClock:
    """Of the processes that are started with `environment`. What is measured in between goes on undisturbed."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let it be so far ahead (or, below 0, behind)."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self._file)


@contextmanager
def wall_clock() -> Iterator[WallClock]:
    """One that shows the right time; the test is skipped where there is no libfaketime."""
    found = [path for folder in ("/usr/lib", "/usr/local/lib") for path in Path(folder).glob(_LIBRARY)]
    if not found:
        pytest.skip("no libfaketime here: apt install faketime")
    with TemporaryDirectory(prefix="rh-clock-") as folder:
        yield WallClock(sorted(found)[0], Path(folder, "clock"))


_LIBRARY = "**/libfaketimeMT.so*"
