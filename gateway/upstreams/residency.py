"""Which adapters a server has loaded, and which of them has to go for another one. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable


class AdapterResidency:
    """Adapter versions of one server, the least recently used first."""

    def __init__(self, most: int) -> None:
        """Args: most: adapters that may be loaded at the same time."""
        self._most = most
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._users: Counter[str] = Counter()
        """Answers that use each version now, or wait until it is loaded."""
        self._pinned: frozenset[str] = frozenset()

    @property
    def loaded(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    @property
    def full(self) -> bool:
        """Whether one has to go before another one is loaded."""
        return len(self._loaded) >= self._most

    def listed(self, versions: Iterable[str]) -> None:
        """Take over what the server says it has loaded: others may load and unload too. Those of others come first."""
        there = set(versions)
        known = [version for version in self._loaded if version in there]
        self._loaded = OrderedDict.fromkeys([*sorted(there.difference(known)), *known])

    def pin(self, versions: Iterable[str]) -> None:
        """Take over the versions to keep."""
        self._pinned = frozenset(versions)

    def begin(self, version: str) -> None:
        """Count an answer that uses a version from now on."""
        self._users[version] += 1
        if version in self._loaded:
            self._loaded.move_to_end(version)

    def end(self, version: str) -> None:
        """Count it no more."""
        self._users[version] -= 1
        if not self._users[version]:
            del self._users[version]

    def added(self, version: str) -> None:
        """Record that the server has loaded a version."""
        self._loaded[version] = None
        self._loaded.move_to_end(version)

    def removed(self, version: str) -> None:
        """Record that the server has it no more."""
        self._loaded.pop(version, None)

    def victim(self, *, pinned: bool = True) -> str | None:
        """Return the version to unload: the least recently used one that no answer uses, pinned ones last.

        Args:
            pinned: whether a pinned one may go.
        """
        idle = [version for version in self._loaded if version not in self._users]
        free = [version for version in idle if version not in self._pinned]
        return next(iter([*free, *(idle if pinned else [])]), None)
