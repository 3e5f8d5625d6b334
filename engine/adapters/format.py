"""Checks a peft LoRA adapter against a base model: all of it is understood, or it is refused by name.

What the config asks for decides which tensors the file must have (`engine/adapters/targets.py`). One that is missing,
one too many and one of another shape are refused, so that nothing of an adapter is ever left out in silence. An adapter
that passes gets a manifest (`engine/adapters/manifest.py`), which engines work from. No torch here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from engine.adapters.config import CONFIG, AdapterError, read_config
from engine.adapters.manifest import BaseBias, LoraTarget, Manifest
from engine.adapters.targets import EMBEDDING, HEAD, PREFIX, Expected, expected_tensors
from engine.adapters.tensors import WEIGHTS, Tensor, all_finite, bits, read_header, same_values
from engine.checkpoint.manifest import CHUNK_BYTES, Chunk, chunks
from engine.checkpoint.opening import open_checkpoint
from engine.checkpoint.source import ModelCheckpoint

__all__ = ["CONFIG", "WEIGHTS", "AdapterError", "BaseBias", "LoraTarget", "Manifest", "check_adapter", "digests"]

MAX_WEIGHTS_BYTES = 8 * 1024**3
"""Largest file of weights; rank 128 on every linear of a 70B model in float32 is 6.6 GB."""
_READ = 4 * 1024 * 1024


def check_adapter(folder: Path, base: Path, *, progress: Callable[[int], object] | None = None) -> Manifest:
    """Check the adapter in `folder` against the base model, a folder or a GGUF file.

    Args:
        progress: called repeatedly with the number of further bytes of the weights that have been read.

    Raises:
        AdapterError: the adapter cannot be served on this base, and why.
        CheckpointError: the base model cannot.
    """
    checkpoint = open_checkpoint(base)
    model = checkpoint.config
    config, canonical = read_config(folder / CONFIG)
    weights = folder / WEIGHTS
    header = read_header(weights, max_bytes=MAX_WEIGHTS_BYTES)
    expected = expected_tensors(config, model, header.keys())
    _check_tensors(header, expected)
    for name, tensor in header.items():
        if not all_finite(weights, tensor):
            raise AdapterError(f"{WEIGHTS}: tensor {name!r} has infinities or NaNs; its training diverged")
    _check_base_copies(weights, header, expected, checkpoint)
    if expected.tied:
        _check_tied(weights, header)
    version, weights_sha256 = digests(canonical, weights, progress=progress)
    content = (folder / CONFIG).read_bytes()
    return Manifest(
        format=2,
        version=version,
        config_sha256=hashlib.sha256(content).hexdigest(),
        weights_sha256=weights_sha256,
        weights_chunks=tuple(chunk.digest() for chunk in chunks_of(weights)),
        size=len(content) + weights.stat().st_size,
        dtypes=tuple(sorted({header[key].dtype for key in expected.tensors})),
        max_rank=max(target.rank for target in expected.targets),
        architecture=model.architecture,
        bases=(checkpoint.revision,),
        targets=tuple(expected.targets),
        base_biases=tuple(expected.base_biases),
    )


def digests(canonical: bytes, weights: Path, *, progress: Callable[[int], object] | None = None) -> tuple[str, str]:
    """Return (version, SHA-256 of the weights' file), reading the file once.

    The version is BLAKE2b-256 over the config as canonical JSON (keys sorted, no spaces), its length, and the file.
    """
    version = hashlib.blake2b(digest_size=32, person=b"adapter")
    version.update(len(canonical).to_bytes(8, "little") + canonical)
    plain = hashlib.sha256()
    with weights.open("rb") as file:
        while chunk := file.read(_READ):
            version.update(chunk)
            plain.update(chunk)
            if progress is not None:
                progress(len(chunk))
    return version.hexdigest(), plain.hexdigest()


def chunks_of(weights: Path) -> Iterator[Chunk]:
    """Yield the chunks whose digests a manifest has."""
    return chunks(weights, weights.stat().st_size, CHUNK_BYTES)


def _check_tensors(header: Mapping[str, Tensor], expected: Expected) -> None:
    for name, shape in expected.tensors.items():
        if name in header and header[name].shape != shape:
            raise AdapterError(
                f"{WEIGHTS}: tensor {name!r} has shape {list(header[name].shape)} where {CONFIG} and the base model's "
                f"config.json imply {list(shape)}; is it an adapter of another base model?"
            )
    missing = sorted(expected.tensors.keys() - header.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AdapterError(
            f"{WEIGHTS}: tensor {missing[0]!r}{more} is missing, which {CONFIG} asks for on this model; save it again"
        )
    unexpected = sorted(header.keys() - expected.tensors.keys() - expected.base_copies.keys())
    if unexpected:
        raise AdapterError(f"{WEIGHTS}: tensor {unexpected[0]!r} {_why_unexpected(unexpected[0])}")


def _why_unexpected(name: str) -> str:
    if not name.startswith(PREFIX):
        return f"does not begin with {PREFIX!r}; save the adapter with save_pretrained of a peft model"
    if ".lora_" in name:
        return f"is on a module that {CONFIG} does not target, or that the base model does not have; save it again"
    if name.endswith(".bias"):
        return f"is a bias of the base model, which bias in {CONFIG} leaves out; save it again"
    return "is not supported; only LoRA's own tensors and trained biases are"


def _check_base_copies(weights: Path, header: Mapping[str, Tensor], expected: Expected, base: ModelCheckpoint) -> None:
    """Check copies of embeddings that peft saves along with LoRA on them: not loaded, they must be the base model's."""
    copies = header.keys() & expected.base_copies.keys()
    if not copies:
        return
    stored = {tensor.name: tensor for tensor in base.tensors()}
    for key in sorted(copies):
        original = stored.get(expected.base_copies[key])
        if original is None or not same_values(weights, header[key], original):
            raise AdapterError(
                f"{WEIGHTS}: tensor {key!r} replaces the base model's {expected.base_copies[key]!r} by other values, "
                "which is not supported; save the adapter with save_embedding_layers=False, or merge it and serve the "
                "result as a model"
            )


def _check_tied(weights: Path, header: Mapping[str, Tensor]) -> None:
    """Check `ensure_weight_tying`: one LoRA for both embeddings, stored twice."""
    head, embedding = PREFIX + HEAD, PREFIX + EMBEDDING
    for ours, theirs in (("lora_A.weight", "lora_embedding_B"), ("lora_B.weight", "lora_embedding_A")):
        first, second = header[f"{head}.{ours}"], header[f"{embedding}.{theirs}"]
        if first.dtype != second.dtype or not np.array_equal(bits(weights, first), bits(weights, second).T):
            raise AdapterError(
                f"{WEIGHTS}: {HEAD}.{ours} is not the transposed {EMBEDDING}.{theirs} although ensure_weight_tying is "
                "set; save the adapter again, or set it to false"
            )
