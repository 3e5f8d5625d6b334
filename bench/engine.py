"""Measures our engine beside its peers: output tokens/s, TTFT, ITL and memory for requests that arrive together.

    python -m bench.engine                              everything that is set up: two models, all precisions and cells
    python -m bench.engine --model S --precision bf16   a part of it; each of these options can be repeated
    python -m bench.engine --precision fp32             where all subjects should give the same tokens
    python -m bench.engine --quick                      a smoke run with a miniature model
    python -m bench.engine --device cuda                7B, 13B and 70B on a GPU, alone and all together

`make bench-peers` sets up the peers first. Every subject runs in a process and an environment of its own, one after the
other, in an order that rotates from repeat to repeat; each figure is the median of the repeats. The machine itself is
measured around each run, so that a row shows its share of what the hardware allowed at that time. bench/README.md
explains the columns.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from tqdm import tqdm

from bench import engine_cuda
from bench.cells import CELLS, QUICK_CELLS, Cell
from bench.checkpoints import SHAPES, adapters, cache_folder, checkpoint
from bench.engine_record import EngineRecord, EngineResults, MeasuredSubject, merged
from bench.engine_report import markdown, plot
from bench.measure import mean, probe
from bench.peers import folder
from bench.process import SubjectFailed, SubjectProcess, convert, interpreter
from bench.report import options
from bench.subjects.interface import PRECISIONS, SubjectSetup
from bench.subjects.registry import SUBJECTS
from bench.worker import RunCommand

_PROBE_BYTES = 1 << 29
_WARM_UP_TOKENS = 4
_RANK = 8


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    if arguments.device is not None:
        engine_cuda.run(arguments)
        return
    if arguments.quick:
        arguments.model, arguments.repeats, arguments.probe_bytes = ["mini"], 1, 1 << 20
    cells = QUICK_CELLS if arguments.quick else CELLS
    chosen = [cells[name] for name in arguments.cell or cells]
    missing = [name for name in arguments.subject or SUBJECTS if interpreter(name, arguments.cache) is None]
    for name in missing:
        print(f"{name} is left out: its environment is not set up (python -m bench.peers)", file=sys.stderr)
    record = EngineRecord(arguments.threads, arguments.kv_dtype, arguments.repeats, chosen, missing)
    arguments.output.mkdir(parents=True, exist_ok=True)
    stem = arguments.output / arguments.name
    # Read now, before new results are written there.
    before = (
        msgspec.json.decode(stem.with_suffix(".json").read_bytes(), type=EngineResults) if arguments.merge else None
    )

    def results() -> EngineResults:
        return record.results() if before is None else merged(before, record.results())

    for model in arguments.model or ["S", "L"]:
        entries = [entry for entry in _entries(model, arguments) if entry.subject not in missing]
        with tqdm(total=arguments.repeats * len(entries), desc=model, unit="run", disable=None) as progress:
            for repeat in range(arguments.repeats):
                turn = repeat % len(entries)
                for entry in entries[turn:] + entries[:turn]:
                    progress.set_postfix_str(f"{entry.subject} {entry.precision}")
                    if not record.has_failed(entry):
                        _measure(entry, chosen, repeat, arguments, record)
                        # Hours may lie ahead: what is known now is kept now.
                        stem.with_suffix(".json").write_bytes(_json(results()))
                    progress.update()
    text = markdown(results())
    stem.with_suffix(".md").write_text(text)
    plot(results(), stem.with_suffix(".png"))
    print(text)
    if record.results().failures:
        sys.exit(1)


def _json(results: EngineResults) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results)) + b"\n"


def _entries(model: str, arguments: argparse.Namespace) -> Iterator[MeasuredSubject]:
    """Yield subjects with a precision each; unless chosen, fp32 is left out for a subject that has bf16 or less."""
    for name in arguments.subject or SUBJECTS:
        offered = SUBJECTS[name].precisions
        for precision in arguments.precision or [each for each in PRECISIONS if each != "fp32"]:
            if precision in offered:
                yield MeasuredSubject(model, precision, name)


def _measure(
    entry: MeasuredSubject, cells: Sequence[Cell], repeat: int, arguments: argparse.Namespace, record: EngineRecord
) -> None:
    """Run one subject's process through its cells; what fails is recorded and ends it."""
    cells = [cell for cell in cells if cell.name in SUBJECTS[entry.subject].cells]
    if not cells:
        return
    vocabulary = SHAPES[entry.model].vocab_size
    at = "loading"
    try:
        setup = _setup(entry, cells, arguments)
        with SubjectProcess(entry.subject, setup, arguments.cache, arguments.limit) as process:
            record.loaded(entry, process.loaded())
            before = probe("bfloat16", arguments.probe_bytes)
            for cell in cells:
                at = cell.name
                # The same for all subjects, and new in every repeat.
                seed = 1000 * repeat + 10 * list(CELLS).index(cell.name)
                batch = cell.batch(vocabulary, seed)
                # Other prompts: what is warm afterwards is the code for these shapes, not a prefix cache.
                warm_up = msgspec.structs.replace(cell.batch(vocabulary, ~seed), new_tokens=_WARM_UP_TOKENS)
                result = process.measure(RunCommand(batch, warm_up))
                after = probe("bfloat16", arguments.probe_bytes)
                record.add(entry, cell, repeat, batch, result, mean(before, after))
                before = after
    except SubjectFailed as failure:
        print(f"{entry.model} {entry.precision}, cell {at}: {failure}", file=sys.stderr)
        record.failed(entry, at, str(failure))


