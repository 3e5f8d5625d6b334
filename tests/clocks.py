"""Clocks that a test sets: that of its event loop, and the wall clock of real processes (libfaketime)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HOUR = 3600


class LoopClock:
    """The running loop's clock, which moves when the test says so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._ahead = 0.0
        self._loop.time = lambda: self._time() + self._ahead  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Let so much time pass, with everything that is due by then."""
        self._ahead += seconds
        for _ in range(3):
            await asyncio.sleep(0)


class WallClock:
    """The wall clock of processes that are started with `environment`, or with `lazy`, which look at it once a second:
    others do whenever they ask for the time. Their monotonic clocks go on undisturbed."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.lazy = self.environment | {"FAKETIME_NO_CACHE": "0", "FAKETIME_CACHE_DURATION": "1"}
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the clock so many seconds ahead (below 0: behind)."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self._file)


@contextmanager
def wall_clock() -> Iterator[WallClock]:
    """A clock that shows the right time; the test is skipped where there is no libfaketime."""
    library = libfaketime()
    if library is None:
        pytest.skip("no libfaketime here: apt install faketime")
    with TemporaryDirectory(prefix="rh-clock-") as folder:
        yield WallClock(library, Path(folder, "clock"))


def libfaketime() -> Path | None:
    """Return the library that sets a process's clock, if it is installed."""
    found = [path for folder in ("/usr/lib", "/usr/local/lib") for path in Path(folder).glob("**/libfaketimeMT.so*")]
    return min(found, default=None)
