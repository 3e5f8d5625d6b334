"""The error that says what is wrong with a checkpoint."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint cannot be served. The message names the field or tensor and the remedy."""
