"""Opens a checkpoint of either kind."""

from __future__ import annotations

from pathlib import Path

from engine.checkpoint.folder import FolderCheckpoint
from engine.checkpoint.gguf.checkpoint import GgufCheckpoint
from engine.checkpoint.source import ModelCheckpoint


def open_checkpoint(path: str | Path) -> ModelCheckpoint:
    """Open a GGUF file, or a folder in Hugging Face format.

    Raises:
        CheckpointError: a GGUF file cannot be used. What a folder holds shows when it is asked for.
    """
    path = Path(path)
    return GgufCheckpoint(path) if path.suffix == ".gguf" or path.is_file() else FolderCheckpoint(path)
