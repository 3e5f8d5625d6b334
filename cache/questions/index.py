"""Index of the stored questions that this process knows, by partition: it gives hints, Redis the truth.

One usearch index (HNSW over cosines, 16-bit floats) per partition; the partitions used longest ago go when all of them
together hold too many vectors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from usearch.index import Index

Vector = NDArray[np.float32]
Name = tuple[str, str]
"""Name of a partition: tenant and partition."""


class Hint(Struct, frozen=True):
    """A stored question that may be near."""

    phrasing: str
    answer: str
    similarity: float
    """Cosine of the two embeddings."""


class PartitionIndex:
    """The stored questions of one partition."""

    def __init__(self, dimensions: int) -> None:
        self._index = Index(ndim=dimensions, metric="cos", dtype="f16")
        self._next = 0
        self._keys: dict[str, int] = {}
        self._known: dict[int, tuple[str, str]] = {}
        self.loading: set[str] | None = set()
        """Questions that were removed while the partition is read from Redis; None once it is complete."""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, phrasing: str, answer: str, vector: Vector) -> None:
        """Add a question, or make a known one lead to another answer.

        Raises:
            ValueError: the vector has another length.
        """
        if len(vector) != self._index.ndim:
            raise ValueError(f"a vector of {len(vector)} dimensions; those here have {self._index.ndim}")
        self.remove(phrasing, deleted=False)
        key, self._next = self._next, self._next + 1
        self._keys[phrasing], self._known[key] = key, (phrasing, answer)
        self._index.add(key, vector)

    def load(self, questions: Iterable[tuple[str, str, Vector]]) -> None:
        """Add what was read from Redis, except for what has changed here since."""
        for phrasing, answer, vector in questions:
            if phrasing not in self._keys and not (self.loading and phrasing in self.loading):
                self.add(phrasing, answer, vector)

    def remove(self, phrasing: str, *, deleted: bool = True) -> None:
        """Forget a question, if it is known."""
        if deleted and self.loading is not None:
            self.loading.add(phrasing)
        key = self._keys.pop(phrasing, None)
        if key is not None:
            del self._known[key]
            self._index.remove(key)

    def forget(self, hint: Hint) -> None:
        """Forget where a question led, unless it leads to another answer by now."""
        key = self._keys.get(hint.phrasing)
        if key is not None and self._known[key] == (hint.phrasing, hint.answer):
            self.remove(hint.phrasing)

    def nearest(self, vector: Vector, count: int) -> list[Hint]:
        """Return the nearest questions, nearest first."""
        if not self._keys:
            return []
        found = self._index.search(vector, count)
        return [
            Hint(*self._known[int(key)], 1 - float(distance))
            for key, distance in zip(found.keys, found.distances, strict=True)
            if int(key) in self._known
        ]


class VectorIndex:
    """The partitions that this process knows.

    Args:
        capacity: most vectors in all of them together; one takes about 1.5 kB with 384 dimensions.
        most: most partitions.
    """

    def __init__(self, *, capacity: int = 50_000, most: int = 2_000) -> None:
        self._capacity = capacity
        self._most = most
        self._partitions: OrderedDict[Name, PartitionIndex] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._partitions.values()))

    @property
    def partitions(self) -> int:
        return len(self._partitions)

    def get(self, name: Name) -> PartitionIndex | None:
        """Return a partition, if it is known; using it keeps it."""
        found = self._partitions.get(name)
        if found is not None:
            self._partitions.move_to_end(name)
        return found

    def begin(self, name: Name, dimensions: int) -> PartitionIndex:
        """Return a new, empty partition, which is about to be read."""
        made = self._partitions[name] = PartitionIndex(dimensions)
        self._shrink(name)
        return made

    def add(self, name: Name, phrasing: str, answer: str, vector: Vector) -> None:
        """Add a question to a partition, if that is known; Redis knows of all others."""
        partition = self._partitions.get(name)
        if partition is not None:
            partition.add(phrasing, answer, vector)
            self._shrink(name)

    def drop(self, name: Name) -> None:
        """Forget a partition."""
        self._partitions.pop(name, None)

    def clear(self) -> None:
        """Forget all partitions; they are read anew when they are used."""
        self._partitions.clear()

    def _shrink(self, keep: Name) -> None:
        size = len(self)
        while (size > self._capacity or len(self._partitions) > self._most) and len(self._partitions) > 1:
            oldest = next(name for name in self._partitions if name != keep)
            size -= len(self._partitions.pop(oldest))
