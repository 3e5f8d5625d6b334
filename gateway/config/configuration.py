"""The settings in force, and how they change while a gateway runs.

Settings are immutable. A new configuration is read and checked whole; then every part prepares for it, which may fail;
only when all are ready, they apply it together, so that nobody sees half of it. Running turns keep the settings that
they began with. Whatever goes wrong, the old configuration stays in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from gateway.config.settings import Settings, SettingsError
from gateway.config.tiers import pools_by_label
from gateway.records.section import Section

log = logging.getLogger("roundhouse.configuration")

ALL: Final[frozenset[str]] = frozenset("*")

CHANGEABLE: Final[Mapping[str, frozenset[str]]] = {
    "server": frozenset(
        {
            "allowed_origins",
            "connection_lifetime",
            "drain_timeout",
            "failed_keys_per_minute",
            "first_message_timeout",
            "idle_timeout",
            "max_connections",
            "max_connections_per_tenant",
        }
    ),
    "turns": frozenset(
        {
            "default_max_output_tokens",
            "max_concurrent_per_connection",
            "max_retained",
            "orphan_timeout",
            "queue_timeout",
            "retention",
        }
    ),
    "limits": ALL,
    "adapters": frozenset({"sources"}),
    "cache": ALL,
    "chat": ALL,
    "embedder": frozenset({"dimensions", "timeout"}),
    "semantic_cache": frozenset({"max_wrong_hits", "tenants", "max_questions_per_tenant"}),
    "router": ALL,
    "scaling": frozenset(
        {
            "backlog_seconds",
            "hold_seconds",
            "retry_seconds",
            "sleep_seconds",
            "utilisation",
        }
    ),
    "log": ALL,
    "ray": ALL,
    "safety": ALL,
    "tenants": ALL,
    "pools": frozenset(
        {
            "budget",
            "cost",
            "engines",
            "max_replicas",
            "min_replicas",
            "on_demand_replicas",
            "replica_price",
            "spare_replicas",
            "spot_price",
            "start_seconds",
            "ttft_target",
            "weight",
            "when_asleep",
            "windows",
        }
    ),
    "prices": ALL,
}
"""Fields that may change while a gateway runs, by section; no others may."""

WATCH_SECONDS = 1.0
"""Seconds between two looks at the configuration file, with `server.watch_config`."""

Outcome = Literal["changed", "unchanged", "refused"]
Apply = Callable[[], None]
Prepare = Callable[[Settings], Awaitable[Apply]]
"""Prepares a part for new settings or raises `SettingsError`; returns what applies them, which cannot fail."""


def changes(old: Settings, new: Settings) -> list[str]:
    """Paths of the fields in which two configurations differ, such as `server.port`, `pools.small.engines`."""
    return sorted(set(_changes(old, new)))


def fixed(old: Settings, new: Settings) -> list[str]:
    """Paths of the differing fields that cannot change while a gateway runs."""
    labelled = [pools_by_label(pools).items() for pools in (old.pools, new.pools)]
    own = {label for pools in labelled for label, pool in pools if pool.own}
    was, now = ({label for label, pool in pools if pool.elastic} for pools in labelled)

    def may_change(path: str) -> bool:
        section, *names = path.split(".")
        allowed = CHANGEABLE.get(section, frozenset())
        if section == "pools" and (len(names) < 2 or (names[1] == "engines" and names[0] in own)):
            return False  # a whole pool; or one whose engine is started here
        if section == "pools" and names[1] in ("min_replicas", "max_replicas") and names[0] in was ^ now:
            return False  # how `serve` starts its engines is settled at the start
        return allowed is ALL or (bool(names) and names[-1] in allowed)

    return [path for path in changes(old, new) if not may_change(path)]


def _changes(old: Settings, new: Settings) -> Iterator[str]:
    for field in msgspec.structs.fields(Settings):
        name = field.name
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if isinstance(before, Section):
            yield from _differing(name, before, after)
        elif name == "pools":
            was, now = pools_by_label(before), pools_by_label(after)
            yield from (f"pools.{label}" for label in was.keys() ^ now.keys())
            for label in was.keys() & now.keys():
                yield from _differing(f"pools.{label}", was[label], now[label])
        else:  # each has a name
            was, now = ({each.name: each for each in every} for every in (before, after))
            named = [each for each in was.keys() | now.keys() if was.get(each) != now.get(each)]
            yield from (f"{name}.{each}" for each in named or ["*"])  # or only their order differs


def _differing(path: str, old: Any, new: Any) -> Iterator[str]:
    for field in msgspec.structs.fields(old):
        if getattr(old, field.name) != getattr(new, field.name):
            yield f"{path}.{field.name}"


class Configuration:
    """Holds the settings in force."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings] | None = None,
        fill: Callable[[Settings], Settings] = lambda settings: settings,
        file: Path | None = None,
    ) -> None:
        """
        Args:
            settings: the settings as they were read.
            read: reads the settings again.
            fill: adds what only this process knows, such as the addresses of engines that were started.
            file: the configuration file, which `look` watches.
        """
        self._written = settings
        self._read = read
        self._fill = fill
        self._file = file
        self._seen = None if file is None else _stamp(file)
        self._parts: list[Prepare] = []
        self._changing = asyncio.Lock()
        self.settings = fill(settings)
        """The settings in force. A kept reference does not see later changes."""
        self.observe: Callable[[Outcome], None] = lambda outcome: None
        """Called with the outcome of each reload."""

    def add(self, prepare: Prepare) -> None:
        """Register a part that takes over changes."""
        self._parts.append(prepare)

    async def reload(self) -> list[str]:
        """Read the configuration again and take it over; returns the paths of what has changed.

        Raises:
            SettingsError: it cannot be used, and the old one stays in force.
        """
        async with self._changing:
            try:
                changed = await self._reload()
            except Exception as error:
                if not isinstance(error, SettingsError):
                    log.exception("configuration could not be read again")
                    error = SettingsError("the gateway failed to read it; see its log")
                log.error("configuration refused, the old one stays in force", extra={"error": str(error)})
                self.observe("refused")
                raise error from None
            log.info("configuration read again", extra={"changed": changed})
            self.observe("changed" if changed else "unchanged")
            return changed

    async def look(self) -> None:
        """Reload if the file has changed since the last look and `server.watch_config` says so."""
        if self._file is None:
            return
        now = await asyncio.to_thread(_stamp, self._file)
        if now != self._seen and self.settings.server.watch_config:
            with contextlib.suppress(SettingsError):  # it is in the log
                await self.reload()
        self._seen = now

    async def _reload(self) -> list[str]:
        if self._read is None:
            raise SettingsError("this gateway was not started from a configuration file")
        if not self._parts:
            raise SettingsError("the gateway is still starting; try again in a moment")
        new = await asyncio.to_thread(self._read)
        if paths := fixed(self._written, new):
            raise SettingsError(
                f"{', '.join(paths)}: cannot change while the gateway runs; put back what was there, or restart it"
            )
        filled = self._fill(new)
        ready = [await prepare(filled) for prepare in self._parts]
        changed = changes(self._written, new)
        self._written, self.settings = new, filled
        for apply in ready:
            apply()
        return changed


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
