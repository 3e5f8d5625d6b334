"""Has all turns of a conversation go to the same model, where several share a name or a tier."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from gateway.engines.pool import Pool
from gateway.turns import Turn
from router.canary import WeightedTarget
from router.sharing import pool_order


def beginning(turn: Turn) -> bytes:
    """Return the digest of a conversation up to its first question, which is the same in all of its turns."""
    digest = hashlib.blake2b(digest_size=16)
    prompt = turn.request.prompt
    if prompt is not None:
        digest.update(prompt.encode() if isinstance(prompt, str) else repr(tuple(prompt)).encode())
    for message in turn.conversation:
        digest.update(f"{message.role}\0{len(message.content)}\0{message.content}".encode())
        if message.role == "user":
            break
    return digest.digest()


def pool_ranks(pools: Sequence[Pool], turn: Turn) -> dict[str, int]:
    """Return the place of each pool in the order in which its tier's pools are asked, by name.

    Args:
        pools: those that may answer.
    """
    tiers: defaultdict[str, list[WeightedTarget]] = defaultdict(list)
    for pool in pools:
        tiers[pool.tier].append(WeightedTarget(pool.name, pool.weight))
    shared = {tier: targets for tier, targets in tiers.items() if len(targets) > 1}
    conversation = beginning(turn) if shared else b""
    return {
        name: rank
        for tier, targets in shared.items()
        for rank, name in enumerate(pool_order(tier, turn.principal.tenant, conversation, targets))
    }
