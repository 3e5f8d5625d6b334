"""Measures our engine beside llama.cpp and OpenVINO on real models, as their GGUF files are: `make bench-real`.

    python -m bench.real                          three files, all subjects, three repeats (hours)
    python -m bench.real --files A --repeats 1    a part of it
    python -m bench.real --quick --files A        small loads: shows that all works

Decoding with 1, 8 and 32 requests, long prompts, a turn behind a cached prefix, adapters, the start of a process, and
memory; each figure beside what the machine allowed at that time. bench/README.md explains the columns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tqdm import tqdm

from bench.checkpoints import cache_folder
from bench.measure import MachineLimits, mean, probe
from bench.peers import folder
from bench.process import SubjectFailed, SubjectProcess, convert, interpreter
from bench.random_adapters import ATTENTION, write_adapter
from bench.real_cells import GROUPS, QUICK_GROUPS, CellGroup
from bench.real_files import FILES, real_file
from bench.real_record import ModelSizes, RealFailure, RealResults, RealRow, figures, median
from bench.real_report import markdown, plot
from bench.report import Environment, options
from bench.subjects.interface import SubjectSetup
from bench.worker import RunCommand
from engine.cache.blocks import BLOCK_SIZE
from engine.checkpoint.opening import open_checkpoint
from kernels import library

SUBJECTS = ("Roundhouse", "llama.cpp", "Roundhouse, served", "llama.cpp, served", "OpenVINO")
OURS = "Roundhouse"
_PROBE_BYTES = 1 << 29
_RANK = 8


class RealBench:
    """A run: what is measured, and what has been."""

    def __init__(self, arguments: argparse.Namespace, files: dict[str, Path]) -> None:
        self._arguments = arguments
        self._files = files
        self._sizes = {name: ModelSizes.of(path) for name, path in files.items()}
        self._environment = Environment.here()
        self._rows: defaultdict[tuple[str, str, str], list[RealRow]] = defaultdict(list)
        self._failures: list[RealFailure] = []
        self._missing = [name for name in arguments.subject if interpreter(name, arguments.cache) is None]
        self._groups: Sequence[CellGroup] = QUICK_GROUPS if arguments.quick else GROUPS

    def run(self, save: Path) -> None:
        """Run every subject on every file; results so far are saved after each."""
        arguments = self._arguments
        end = time.monotonic() + 60 * arguments.minutes
        subjects = [name for name in arguments.subject if name not in self._missing]
        runs = [
            (repeat, file, subject, group)
            for repeat in range(arguments.repeats)
            for file in self._files
            for group in self._groups
            for subject in subjects
            if not group.ours_only or subject == OURS
        ]
        with tqdm(runs, unit="run", disable=None) as progress:
            for repeat, file, subject, group in progress:
                progress.set_postfix_str(f"{file}, {subject}, {group.name}")
                if time.monotonic() > end:
                    self._failures.append(RealFailure(file, subject, group.name, "left out: --minutes were over"))
                elif not any((each.file, each.subject) == (file, subject) for each in self._failures):
                    self._measure(repeat, file, subject, group)
                    save.write_bytes(msgspec.json.format(msgspec.json.encode(self.results()), indent=1) + b"\n")

    def results(self) -> RealResults:
        """Return the results so far."""
        many = self._groups[0]
        tokens = many.requests * (-(-many.tokens // BLOCK_SIZE) + 1) * BLOCK_SIZE
        return RealResults(
            environment=self._environment,
            isa=library.cpu.isa if library.cpu else library.REFERENCE,
            threads=self._arguments.threads,
            repeats=self._arguments.repeats,
            shared=self._arguments.shared,
            sizes=self._sizes,
            kv_bytes={file: tokens * sizes.kv_bytes for file, sizes in self._sizes.items()},
            rows=[median(runs) for runs in self._rows.values()],
            failures=self._failures,
            missing=self._missing,
        )

    def _measure(self, repeat: int, file: str, subject: str, group: CellGroup) -> None:
        """Run one subject's process through a group's cells; what fails is recorded and ends it."""
        arguments, sizes = self._arguments, self._sizes[file]
        # In-process subjects have no process whose start would count.
        cells = [cell for cell in group.cells if cell.quantity != "start" or subject.endswith("served")]
        at = "loading"
        try:
            setup = self._setup(file, subject, group)
            with SubjectProcess(subject, setup, arguments.cache, arguments.limit) as process:
                load = process.loaded()
                before = self._probe()
                for cell in cells:
                    at = cell.name
                    # The same for all subjects, new in every repeat, and found in no prefix cache.
                    seed = 1000 * repeat + 10 * group.cells.index(cell)
                    command = RunCommand(cell.batch(sizes.vocabulary, seed), cell.warm_up(sizes.vocabulary, seed))
                    result = process.measure(command)
                    after = self._probe()
                    machine = mean(before, after)
                    value, limit, ttft = figures(cell, result.traces, load, sizes, machine)
                    row = RealRow(file, subject, at, value, limit, ttft, load, result.resident, machine)
                    self._rows[file, subject, at].append(row)
                    before = after
        except SubjectFailed as failure:
            print(f"{file}, {subject}, {at}: {failure}", file=sys.stderr)
            self._failures.append(RealFailure(file, subject, at, str(failure)))

    def _probe(self) -> MachineLimits:
        return probe("bfloat16", self._arguments.probe_bytes)

    def _setup(self, file: str, subject: str, group: CellGroup) -> SubjectSetup:
        """Describe what the subject must run; converts the model if that has not been done yet.

        Raises:
            SubjectFailed: it cannot be converted.
        """
        arguments, path = self._arguments, self._files[file].resolve()
        if subject == "OpenVINO":
            setup = SubjectSetup(str(path), "int4", arguments.threads, group.requests, group.tokens)
            converted = folder("openvino", arguments.cache) / "models" / f"{path.stem}-int4"
            if not converted.exists():
                _export(path, setup, converted, arguments)
            return msgspec.structs.replace(setup, model=str(converted))
        adapters = [str(each) for each in _adapters(path, group.adapters, arguments.cache)]
        return SubjectSetup(str(path), "stored", arguments.threads, group.requests, group.tokens, adapters=adapters)


def _adapters(path: Path, count: int, cache: Path) -> list[Path]:
    """Return folders of random LoRA adapters for a file, on attention's four products; made if not there yet."""
    folders = [cache / f"{path.stem}-adapters" / f"rank-{_RANK}-{seed}" for seed in range(count)]
    for seed, place in enumerate(folders):
        if not place.exists():
            partial = place.with_name(f"{place.name}.{os.getpid()}.partial")
            write_adapter(partial, path, rank=_RANK, seed=seed, modules=ATTENTION)
            partial.rename(place)
    return folders


