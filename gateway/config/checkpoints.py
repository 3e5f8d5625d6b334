"""Checks, before anything is started, that the folder of each pool holds what a gateway reads of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.text.processor import TextProcessor
from gateway.config.settings import PoolSettings, SettingsError


def check(pools: Sequence[PoolSettings]) -> None:
    """
    Raises:
        SettingsError: a folder lacks a file, or has one that cannot be used; the message names both and the remedy.
    """
    for pool in pools:
        try:
            TextProcessor.from_directory(Path(pool.model))
        except Exception as error:  # tokenizers raises nothing more exact for a file that it cannot read
            raise SettingsError(
                f"pools: {pool.name}: model: {error}; it must be a folder in Hugging Face format, "
                "with config.json, tokenizer.json and safetensors weights"
            ) from error
