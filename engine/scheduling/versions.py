"""Adapter versions in the order in which requests began to wait for them. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort


class Versions:
    """Adapter versions, the one waited for longest first."""

    def __init__(self) -> None:
        self._line: list[tuple[float, str]] = []
        self._since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, version: str | None) -> bool:
        return version in self._since

    def add(self, version: str, since: float) -> None:
        self._since[version] = since
        insort(self._line, (since, version))

    def discard(self, version: str) -> None:
        since = self._since.pop(version, None)
        if since is not None:
            del self._line[bisect_left(self._line, (since, version))]

    def since(self, version: str) -> float:
        return self._since[version]

    def first(self) -> tuple[float, str]:
        """Return the first version and since when it is waited for; an infinite moment if there is none."""
        return self._line[0] if self._line else (float("inf"), "")

    def versions(self) -> list[str]:
        return [version for _, version in self._line]
