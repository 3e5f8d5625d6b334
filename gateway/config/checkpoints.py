"""Checks, before anything is started, that the model of each pool holds what a gateway reads of it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.processor import TextProcessor
from gateway.config.settings import PoolSettings, SettingsError


def check(pools: Sequence[PoolSettings]) -> None:
    """
    Raises:
        SettingsError: a model lacks a file, or has one that cannot be used; the message names both and the remedy.
    """
    for pool in pools:
        try:
            TextProcessor.from_path(pool.model)
        except (ValueError, OSError) as error:
            raise SettingsError(
                f"pools: {pool.name}: model: {error}; it must be a GGUF file, or a folder in Hugging Face "
                "format, with config.json, tokenizer.json and safetensors weights"
            ) from error
