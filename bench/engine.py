"""Measures our engine beside its peers: output tokens/s, TTFT, ITL and memory for N requests at once.

    python -m bench.engine                    all of it: both models in bf16, three repeats
    python -m bench.engine --model S          the small model only
    python -m bench.engine --dtype float32    in fp32, where all subjects should give the same tokens
    python -m bench.engine --quick            a smoke run with a miniature model

Every subject runs in a process of its own, one after the other, in an order that rotates from repeat to repeat; each
figure is the median of the repeats. Around each run the machine itself is measured, so that a row shows its share of
what the hardware allowed at that time. bench/README.md explains the columns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tqdm import tqdm

from bench.checkpoints import SHAPES, cache_folder, checkpoint
from bench.measure import Measurement, Report, mean, median, summarise
from bench.report import Environment, Table, markdown
from bench.subjects import SUBJECTS, Setup
from bench.worker import Task

_RESULTS = Path(__file__).parent / "results"
_PROBE_BYTES = 1 << 29


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    if arguments.quick:
        arguments.model, arguments.concurrency, arguments.repeats = ["mini"], [1, 3], 1
        arguments.prompt_tokens, arguments.new_tokens, arguments.probe_bytes = 20, 8, 1 << 20
    environment = Environment.here()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for model in arguments.model or ["S", "L"]:
        table = _measure(model, arguments)
        text = markdown(table, environment)
        stem = arguments.output / f"engine-{table.model}-{table.dtype}"
        record = msgspec.json.encode({"environment": environment, "table": table})
        stem.with_suffix(".json").write_bytes(msgspec.json.format(record) + b"\n")
        stem.with_suffix(".md").write_text(text)
        print(text)


def _measure(model: str, arguments: argparse.Namespace) -> Table:
    shape = SHAPES[model]
    subjects: list[str] = arguments.subject or list(SUBJECTS)
    setup = Setup(
        checkpoint=str(checkpoint(model, arguments.cache)),
        dtype=arguments.dtype,
        requests=max(arguments.concurrency),
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
    )
    rows: defaultdict[tuple[int, str], list[Measurement]] = defaultdict(list)
    tokens: defaultdict[tuple[int, int], dict[str, list[list[int]]]] = defaultdict(dict)
    with tqdm(total=arguments.repeats * len(subjects), desc=model, unit="run", disable=None) as progress:
        for repeat in range(arguments.repeats):
            turn = repeat % len(subjects)
            for subject in subjects[turn:] + subjects[:turn]:
                progress.set_postfix_str(subject)
                report = _run(
                    Task(subject, setup, shape.vocab_size, arguments.concurrency, repeat, arguments.probe_bytes)
                )
                machine = mean(report.before, report.after)
                for result in report.results:
                    rows[result.concurrency, subject].append(
                        summarise(subject, result, machine, shape, arguments.dtype, arguments.prompt_tokens)
                    )
                    tokens[repeat, result.concurrency][subject] = [trace.tokens for trace in result.traces]
                progress.update()
    return Table(
        model=model,
        shape=shape,
        dtype=arguments.dtype,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
        repeats=arguments.repeats,
        rows=[median(rows[number, subject]) for number in arguments.concurrency for subject in subjects],
        same_tokens=[_agreement(answers) for answers in tokens.values()],
    )


def _run(task: Task) -> Report:
    """Run a subject's process.

    Raises:
        SystemExit: it failed; its standard error is shown.
    """
    # Threads that spin while they wait make any other process on the machine decide the result, and hit some subjects
    # far more than others: libgomp stops spinning by itself once a second thread uses it.
    environment = {
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TRANSFORMERS_VERBOSITY": "error",
        **os.environ,
    }
    with tempfile.TemporaryFile() as errors:
        process = subprocess.run(
            [sys.executable, "-m", "bench.worker"],
            input=msgspec.json.encode(task),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"{task.subject} failed:\n{errors.read().decode(errors='replace')}")
    return msgspec.json.decode(process.stdout, type=Report)


def _agreement(answers: dict[str, list[list[int]]]) -> float:
    """Share of requests for which all subjects gave the same tokens."""
    rows = list(zip(*answers.values(), strict=True))
    return sum(all(tokens == row[0] for tokens in row) for row in rows) / len(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", choices=list(SHAPES), help="repeatable; both S and L by default")
    parser.add_argument("--subject", action="append", choices=list(SUBJECTS), help="repeatable; all by default")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], metavar="N")
    parser.add_argument("--prompt-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each subject; medians are shown")
    parser.add_argument("--quick", action="store_true", help="a miniature model and workload: shows that all works")
    parser.add_argument(
        "--probe-bytes", type=int, default=_PROBE_BYTES, metavar="N", help="more than the CPU caches hold"
    )
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="where random checkpoints are kept")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="folder for the tables and the JSON")
    return parser


if __name__ == "__main__":
    main()
