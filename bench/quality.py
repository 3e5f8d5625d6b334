"""How far the models that we serve are from exact arithmetic on the same weights: `python -m bench.quality`.

The exact model is transformers' in fp32 on the numbers that a file's bytes stand for. Beside it stand our engine and
llama.cpp on the same file, and, for the first file, our quantisation of its numbers rounded to bf16. At every position
of texts of four kinds the Kullback-Leibler divergence of the next token's distribution is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from tqdm import tqdm

from bench.checkpoints import cache_folder
from bench.divergence import Distances, Divergence, distances, joined, summary
from bench.peers import python_of
from bench.quality_reference import ExactModel, write_bf16
from bench.quality_texts import Ids, Windows, windows
from bench.real_files import FILES, real_file
from bench.report import Environment, options, publish, table
from engine.cache.blocks import BLOCK_SIZE
from engine.cache.memory import KVDtype
from engine.checkpoint.opening import open_checkpoint
from engine.execution.precision import Dtype, Precision
from engine.execution.runner import ModelRunner
from engine.plan import Row, StepPlan
from engine.request import Request
from engine.wire import SamplingParams
from kernels import Quantization, library

_PIECE = 64
"""Positions whose logits are compared at a time: 64 of 152,000 tokens take 78 MB in fp64."""
_QUICK = (1, 80)
"""Windows and tokens of the quick mode: 320 positions."""
_PEER = "llama.cpp"
Piece = tuple[int, int, torch.Tensor]
"""Number of a text, first position, logits [positions, vocabulary]."""


class Variant(msgspec.Struct, frozen=True):
    """How our engine serves a checkpoint."""

    name: str
    dtype: Dtype = "auto"
    quantize: Quantization | None = None
    kv_dtype: KVDtype = "auto"


OF_FILES = (
    Variant("Roundhouse"),
    Variant("Roundhouse, bf16 KV", kv_dtype="bf16"),
    Variant("Roundhouse, fp32 KV", "float32", kv_dtype="fp32"),
    Variant("Roundhouse, bf16 activations", "bfloat16"),
)
OF_BF16 = (
    Variant("Roundhouse bf16", "bfloat16"),
    *(Variant(f"Roundhouse {quantize}", "bfloat16", quantize) for quantize in ("w8a16", "int8", "int4")),
    *(Variant(f"Roundhouse bf16, {kv_dtype} KV", "bfloat16", kv_dtype=kv_dtype) for kv_dtype in ("fp8", "int8")),
)


class Quality(msgspec.Struct, frozen=True):
    """One model as one program serves it, beside exact arithmetic."""

    model: str
    """Name of the file; "as bf16" if its numbers were rounded to bf16 first."""
    candidate: str
    whole: Divergence
    kinds: dict[str, float]
    """Mean divergence by kind of text."""


class QualityResults(msgspec.Struct, frozen=True):
    environment: Environment
    isa: str
    """Instruction set of our kernels."""
    texts: dict[str, dict[str, str]]
    """SHA-256 of the token ids, by file and kind of text."""
    rows: list[Quality]


def ours(path: Path, variant: Variant, ids: Ids) -> Iterator[Piece]:
    """Yield our engine's logits for texts [N, T], each run as one prompt."""
    blocks = -(-(ids.shape[1] + 1) // BLOCK_SIZE)
    runner = ModelRunner(path, blocks=blocks, precision=Precision(variant.dtype, variant.quantize, variant.kv_dtype))
    for number, text in enumerate(ids.tolist()):
        # Asked for their log-probabilities, all positions are read.
        sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        request = Request(str(number), text, sampling, arrival=0.0)
        request.block_table += range(blocks)
        step = runner.launch(StepPlan([Row(request, 0, len(text), True)]))
        for begin in range(0, len(text), _PIECE):
            positions = range(begin, min(begin + _PIECE, len(text)))
            with torch.inference_mode():
                yield number, begin, step.readout.logits(step.forward, positions)
        runner.release(request)


def peer(python: Path, path: Path, ids: Ids, vocabulary: int) -> Iterator[Piece]:
    """Yield llama.cpp's logits for texts [N, T].

    Raises:
        RuntimeError: it ended early.
    """
    program = Path(__file__).with_name("quality_peer.py")
    command = [str(python), str(program), str(path.resolve()), str(ids.shape[1]), str(torch.get_num_threads())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        for number, text in enumerate(ids.tolist()):
            process.stdin.write(json.dumps(text).encode() + b"\n")
            process.stdin.flush()
            for begin in range(0, len(text), _PIECE):
                count = min(_PIECE, len(text) - begin)
                read = process.stdout.read(4 * count * vocabulary)
                if len(read) < 4 * count * vocabulary:
                    raise RuntimeError(f"{_PEER} ended with status {process.wait()}")
                yield number, begin, torch.from_numpy(np.frombuffer(read, np.float32).reshape(count, vocabulary).copy())
        process.stdin.close()


def compare(
    model: str, candidate: str, exact: ExactModel, texts: Sequence[Windows], pieces: Iterable[Piece]
) -> Quality:
    """Take the divergence at every position of all texts, which `pieces` has in the order of their kinds."""
    count, tokens = texts[0].ids.shape
    found: dict[str, list[Distances]] = {each.kind: [] for each in texts}
    kinds = [each.kind for each in texts for _ in range(count)]
    with tqdm(total=len(kinds) * tokens, desc=f"{model}, {candidate}", unit="position", disable=None) as progress:
        for number, begin, logits in pieces:
            reference = exact.logits(number, begin, begin + len(logits))
            found[kinds[number]].append(distances(reference, logits))
            progress.update(len(logits))
    whole = joined([part for parts in found.values() for part in parts])
    return Quality(
        model, candidate, summary(whole), {kind: summary(joined(parts)).mean for kind, parts in found.items()}
    )


def of_file(name: str, path: Path, texts: Sequence[Windows], python: Path | None) -> Iterator[Quality]:
    """Yield our engine and the peer, if it is set up, on a GGUF file."""
    ids = np.concatenate([each.ids for each in texts])
    exact = ExactModel(open_checkpoint(path), ids)
    for variant in OF_FILES:
        yield compare(name, variant.name, exact, texts, ours(path, variant, ids))
    if python is not None:
        yield compare(name, _PEER, exact, texts, peer(python, path, ids, exact.vocabulary))


def of_bf16(name: str, path: Path, texts: Sequence[Windows]) -> Iterator[Quality]:
    """Yield our engine in bf16 and quantised on the file's numbers rounded to bf16."""
    ids = np.concatenate([each.ids for each in texts])
    with tempfile.TemporaryDirectory(prefix="rh-quality-") as folder:
        rounded = Path(folder)
        write_bf16(open_checkpoint(path), rounded)
        exact = ExactModel(open_checkpoint(rounded), ids)
        for variant in OF_BF16:
            yield compare(f"{name} as bf16", variant.name, exact, texts, ours(rounded, variant, ids))


def markdown(results: QualityResults) -> str:
    """Return the page."""
    kinds = list(next(iter(results.texts.values())))
    header = ["model", "served by", "mean", "±", "median", "99 %", "most", "same token", "ties", *kinds]
    rows = []
    for row in results.rows:
        whole = row.whole
        distances = [f"{value:.1e}" for value in (whole.mean, whole.error, whole.median, whole.p99, whole.most)]
        shares = [f"{100 * share:.2f} %" for share in (whole.same_top, whole.ties)]
        rows.append(
            " | ".join([row.model, row.candidate, *distances, *shares, *(f"{row.kinds[kind]:.1e}" for kind in kinds)])
        )
    positions = results.rows[0].whole.positions
    lines = [
        "### Distance from exact arithmetic",
        "",
        f"Kullback-Leibler divergence from transformers in fp32 on the same weights, in nats, at {positions:,} "
        "positions; then the share of positions at which the likeliest token is the same and at which several tokens "
        "share the highest logit, and means by kind of text.",
        "",
        *table(" | ".join(header), rows, words=2),
        "",
        f"{results.environment}, our kernels for {results.isa}.",
    ]
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    parser.add_argument(
        "--files", nargs="+", default=list(FILES), metavar="FILE", help="A, B, C or paths of GGUF files; default: A B C"
    )
    parser.add_argument("--windows", type=int, default=4, metavar="N", help="pieces of each kind of text")
    parser.add_argument("--tokens", type=int, default=512, metavar="N", help="tokens of a piece")
    parser.add_argument("--quick", action="store_true", help="320 positions instead of 8,192")
    parser.add_argument("--bf16", default="A", metavar="FILE", help="file that is rounded to bf16 too; none: no file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder of the peers' environments")
    parser.add_argument("--name", help="name of the results' files; default: quality-, then the instruction set")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    count, tokens = _QUICK if arguments.quick else (arguments.windows, arguments.tokens)
    try:
        files = {Path(name).name: real_file(name) for name in arguments.files}
        rounded = {} if arguments.bf16 == "none" else {Path(arguments.bf16).name: real_file(arguments.bf16)}
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    python = python_of(_PEER, arguments.cache)
    if python is None:
        print(f"{_PEER} is left out: set it up with python -m bench.peers {_PEER}")
    texts = {name: windows(path, count, tokens) for name, path in (files | rounded).items()}
    rows: list[Quality] = []
    for name, path in files.items():
        rows += of_file(name, path, texts[name], python)
    for name, path in rounded.items():
        rows += of_bf16(name, path, texts[name])
    isa = library.cpu.isa if library.cpu else library.REFERENCE
    digests = {name: {each.kind: each.digest for each in found} for name, found in texts.items()}
    results = QualityResults(Environment.here(), isa, digests, rows)
    publish(arguments.output / (arguments.name or f"quality-{isa}"), markdown(results), results)


if __name__ == "__main__":
    main()
