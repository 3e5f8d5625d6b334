"""Adapters at a server of another project: has those loaded that requests name, by their version.

Servers that load adapters while they run read them from the registry's folder, as they see it. A version is its own
name there: a public name leads to another version tomorrow, and caches would give the old one's answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import httpx2
from msgspec import Struct

from engine.client.generation import EngineGone, EngineOverloaded, RequestFailed, RequestInvalid
from engine.validation import is_adapter_version
from gateway.background import BackgroundTasks
from gateway.upstreams.dialect import AdapterDialect
from gateway.upstreams.pages import UNREADABLE, ServerPages, Unhealthy
from gateway.upstreams.refusal import OVERLOADED, refusal, said
from gateway.upstreams.residency import AdapterResidency

logger = logging.getLogger("roundhouse.adapters")

_TRIES = 3
"""Times that a request is sent whose adapter others unload."""
_PATIENCE = 60.0
"""Seconds that an adapter may take to be loaded ahead."""


class AdapterAccess(Struct, frozen=True):
    """Which adapters a server may load."""

    folder: str | None = None
    """The registry's folder as the server sees it; None: it loads none."""
    most: int = 4
    """Adapters that it holds at the same time."""


class ServerAdapters:
    """The adapters of one server."""

    def __init__(self, address: str, dialect: AdapterDialect | None, access: AdapterAccess) -> None:
        self._address = address
        self._dialect = dialect
        self._access = access
        self._state = AdapterResidency(access.most)
        self._names: Mapping[str, Any] = {}
        """What a request calls each version that the server had when it was asked last."""
        self._all: tuple[Any, ...] = ()
        """The same for adapters of any name."""
        self._server: ServerPages | None = None
        self._loading = asyncio.Lock()
        self._freed = asyncio.Event()
        self._ahead = BackgroundTasks("adapters loaded ahead")
        self._coming: set[str] = set()
        """Versions that are being loaded ahead."""
        self._pinned: tuple[str, ...] = ()
        self._told: set[str] = set()
        """Versions whose failure to load is in the log."""
        self.loads = self.evictions = 0
        """Adapters loaded, and unloaded for others, since the start."""

    @property
    def loaded(self) -> tuple[str, ...]:
        """Versions that the server has, as far as this gateway knows."""
        return self._state.loaded

    def check(self, version: str | None) -> None:
        """
        Raises:
            RequestInvalid: the server can never serve this version; the message names the remedy.
        """
        if version is None:
            return
        if not is_adapter_version(version):
            raise _invalid("not a version; send 32 to 128 hexadecimal digits, as the registry names it")
        if self._dialect is None:
            raise _invalid("servers of this kind have none; leave it out to use the base model")
        if self._loads or version in self._names:
            return
        if self._dialect.load is None:
            raise _invalid(f"the model's server does not have it; start it with `--lora {version}.gguf`")
        raise _invalid("the model's server loads none; set adapter_folder of its pool")

    async def introduce(self, server: ServerPages) -> None:
        """Learn what a server has that has just been connected, and load what is to be kept.

        Raises:
            httpx2.HTTPError: it says nothing.
        """
        self._server = server
        if self._dialect is not None:
            await self._list(server)
            self.pin(self._pinned)

    def lose(self) -> None:
        """The server is gone."""
        self._server = None

    async def aclose(self) -> None:
        """End what is being loaded ahead."""
        await self._ahead.aclose(0.0)

    def announce(self, version: str) -> None:
        """Begin to load a version that a request is coming for."""
        self._begin(version, may_replace=True)

    def pin(self, versions: Iterable[str]) -> None:
        """Keep these versions loaded, the first ones if there is not room for all; replaces the last list."""
        self._pinned = tuple(versions)
        self._state.pin(self._pinned)
        for version in self._pinned[: self._access.most]:
            self._begin(version, may_replace=False)

    @contextlib.asynccontextmanager
    async def using(self, version: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """Have a version loaded while the body runs; gives the fields of a request for it, or for the base model.

        Raises:
            RequestFailed: the server does not load it.
            EngineGone: it has just been lost.
            httpx2.HTTPError: it does not answer.
        """
        if self._dialect is None or version is None:
            yield {} if self._dialect is None else self._dialect.base(self._all)
            return
        self._state.begin(version)
        try:
            if self._loads:
                await self._have(version)
            yield self._dialect.select(self._names.get(version, version))
        finally:
            self._state.end(version)
            self._freed.set()

    async def asking(
        self, version: str | None, patience: float | None, ask: Callable[[Mapping[str, Any]], Awaitable[None]]
    ) -> None:
        """Have a version loaded while `ask` runs, which gets the fields of a request for it; again if others have
        unloaded it before the server could begin.

        Args:
            patience: seconds that loading may take; None: as long as it takes.

        Raises:
            RequestFailed, EngineGone, httpx2.HTTPError: as `using` and `ask`.
            TimeoutError: it takes too long.
        """
        for _ in range(_TRIES):
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(patience):
                    fields = await stack.enter_async_context(self.using(version))
                try:
                    await ask(fields)
                    return
                except RequestFailed as failure:
                    if failure.started or not await self._missed(version):
                        raise
        raise EngineOverloaded("the model's server unloads the adapter again and again", started=False)

    async def _missed(self, version: str | None) -> bool:
        """Return whether the server has an adapter no more that a request was for."""
        if version is None or not self._loads or self._server is None:
            return False
        await self._list(self._server)
        return version not in self._state.loaded

    @property
    def _loads(self) -> bool:
        return self._dialect is not None and self._dialect.load is not None and self._access.folder is not None

    async def _list(self, server: ServerPages) -> None:
        """Take over what the server says that it has; it may have no such page."""
        assert self._dialect is not None
        with contextlib.suppress(Unhealthy, *UNREADABLE):
            found = self._dialect.listed(await server.page(self._dialect.page))
            self._all = (*found.values(),)
            self._names = {name: call for name, call in found.items() if is_adapter_version(name)}
            self._state.listed(self._names)

    def _begin(self, version: str, *, may_replace: bool) -> None:
        """Begin to load a version ahead, unless that is under way."""
        known = version in self._coming or version in self._state.loaded
        if self._loads and self._server is not None and not known:
            self._coming.add(version)
            self._ahead.begin(self._load_ahead(version, may_replace=may_replace))

    async def _load_ahead(self, version: str, *, may_replace: bool) -> None:
        self._state.begin(version)
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._have(version, replace=may_replace, wait=False)
        except (RequestFailed, EngineGone, TimeoutError, httpx2.HTTPError, OSError, Unhealthy):
            pass  # the request that needs it will find out, and say so
        finally:
            self._coming.discard(version)
            self._state.end(version)
            self._freed.set()

    async def _have(self, version: str, *, replace: bool = True, wait: bool = True) -> None:
        """Return when a version is loaded, or at once if there is no room for it and it is not waited for.

        Args:
            replace: whether a pinned one may go for it.
        """
        if version in self._state.loaded:
            return
        async with self._loading:
            server = self._server
            if server is None:
                raise EngineGone(f"server {self._address} is not connected", started=False)
            await self._list(server)
            while version not in self._state.loaded:
                if not self._state.full:
                    await self._load(server, version)
                    return
                victim = self._state.victim(pinned=replace)
                if victim is not None:
                    await self._unload(server, victim)
                elif wait:
                    self._freed.clear()
                    await self._freed.wait()
                else:
                    return

    async def _load(self, server: ServerPages, version: str) -> None:
        assert self._dialect is not None and self._dialect.load is not None and self._access.folder is not None
        path = f"{self._access.folder.rstrip('/')}/objects/{version}"
        status, headers, body = await server.tell(self._dialect.load, {"lora_name": version, "lora_path": path})
        if status in OVERLOADED:
            raise refusal(status, headers, body, self._address)
        if status != 200:
            if version not in self._told:
                self._told.add(version)
                logger.warning(
                    "server %s does not load the adapter %s from %s (%d: %s); does it see this folder, and %s?",
                    *(self._address, version, path, status, said(body), self._dialect.remedy),
                )
            raise _invalid("the model's server cannot load it; its operator finds the reason in the log")
        self._told.discard(version)
        self._state.added(version)
        self.loads += 1

    async def _unload(self, server: ServerPages, version: str) -> None:
        assert self._dialect is not None and self._dialect.unload is not None
        status, _, body = await server.tell(self._dialect.unload, {"lora_name": version})
        if status == 200:
            self.evictions += 1
            self._state.removed(version)
            return
        await self._list(server)
        if version in self._state.loaded:
            logger.warning("server %s does not unload an adapter (%d: %s)", self._address, status, said(body))
            raise EngineOverloaded("the model's server has no room for the adapter", started=False, field="adapter")


def _invalid(reason: str) -> RequestInvalid:
    return RequestInvalid(f"adapter: {reason}", started=False, field="adapter")