def _export(path: Path, setup: SubjectSetup, converted: Path, arguments: argparse.Namespace) -> None:
    """Have OpenVINO quantise the file's numbers, rounded to bf16, to 4 bits.

    Raises:
        SubjectFailed: it could not.
    """
    from transformers import PreTrainedTokenizerFast

    from bench.quality_reference import write_bf16

    rounded = converted.with_name(f"{path.stem}-bf16")
    checkpoint = open_checkpoint(path)
    write_bf16(checkpoint, rounded)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=checkpoint.tokenizer(), **checkpoint.special_tokens)
    tokenizer.save_pretrained(rounded)
    setup = msgspec.structs.replace(setup, model=str(rounded))
    try:
        convert("OpenVINO", setup, converted, arguments.cache, arguments.limit)
    finally:
        shutil.rmtree(rounded)


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument(
        "--files", nargs="+", default=list(FILES), metavar="FILE", help="A, B, C or paths of GGUF files"
    )
    parser.add_argument("--subject", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), help="all by default")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each subject; medians are shown")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds for a load or a cell")
    parser.add_argument("--minutes", type=float, default=600, metavar="M", help="start nothing new after this time")
    parser.add_argument("--shared", action="store_true", help="say in the results that other programs were running")
    parser.add_argument("--quick", action="store_true", help="small loads, one repeat: shows that all works")
    parser.add_argument("--probe-bytes", type=int, default=_PROBE_BYTES, metavar="N", help="more than CPU caches hold")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="where peers and adapters are kept")
    parser.add_argument("--name", help="name of the results' files; default: real-, then the instruction set")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.repeats, arguments.probe_bytes = 1, 1 << 20
    try:
        files = {Path(name).name: real_file(name) for name in arguments.files}
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    bench = RealBench(arguments, files)
    arguments.output.mkdir(parents=True, exist_ok=True)
    stem = arguments.output / (arguments.name or f"real-{bench.results().isa}")
    bench.run(stem.with_suffix(".json"))
    results = bench.results()
    text = markdown(results)
    stem.with_suffix(".md").write_text(text, "utf-8")
    plot(results, stem.with_suffix(".png"))
    print(text)
    if results.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
