"""A gateway that serves on a loop of its own, for clients that block."""

from __future__ import annotations

import asyncio
import threading

from tests.gateway.admin.conftest import Administer


class Thread:
    """Keeps a gateway serving on a loop of its own, for a client that blocks."""

    def __init__(self, administer: Administer) -> None:
        self.url = ""
        self.names: dict[str, str] = {}
        """Names of existing things, by parameter of a path."""
        self._administer = administer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            # Unlike a bare loop it waits for what is still being closed.
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        async with self._administer() as api:
            post = api.operator.post
            await post("/tenants", json={"name": "shop"})
            user = (await post("/tenants/shop/users", json={"subject": "ada"})).json()["id"]
            key = (await post("/tenants/shop/keys", json={})).json()["record"]["id"]
            await post("/prices", json={"name": "tiny-small", "input": 1, "output": 1})
            await post("/routes", json={"name": "tiny-small", "targets": [{"model": "tiny-small", "weight": 1}]})
            self.names = {"tenant": "shop", "user": user, "key": key, "public_name": "tiny-small", "pool": "small"}
            self.names["replica"] = "small-0"
            self.url = api.served.url
            self._ready.set()
            await self._stopping.wait()

    def __enter__(self) -> Thread:
        self._thread.start()
        assert self._ready.wait(60)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._error is not None:
            raise self._error