def _setup(entry: MeasuredSubject, cells: Sequence[Cell], arguments: argparse.Namespace) -> SubjectSetup:
    """Describe what the subject must run; converts the checkpoint if that has not been done yet.

    Raises:
        SubjectFailed: it cannot be converted.
    """
    kind = SUBJECTS[entry.subject]
    base = checkpoint(entry.model, arguments.cache)
    setup = SubjectSetup(
        model=str(base),
        precision=entry.precision,
        threads=arguments.threads,
        requests=max(cell.requests for cell in cells),
        tokens=max(cell.tokens for cell in cells),
        kv_dtype=arguments.kv_dtype,
        adapters=[str(each) for each in adapters(base, max(cell.adapters for cell in cells), rank=_RANK)],
    )
    if not kind.converts:
        return setup
    assert kind.environment is not None
    converted = folder(kind.environment, arguments.cache) / "models" / f"{base.name}-{entry.precision}"
    if not converted.exists():
        convert(entry.subject, setup, converted, arguments.cache, arguments.limit)
    return msgspec.structs.replace(setup, model=str(converted))


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--model", action="append", choices=list(SHAPES), help="S or L; repeatable; both by default")
    parser.add_argument("--subject", action="append", choices=list(SUBJECTS), help="repeatable; all by default")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="repeatable; all but fp32 by default")
    parser.add_argument("--cell", action="append", choices=list(CELLS), help="repeatable; all by default")
    parser.add_argument("--device", metavar="cuda", help="Llama 2's shapes on a GPU (bench/engine_cuda.py)")
    parser.add_argument("--kv-dtype", default="auto", metavar="TYPE", help="type of our KV cache; peers keep theirs")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each subject; medians are shown")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds for a load or a cell")
    parser.add_argument("--quick", action="store_true", help="a miniature model and workload: shows that all works")
    parser.add_argument("--probe-bytes", type=int, default=_PROBE_BYTES, metavar="N", help="more than CPU caches hold")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="where checkpoints and peers are kept")
    parser.add_argument("--merge", action="store_true", help="keep the file's results that are not measured now")
    parser.add_argument("--name", default="cpu", help="name of the results' files")
    return parser


if __name__ == "__main__":
    main()
