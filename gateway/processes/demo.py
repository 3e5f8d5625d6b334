"""The adapters that come with Roundhouse, in the embedded default's registry."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from engine.adapters.registry import AdapterRegistry, RegistryError
from engine.checkpoint.opening import open_checkpoint
from gateway.config.settings import DEMO, PoolSettings, Settings
from gateway.engines.adapters import registry_url

TRAINED = DEMO.parent / "adapters"
"""Folder of the adapters of models of the catalogue."""
ADAPTERS = {
    "json": "answers as a JSON object",
    "pirate": "answers like a pirate",
}
"""Adapters of the repository's own model."""


class ShippedAdapter(Struct, frozen=True):
    """An adapter that comes with Roundhouse."""

    name: str
    description: str
    folder: Path
    base: PoolSettings
    """Pool of the model that it was trained on."""


def shipped(settings: Settings, pools: Iterable[PoolSettings]) -> Iterator[ShippedAdapter]:
    """Yield the adapters of the models of these pools."""
    store = settings.models.open()
    models = {str(store.path(model)): model.name for model in settings.models.offered()}
    table = TRAINED / "adapters.toml"
    trained = tomllib.loads(table.read_text("utf-8")) if table.exists() else {}
    for pool in pools:
        if pool.takes_messages:
            continue  # its servers take none, whatever they call its model
        if pool.model == str(DEMO / "model"):
            for name, description in ADAPTERS.items():
                yield ShippedAdapter(name, description, DEMO / "adapters" / name, pool)
        for name, of in trained.items():
            if models.get(pool.model) == of["base"]:
                yield ShippedAdapter(name, of["description"], TRAINED / "trained" / name, pool)


def register_adapters(settings: Settings, pools: Sequence[PoolSettings]) -> None:
    """Register the adapters of these pools' models, unless the registry is somebody's own.

    A name is given once only, so that one that was removed stays away. Later on, a name is led to today's adapter if
    its own was checked against another model than its pool has now, or if its model is served no more.

    Raises:
        RegistryError: the registry cannot be used.
    """
    if settings.adapters.registry is not None:
        return
    registry = AdapterRegistry(registry_url(settings))
    served = {pool.name for pool in settings.pools}
    for pool in pools:
        adapters = list(shipped(settings, [pool]))
        if not adapters:
            continue
        marker, names = Path(registry.url) / f".{pool.name}", registry.names()
        given = set(marker.read_text("utf-8").split()) if marker.exists() else set()
        revision = open_checkpoint(Path(pool.model)).revision
        for adapter in adapters:
            known = names.get(adapter.name)
            if known is None:
                wanted = adapter.name not in given
            else:
                free = known.model == pool.name or known.model not in served
                wanted = free and revision not in _bases(registry, known.version)
            if wanted:
                version = registry.add(adapter.folder, Path(pool.model)).version
                registry.point(adapter.name, version, model=pool.name, description=adapter.description)
        marker.write_text("\n".join(sorted(given | {adapter.name for adapter in adapters})), "utf-8")


def _bases(registry: AdapterRegistry, version: str) -> tuple[str, ...]:
    """Return the base models of a version; none if its manifest is damaged, which adding it again mends."""
    try:
        return registry.manifest(version).bases
    except RegistryError:
        return ()
