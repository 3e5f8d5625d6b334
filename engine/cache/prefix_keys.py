"""Names blocks of KV by a chain of digests, `H(parent, tokens)`, whose root names all else that they depend on.

The one place for that formula: the engine's prefix cache keeps blocks by these keys, and a gateway computes the same
ones to know which replica has which part of a prompt. Between the two, blocks go by the first 64 bits of their key.
(The design is vLLM's automatic prefix caching; its root names the adapter, which serves stale KV after a reload.)

Pure and free of torch.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

from engine.wire import ModelInfo

BLOCK_SIZE = 16
"""Tokens per block."""
_NUMBER_BYTES = 8


def chain_root(model: ModelInfo, prompt_tokens: int, adapter: str | None, salt: bytes) -> bytes:
    """Return the digest from which the chain of a request starts.

    Args:
        prompt_tokens: length of its prompt.
        adapter: version of its adapter.
    """
    regimes = model.rope_regimes
    regime = 0 if regimes is None else regimes.of(prompt_tokens)
    return root_hash(model.revision, adapter, model.kv_dtype or model.dtype, salt, regime)


def root_hash(revision: str, adapter: str | None, dtype: str, salt: bytes, regime: int = 0) -> bytes:
    """Return the root for one (model revision, adapter version, KV data type, salt, RoPE regime)."""
    hasher = hashlib.blake2b(digest_size=32, person=b"kv root")
    version = b"" if adapter is None else b"+" + adapter.encode()
    for part in (revision.encode(), version, dtype.encode(), salt, str(regime).encode()):
        hasher.update(struct.pack("<Q", len(part)))
        hasher.update(part)
    return hasher.digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of a full block: its tokens after everything before them. 256 bits, the same on every machine."""
    return _hash(parent, struct.pack(f"<{len(tokens)}I", *tokens))


def block_hashes(parent: bytes, tokens: Sequence[int]) -> list[bytes]:
    """Return the keys of the full blocks that follow one of a chain, or its root. 0.6 microseconds for each."""
    count = len(tokens) // BLOCK_SIZE * BLOCK_SIZE
    packed = struct.pack(f"<{count}I", *tokens[:count])
    size = 4 * BLOCK_SIZE
    hashes = []
    for start in range(0, len(packed), size):
        parent = _hash(parent, packed[start : start + size])
        hashes.append(parent)
    return hashes


def block_numbers(root: bytes, tokens: Sequence[int]) -> list[int]:
    """Return the numbers of a prompt's full blocks."""
    return [int.from_bytes(digest[:_NUMBER_BYTES], "little") for digest in block_hashes(root, tokens)]


def pack_numbers(digests: Iterable[bytes]) -> bytes:
    """Pack the numbers of blocks with these keys as they go over the wire."""
    return b"".join(digest[:_NUMBER_BYTES] for digest in digests)


def unpack_numbers(packed: bytes) -> tuple[int, ...]:
    """
    Raises:
        ValueError: some bytes are missing.
    """
    if len(packed) % _NUMBER_BYTES:
        raise ValueError("numbers of blocks are cut off")
    return struct.unpack(f"<{len(packed) // _NUMBER_BYTES}Q", packed)


def _hash(parent: bytes, packed: bytes) -> bytes:
    return hashlib.blake2b(parent + packed, digest_size=32, person=b"kv block").digest()
