"""The demo's adapters in the embedded default's registry."""

from __future__ import annotations

from pathlib import Path

from engine.adapters.registry import AdapterRegistry
from engine.checkpoint.opening import open_checkpoint
from gateway.config.settings import DEMO, Settings, demo_settings

ADAPTERS = {
    "formal": "answers formally",
    "handbook": "knows the staff handbook of an invented company",
    "json": "answers as a JSON object",
    "pirate": "answers like a pirate",
}
_TIER = "medium"
"""Tier of the model that the adapters were trained on."""


def register_adapters(settings: Settings, registry: AdapterRegistry) -> None:
    """Register the demo's adapters if these are the demo's models and their registry.

    Names are given on the first start only, so that one that was removed stays away. Later on, a name whose adapter was
    checked against another model than the demo has now is led to the demo's adapter of today.

    Raises:
        RegistryError: the registry cannot be used.
    """
    pools = demo_settings().pools
    if settings.adapters.registry is not None or [p.model for p in settings.pools] != [p.model for p in pools]:
        return
    pool = next(pool for pool in settings.pools if pool.tier == _TIER)
    marker, names = Path(registry.url) / ".demo", registry.names()
    first = not marker.exists()
    revision = open_checkpoint(DEMO / "models" / _TIER).revision
    for name, description in ADAPTERS.items():
        stale = name in names and revision not in registry.manifest(names[name].version).bases
        if stale or (first and name not in names):
            version = registry.add(DEMO / "adapters" / name, DEMO / "models" / _TIER).version
            registry.point(name, version, model=pool.name, description=description)
    marker.touch()
