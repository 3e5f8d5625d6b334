"""Which pools a tier has, and which of them stands for the tier where only one can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gateway.config.pools import PoolSettings, Tier
from gateway.records.section import SettingsError


def pools_by_label(pools: Sequence[PoolSettings]) -> dict[str, PoolSettings]:
    """Return pools by the label that operators know them by: their tier, or `large2` for the second one of a tier."""
    found: dict[str, PoolSettings] = {}
    for pool in pools:
        number = sum(each.tier == pool.tier for each in found.values()) + 1
        found[pool.tier if number == 1 else f"{pool.tier}{number}"] = pool
    return found


def first_pools(pools: Sequence[PoolSettings]) -> dict[Tier, PoolSettings]:
    """Return the first pool of each tier, which speaks for the tier where only one can."""
    return {pool.tier: pool for pool in reversed(pools)}


def check_tiers(pools: Sequence[PoolSettings]) -> None:
    """Raises SettingsError: two pools are in each other's way."""
    names = Counter(pool.name for pool in pools)
    for name, count in names.items():
        if count > 1:
            raise SettingsError(f"pools: name: {count} pools are named {name!r}; give each another name")
    joined = Counter(pool.tier for pool in pools if pool.registered or not pool.engines)
    for tier, count in joined.items():
        if count > 1:
            raise SettingsError(
                f"pools: `serve` starts the engines of {count} pools of the {tier} tier, or they announce themselves; "
                "only one pool of a tier can have such engines: start those of the others yourself, and name their "
                "addresses in engines"
            )
