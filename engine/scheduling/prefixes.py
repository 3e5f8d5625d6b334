"""Tracks which prefixes are in the KV cache, and which a running request will soon have computed. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from engine.cache.blocks import BLOCK_SIZE, BlockPool, PrefixMatch
from engine.cache.prefix_keys import block_hashes
from engine.request import Request


class Prefixes:
    """Matches requests with the cached blocks of a pool and publishes what they compute."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._computing: dict[bytes, Request] = {}
        """Running request that will soon have computed a prefix, by the hash of the prefix's last block."""

    def match(self, request: Request) -> list[int]:
        """Return cached blocks that `request` may use. Its last known token always runs, to give logits.

        For a waiting request only changes since the last call are looked at: it may be asked for in every step.
        """
        if request.sampling.prompt_logprobs is not None:
            return []
        _extend_hashes(request, request.length // BLOCK_SIZE)
        known = request.prefix_match = request.prefix_match or PrefixMatch()
        return self._pool.rematch(known, request.block_hashes, (request.length - 1) // BLOCK_SIZE)

    def missing(self, request: Request, hits: int) -> list[bytes]:
        """Return prefixes that `request` could have used as well, behind the `hits` blocks that `match` has found."""
        if request.sampling.prompt_logprobs is not None:
            return []
        return request.block_hashes[hits : (request.length - 1) // BLOCK_SIZE]

    def underway(self, request: Request, hits: int) -> bool:
        """Whether a request further ahead is computing at least half of what this one still needs.

        Waiting for it costs a step or two; computing the same prefix twice costs as much and delays the other one.
        `hits` is the number of blocks that are cached already.
        """
        shared = 0
        if request.sampling.prompt_logprobs is None:
            for index in range(hits, (request.length - 1) // BLOCK_SIZE):
                owner = self._computing.get(request.block_hashes[index])
                if owner is None or owner.rank > request.rank:
                    break
                shared += BLOCK_SIZE
        return shared > 0 and 2 * shared >= request.length - hits * BLOCK_SIZE

    def begin(self, request: Request) -> None:
        """Register the blocks that an admitted request will compute behind its cached ones."""
        request.prefix_match = None
        for digest in request.block_hashes[request.computed // BLOCK_SIZE :]:
            self._computing.setdefault(digest, request)

    def publish(self, request: Request, computed: int) -> None:
        """Register the full blocks of tokens `[0, computed)`, which are in the cache now."""
        full = range(request.computed // BLOCK_SIZE, computed // BLOCK_SIZE)
        request.computed = computed
        if not full:
            return
        _extend_hashes(request, full.stop)
        for index in full:
            digest = request.block_hashes[index]
            self._pool.register(request.block_table[index], digest)
            self._forget(digest, request)

    def abandon(self, request: Request) -> None:
        """Withdraw what `request` would have computed; its blocks are still its own."""
        for digest in request.block_hashes[request.computed // BLOCK_SIZE :]:
            self._forget(digest, request)

    def check_integrity(self, running: Iterable[Request]) -> None:
        """
        Raises:
            RuntimeError: a request that does not run is said to compute a prefix.
        """
        if not {request.id for request in self._computing.values()} <= {request.id for request in running}:
            raise RuntimeError("a request that does not run is said to compute a prefix")

    def _forget(self, digest: bytes, request: Request) -> None:
        if self._computing.get(digest) is request:
            del self._computing[digest]


def _extend_hashes(request: Request, blocks: int) -> None:
    hashes = request.block_hashes
    if len(hashes) < blocks:
        parent = hashes[-1] if hashes else request.chain_root
        hashes += block_hashes(parent, request.tokens(len(hashes) * BLOCK_SIZE, blocks * BLOCK_SIZE))
