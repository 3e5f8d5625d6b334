"""The record of a run of the engine's benchmark, as its JSON has it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from bench.cells import Cell
from bench.checkpoints import SHAPES
from bench.measure import MachineLimits, Measurement, median, summarise
from bench.report import Environment
from bench.subjects.interface import Precision, RequestBatch
from bench.worker import RunResult

_REFERENCE = "transformers generate"


class MeasuredSubject(msgspec.Struct, frozen=True):
    """A subject with one model in one precision: what a process runs."""

    model: str
    precision: Precision
    subject: str


class EngineFailure(msgspec.Struct, frozen=True):
    """A subject's process that ended too early."""

    entry: MeasuredSubject
    cell: str
    words: str


class Agreement(msgspec.Struct, frozen=True):
    """How far one entry's tokens are those of transformers, with the same prompts."""

    entry: MeasuredSubject
    reference: Precision
    first_tokens: float
    """Share of the requests whose first token is the same."""
    answers: float
    """Share of the requests whose tokens are all the same."""


class EngineResults(msgspec.Struct, frozen=True):
    """Medians of a run, and what it did not measure."""

    environment: Environment
    threads: int
    kv_dtype: str
    """Type of the KV cache of our engine."""
    repeats: int
    cells: list[Cell]
    rows: list[Measurement]
    load_seconds: list[tuple[MeasuredSubject, float]]
    agreement: list[Agreement]
    failures: list[EngineFailure]
    missing: list[str]
    """Subjects whose environments are not set up."""


def merged(before: EngineResults, now: EngineResults) -> EngineResults:
    """Return `now`, and what `before` has of subjects, models, precisions and cells that `now` did not measure."""
    keys = {row.key for row in now.rows}
    entries = {entry for entry, _ in now.load_seconds} | {failure.entry for failure in now.failures}
    return msgspec.structs.replace(
        now,
        cells=list({cell.name: cell for cell in (*before.cells, *now.cells)}.values()),
        rows=[*(row for row in before.rows if row.key not in keys), *now.rows],
        load_seconds=[*(each for each in before.load_seconds if each[0] not in entries), *now.load_seconds],
        agreement=[*(each for each in before.agreement if each.entry not in entries), *now.agreement],
        failures=[*(each for each in before.failures if each.entry not in entries), *now.failures],
    )


class EngineRecord:
    """Collects the results of a run."""

    def __init__(
        self, threads: int, kv_dtype: str, repeats: int, cells: Sequence[Cell], missing: Sequence[str]
    ) -> None:
        self._environment = Environment.here()
        self._threads, self._kv_dtype, self._repeats = threads, kv_dtype, repeats
        self._cells, self._missing = list(cells), list(missing)
        self._rows: defaultdict[tuple[MeasuredSubject, str], list[Measurement]] = defaultdict(list)
        self._loads: defaultdict[MeasuredSubject, list[float]] = defaultdict(list)
        self._tokens: dict[tuple[MeasuredSubject, str, int], list[list[int]]] = {}
        self._failures: list[EngineFailure] = []

    def loaded(self, entry: MeasuredSubject, seconds: float) -> None:
        self._loads[entry].append(seconds)

    def add(
        self,
        entry: MeasuredSubject,
        cell: Cell,
        repeat: int,
        batch: RequestBatch,
        result: RunResult,
        machine: MachineLimits,
    ) -> None:
        """Add one run of one cell."""
        figures = summarise(result.traces, batch, SHAPES[entry.model], entry.precision, machine)
        row = Measurement(
            entry.model, entry.precision, cell.name, entry.subject,
            peak_memory=result.peak_memory, machine=machine, **figures,
        )  # fmt: skip
        self._rows[entry, cell.name].append(row)
        self._tokens[entry, cell.name, repeat] = [trace.tokens for trace in result.traces]

    def failed(self, entry: MeasuredSubject, cell: str, words: str) -> None:
        self._failures.append(EngineFailure(entry, cell, words))

    def has_failed(self, entry: MeasuredSubject) -> bool:
        return any(failure.entry == entry for failure in self._failures)

    def results(self) -> EngineResults:
        """Return the results so far."""
        return EngineResults(
            environment=self._environment,
            threads=self._threads,
            kv_dtype=self._kv_dtype,
            repeats=self._repeats,
            cells=self._cells,
            rows=[median(runs) for runs in self._rows.values()],
            load_seconds=[(entry, statistics.median(seconds)) for entry, seconds in self._loads.items()],
            agreement=[found for entry in self._loads if (found := self._agreement(entry)) is not None],
            failures=self._failures,
            missing=self._missing,
        )

    def _agreement(self, entry: MeasuredSubject) -> Agreement | None:
        """Compare over all cells that transformers has run too, in the same precision or else in bf16."""
        references = [
            MeasuredSubject(entry.model, entry.precision, _REFERENCE),
            MeasuredSubject(entry.model, "bf16", _REFERENCE),
        ]
        reference = next((each for each in references if each in self._loads), None)
        if reference is None or entry.subject == _REFERENCE:
            return None
        pairs = [
            pair
            for (owner, cell, repeat), answers in self._tokens.items()
            if owner == entry and not self._cell(cell).adapters and (reference, cell, repeat) in self._tokens
            for pair in zip(answers, self._tokens[reference, cell, repeat], strict=True)
        ]
        if not pairs:
            return None
        first = statistics.fmean(ours[0] == theirs[0] for ours, theirs in pairs)
        return Agreement(entry, reference.precision, first, statistics.fmean(ours == theirs for ours, theirs in pairs))

    def _cell(self, name: str) -> Cell:
        return next(cell for cell in self._cells if cell.name == name)
