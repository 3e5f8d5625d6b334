"""Describes the content of an adapter's file to engines.

The tensors' meaning is peft's:

    linear            y += scaling * (B (A x) + b_bias)            A [rank, in], B [out, rank], b_bias [out]
    linear with DoRA  y = m / |W + scaling * B A| * (W x + scaling * B A x) + bias        m [out]; the norm is per row
    embed_tokens      row of token t += scaling * B A[:, t]        A [rank, vocabulary], B [hidden, rank]
                      with DoRA: row * m / |W + scaling * (B A)^T|           m [hidden]; the norm is per column
    router            as linear, on `mlp.gate`
    experts, stacked  one key each: A [experts * rank, in], B [out, rank * experts]; expert e has
                      A.view(experts, rank, in)[e] and B.view(out, rank, experts)[:, :, e]
    experts, listed   one key per expert, in order: A [rank, in], B [out, rank]
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

Module = Literal[
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
    "embed_tokens",
    "lm_head",
    "router",
    "experts.gate_up_proj",
    "experts.gate_proj",
    "experts.up_proj",
    "experts.down_proj",
]


class LoraTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """LoRA on one module; the keys name tensors of the adapter's file."""

    module: Module
    """Module that LoRA is on. experts.gate_up_proj is stacked (gate rows first), .gate_proj and .up_proj are listed."""
    layer: int | None
    """Layer of the module; None for embed_tokens and lm_head."""
    rank: int
    scaling: float
    a: tuple[str, ...]
    """Key of A, or one key per expert in the listed form."""
    b: tuple[str, ...]
    b_bias: str | None = None
    magnitude: str | None = None
    """Key of DoRA's m."""


class BaseBias(msgspec.Struct, frozen=True):
    """A trained bias of the base model, which replaces the base's own."""

    module: Module
    layer: int | None
    key: str


class Manifest(msgspec.Struct, frozen=True):
    """An adapter that passed the checks, and the base models for which it did."""

    format: Literal[2]
    version: str
    """Version as 64 hex digits: BLAKE2b over the config as canonical JSON and the weights' file."""
    config_sha256: str
    weights_sha256: str
    weights_chunks: tuple[str, ...]
    """BLAKE2b-256 of each 16 MiB of the weights' file, by which damage is located."""
    size: int
    """Total bytes of both files."""
    dtypes: tuple[str, ...]
    max_rank: int
    architecture: str
    bases: tuple[str, ...]
    """Revisions (`ModelInfo.revision`) of the base models that the adapter was checked against."""
    targets: tuple[LoraTarget, ...]
    base_biases: tuple[BaseBias, ...] = ()


class _Sealed(msgspec.Struct, frozen=True):
    blake2b: str
    """Digest of the manifest's bytes."""
    manifest: msgspec.Raw


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of `manifest.json`: a manifest with its own digest."""
    return _sealed(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def decode_manifest(content: bytes) -> Manifest:
    """Read `manifest.json`.

    Raises:
        ValueError: a byte of it is not as `encode_manifest` wrote it, or another version of Roundhouse wrote it.
    """
    manifest = bytes(msgspec.json.decode(content, type=_Sealed).manifest)
    if content != _sealed(manifest):
        raise ValueError("it is damaged")
    return msgspec.json.decode(manifest, type=Manifest)


def _sealed(manifest: bytes) -> bytes:
    digest = hashlib.blake2b(manifest, digest_size=32, person=b"manifest").hexdigest()
    return b'{"blake2b": "%b", "manifest": %b}\n' % (digest.encode(), manifest)
