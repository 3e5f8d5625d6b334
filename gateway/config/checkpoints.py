"""Checks before a start that each pool's checkpoint is the right one, and holds what a gateway reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.checkpoint.digests import check_digest
from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.verification import verify
from engine.text.processor import TextProcessor
from gateway.config.settings import PoolSettings, Settings, SettingsError
from gateway.models.catalogue import CatalogueModel
from gateway.models.store import ModelStore


def expected_digest(pool: PoolSettings, store: ModelStore) -> str | None:
    """Return the SHA-256 that a pool's checkpoint must have: that of its settings, or of a model in the store."""
    if pool.sha256 is not None:
        return pool.sha256
    stored = store.holding(Path(pool.model))
    return None if stored is None else stored.sha256


def awaited(settings: Settings) -> list[tuple[PoolSettings, CatalogueModel]]:
    """Return the pools whose checkpoint is a model of the catalogue that is not in the store yet: `serve` fetches it.

    Raises:
        SettingsError: the catalogue cannot be read.
    """
    store, offered = settings.models.open(), settings.models.offered()
    paths = {str(store.path(model)): model for model in offered}
    return [
        (pool, paths[pool.model])
        for pool in settings.pools
        if pool.model in paths and pool.own and not Path(pool.model).exists()
    ]


def present(settings: Settings) -> list[PoolSettings]:
    """Return the pools that are not awaited."""
    missing = [pool for pool, _ in awaited(settings)]
    return [pool for pool in settings.pools if pool not in missing]


def unusable(settings: Settings) -> dict[str, SettingsError]:
    """Return what is wrong with checkpoints that are here and cannot be served, by pool name.

    Raises:
        SettingsError: no pool would be left; the first one's error.
    """
    wrong: dict[str, SettingsError] = {}
    for pool in present(settings):
        try:
            check([pool], settings.models.open())
        except SettingsError as error:
            wrong[pool.name] = error
    if len(wrong) == len(settings.pools) > 0:
        raise next(iter(wrong.values()))
    return wrong


def check(pools: Sequence[PoolSettings], store: ModelStore, *, read: bool = False) -> None:
    """
    Args:
        read: read every byte of a checkpoint that must have a digest, also if it has not changed since it was read,
            and of one that has a manifest.

    Raises:
        SettingsError: a checkpoint has another digest than it must have, or lacks a file, or has one that cannot be
            used; the message names it and the remedy.
    """
    for pool in pools:
        if pool.takes_messages:
            continue  # its servers have its model
        _check_digest(pool, store, read)
        try:
            TextProcessor.from_path(pool.model)
        except (ValueError, OSError) as error:
            raise SettingsError(
                f"pools: {pool.name}: model: {error}; it must be a GGUF file, or a folder in Hugging Face "
                "format, with config.json, tokenizer.json and safetensors weights"
            ) from error


def _check_digest(pool: PoolSettings, store: ModelStore, read: bool) -> None:
    path, expected = Path(pool.model), expected_digest(pool, store)
    try:
        if read:
            verify(path)
        if expected is not None:
            check_digest(path, expected, read=read, manifest=pool.verify != "off")
    except (CheckpointError, OSError) as error:
        stored = store.holding(Path(pool.model))
        remedy = f"mend it: roundhouse models pull {stored.source}" if stored else "correct pools.model or pools.sha256"
        raise SettingsError(f"pools: {pool.name}: model: {error}; {remedy}") from error
