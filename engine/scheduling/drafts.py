"""Reserves blocks for drafted tokens in a step. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from engine.cache.blocks import BLOCK_SIZE, BlockPool, blocks_of
from engine.plan import StepPlan
from engine.request import Request


def reserve_drafts(
    plan: StepPlan, depths: Mapping[str, int], pool: BlockPool, *, budget: int, context: int
) -> dict[str, int]:
    """Give rows that decode blocks for drafts of up to `depths` tokens; return how many tokens each may draft.

    Drafts get what a step leaves: `budget` tokens, and the rest of the context and of `max_tokens`. They never cost
    another request its blocks, only unused ones, and those a few steps early: the answer needs the block anyway.
    """
    granted = {}
    for row in plan.rows:
        request = row.request
        wanted = depths.get(request.id, 0)
        if wanted == 0 or not row.sample:
            continue
        depth = min(
            wanted,
            budget,
            request.sampling.max_tokens - len(request.output) - 1,
            context - request.length - 1,
            (len(request.block_table) + pool.available) * BLOCK_SIZE - request.length,
        )
        if depth < 1:
            continue
        missing = blocks_of(request.length + depth) - len(request.block_table)
        if missing > 0:
            request.block_table += pool.allocate(missing, request.holder)
        granted[request.id] = depth
        budget -= depth
    return granted


def return_drafts(request: Request, pool: BlockPool) -> None:
    """Give back the blocks behind the next token to run, which were for a draft that was not confirmed."""
    kept = max(blocks_of(request.length), request.reserved_blocks)
    if len(request.block_table) > kept:
        pool.release(request.block_table[kept:], request.holder)
        del request.block_table[kept:]
