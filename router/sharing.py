"""Which pool of a tier answers a conversation, where the tier has several.

By a digest of tier, tenant and conversation, as targets of a route are chosen: all turns of a conversation go to the
same pool, on every gateway, so that prefix caches keep their worth, and more weight for a pool moves conversations to
it only. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.canary import WeightedTarget, split


def pool_order(tier: str, tenant: str, conversation: bytes, pools: Sequence[WeightedTarget]) -> list[str]:
    """Return the models of a tier's pools in the order in which they are asked.

    First comes the one to which the conversation belongs by weight, then the others in their own order, which are
    asked while it cannot answer. Where no pool has a weight, all come in their own order.
    """
    chosen = split(f"tier {tier}", tenant, conversation, pools)
    names = [pool.model for pool in pools]
    return names if chosen is None else [chosen, *(name for name in names if name != chosen)]
