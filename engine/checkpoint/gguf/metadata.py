"""Typed access to the metadata of a GGUF file: a key that is missing or of another type is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.checkpoint.errors import CheckpointError
from engine.checkpoint.gguf.reader import Value


class GgufMetadata:
    """Metadata by key. A key that may be missing has a default."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def under(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`, without it."""
        return (key.removeprefix(prefix) for key in self._values if key.startswith(prefix))

    def equals(self, key: str, expected: float) -> bool:
        """Whether a value is a number, or true or false, and this one."""
        value = self._values[key]
        return isinstance(value, int | float) and value == expected

    def text(self, key: str, default: str | None = None) -> str:
        found: str = self._typed(key, str, default, "a string")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        return float(self.scalar(key, default))

    def scalar(self, key: str, default: float | None = None) -> int | float:
        """Return a number in the type in which it is stored."""
        found: int | float = self._typed(key, int | float, default, "a number")
        return found

    def flag(self, key: str, default: bool | None = None) -> bool:
        found: bool = self._typed(key, bool, default, "true or false")
        return found

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer; an array of equal ones, which some converters write per layer, is one too."""
        value = self._values.get(key)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size:
            if (value != value[0]).any():
                raise CheckpointError(f"{key} differs between layers, which is not supported")
            return int(value[0])
        found: int = self._typed(key, int, default, "an integer")
        return found

    def strings(self, key: str) -> list[str]:
        found: list[bytes] = self._typed(key, list, None, "an array of strings")
        try:
            return [each.decode() for each in found]
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{key}: {error.object!r} is not UTF-8") from error

    def numbers(self, key: str, count: int) -> npt.NDArray[np.generic]:
        """Return an array of `count` finite numbers."""
        found: npt.NDArray[np.generic] = self._typed(key, np.ndarray, None, "an array of numbers")
        if len(found) != count:
            raise CheckpointError(f"{key} has {len(found)} entries where {count} are expected")
        if not np.isfinite(found).all():
            raise CheckpointError(f"{key} has infinities or NaNs")
        return found

    def _typed(self, key: str, kind: Any, default: Any, expected: str) -> Any:
        value = self._values.get(key, default)
        if value is None:
            raise CheckpointError(f"{key} is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"{key} is not {expected}")
        return value
