"""The pools of a configuration that names none: models of the catalogue, or the one that this repository has."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.config.model_store import ModelStoreSettings
from gateway.config.pools import TIERS, PoolSettings
from gateway.records.section import SettingsError

DEMO = Path(__file__).resolve().parents[2] / "deploy" / "demo"
_MOST_THREADS = 8
"""Threads of an engine, so that three engines do not crowd a large machine."""


def default_pools(models: ModelStoreSettings) -> list[PoolSettings]:
    """Return the pools of the tiers in `models.serve`; without any, that of the repository's own model.

    Raises:
        SettingsError: the catalogue cannot be read, or has no model for a tier.
    """
    return [_of_catalogue(models, tier) for tier in TIERS if tier in models.serve] or own_pools()


def own_pools() -> list[PoolSettings]:
    """Return the pool of the small model that was trained in this repository."""
    return [PoolSettings(tier="small", name="roundhouse-demo-2m", model=str(DEMO / "model"))]


def _of_catalogue(models: ModelStoreSettings, tier: str) -> PoolSettings:
    model = next((each for each in models.offered() if each.tier == tier), None)
    if model is None:
        raise SettingsError(f"models.serve: the catalogue has no model of the {tier} tier; leave it out")
    return PoolSettings(
        tier=model.tier,
        name=model.name,
        model=str(models.open().path(model)),
        sha256=model.sha256,
        # One request runs alone more often than not, and then takes what it can get.
        threads=min(_MOST_THREADS, len(os.sched_getaffinity(0))),
        kv_tokens=model.kv_tokens,
        cost=model.cost,
    )
