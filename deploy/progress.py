"""Runs an installation and says how far it is: `python deploy/progress.py LOG COMMAND...`.

Reads what pip (with `--verbose --progress-bar raw`) and ninja print, all of which goes into LOG, and shows what is
being downloaded or compiled: on one line of a terminal, or as a few lines of a log. Only the standard library is there
when this runs. Ends with the command's exit status; if it failed, the log's last lines are shown.
"""

from __future__ import annotations

import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic

_DOWNLOAD = re.compile(
    r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?([A-Za-z0-9_.]+)-([0-9][^-\s]*)\S*(?: \((.+)\))?"
)
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
#: ninja names a step, or, as pip has it run, shows the whole command.
_COMPILE = re.compile(r"\s*\[(\d+)/(\d+)\] \S")
_INSTALL = re.compile(r"Installing collected packages: (.+)")
_SECONDS = 5.0
"""Seconds between two lines of a log about the same thing."""
_SILENCE = 1.0
"""Seconds without a line after which it is said how long the same thing has taken."""
_TAIL = 30


def said(lines: Iterable[str]) -> Iterator[str]:
    """Yields the messages to show for an installation's lines. A message that is shown again has got further.

    An empty line stands for `_SILENCE` without one: unpacking torch or compiling a large file takes a while.
    """
    latest, silences = "", 0
    for message in _read(lines):
        if message:
            latest, silences = message, 0
            yield latest
        elif latest:
            silences += 1
            yield f"{latest}, for {silences * _SILENCE:.0f} s"


def _read(lines: Iterable[str]) -> Iterator[str]:
    package, count = "", 0
    for line in lines:
        if not line:
            yield ""
        elif found := _DOWNLOAD.match(line):
            count += 1
            package = f"{found[1].replace('_', '-')} {found[2].removesuffix('.tar.gz')}"
            yield f"package {count}: {package}" + (f" ({found[3]})" if found[3] else "")
        elif found := _PROGRESS.match(line):
            done, total = int(found[1]), int(found[2])
            if total >= 10_000_000:
                yield f"package {count}: {package}, {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        elif found := _COMPILE.match(line):
            yield f"compiling the kernels: {found[1]} of {found[2]}"
        elif found := _INSTALL.match(line):
            yield f"unpacking {len(found[1].split(','))} packages"


def _show(messages: Iterable[str]) -> None:
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 1
    last, shown_at = "", float("-inf")
    for message in messages:
        if terminal:
            print(f"\r\x1b[K{f'roundhouse: {message}'[:width]}", end="", flush=True)
            continue
        # A log gets a line when something else begins, and now and then one that says how far it is.
        kind = message.partition(",")[0].partition(":")[0]
        if kind != last or monotonic() - shown_at >= _SECONDS:
            print(f"roundhouse: {message}", flush=True)
            last, shown_at = kind, monotonic()
    if terminal:
        print("\r\x1b[K", end="", flush=True)


def main(log: Path, command: list[str]) -> int:
    """Runs `command` with its output in `log`; returns its exit status."""
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        output = process.stdout
        assert output is not None
        arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read() -> None:
            for line in output:
                kept.write(line)
                arrived.put(line)
            arrived.put(None)

        def lines() -> Iterator[str]:
            while True:
                try:
                    line = arrived.get(timeout=_SILENCE)
                except queue.Empty:
                    line = ""
                if line is None:
                    return
                yield line

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        _show(said(lines()))
        reader.join()
        status = process.wait()
    if status != 0:
        ending = log.read_text("utf-8").splitlines()[-_TAIL:]
        print("\n".join(ending), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
