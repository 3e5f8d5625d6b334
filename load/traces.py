"""Recorded arrivals: files of Azure (CSV) and Mooncake (JSON lines), gzipped or not.

Azure's LLM inference traces have the columns `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`; Mooncake's lines have
`timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`, one for each block of 512 prompt tokens:
requests that share a beginning share its ids.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec


class TracePoint(msgspec.Struct, frozen=True):
    """One arrival."""

    start: float
    """Seconds after the first arrival."""
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Ids of the blocks of the prompt; equal ids are equal text. Empty: the prompt is like no other."""


class TraceError(ValueError):
    """A trace that cannot be read; the message names the line."""


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path, scale: float = 1.0) -> list[TracePoint]:
    """Return the arrivals of a file, with lengths times `scale`.

    Raises:
        TraceError: the file has no arrivals, or a line that is neither format.
        OSError: it cannot be read.
    """
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        points = parse_azure(lines) if ".csv" in path.suffixes else parse_mooncake(lines)
        found = sorted(points, key=lambda each: each.start)
    if not found:
        raise TraceError("there are no arrivals")
    first = found[0].start
    return [
        TracePoint(
            start=each.start - first,
            input_tokens=max(1, round(each.input_tokens * scale)),
            output_tokens=max(1, round(each.output_tokens * scale)),
            blocks=each.blocks,
        )
        for each in found
    ]


def mean_rate(points: Sequence[TracePoint]) -> float:
    """Return the arrivals per second of a trace; 1 if all come at once."""
    seconds = points[-1].start
    return len(points) / seconds if seconds else 1.0


def paced(points: Iterable[TracePoint], speed: float) -> Iterator[TracePoint]:
    """Yield the arrivals `speed` times as fast."""
    return (msgspec.structs.replace(each, start=each.start / speed) for each in points)


def parse_azure(lines: Iterable[str]) -> Iterator[TracePoint]:
    """Yield the arrivals of a CSV file; `start` is in seconds since 1970.

    Raises:
        TraceError: a column is missing, or a value is none.
    """
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
            yield TracePoint(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(
                f"line {number}: {error!r}; columns are TIMESTAMP, ContextTokens, GeneratedTokens"
            ) from None


def parse_mooncake(lines: Iterable[str]) -> Iterator[TracePoint]:
    """Yield the arrivals of JSON lines; `start` is in seconds.

    Raises:
        TraceError: a line is not one of Mooncake's.
    """
    decode = msgspec.json.Decoder(_MooncakeLine).decode
    for number, line in enumerate(lines, 1):
        try:
            each = decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"line {number}: {error}") from None
        yield TracePoint(each.timestamp / 1000, each.input_length, each.output_length, each.hash_ids)
