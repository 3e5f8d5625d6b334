"""The gateway's connection to one server over HTTP: whether it is healthy, its load, and its streams. asyncio, no
torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import httpx2
import msgspec

from engine.cache.prefix_keys import BLOCK_SIZE
from engine.client.answer_stream import AnswerStream
from engine.client.generation import EngineGone, EngineOverloaded, RequestFailed, UnreadableOutput
from engine.wire import Blocks, Generate, Load, ModelInfo
from gateway.records.section import SettingsError
from gateway.upstreams.adapters import AdapterAccess, ServerAdapters
from gateway.upstreams.cancelled import CancelWatch
from gateway.upstreams.dialect import ServerDescription, ServerDialect
from gateway.upstreams.load import load_of
from gateway.upstreams.pages import UNREADABLE, ServerAccess, ServerPages, Unhealthy, opened, read_body
from gateway.upstreams.refusal import refusal

logger = logging.getLogger("roundhouse.engines")

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.1, 5.0
_PAUSE = 60.0
"""Seconds between two tokens after which an answer counts as lost."""
_LINGER = 1.0
"""Seconds that a server may take to end its reply once the answer has ended."""
_END = "[DONE]"
_STREAMED = {"content-type": "application/json", "accept": "text/event-stream"}
_EXPECTED = (Unhealthy, SettingsError, httpx2.HTTPError, OSError, *UNREADABLE)
"""Exceptions that end a connection without a fault of ours."""


class StreamedAnswer(Protocol):
    """One answer while its stream is read."""

    mark: int
    """What the server tells of its request, if it tells of each, see `CancelWatch`."""

    @property
    def stream(self) -> AnswerStream:
        """The answer as its consumer sees it."""

    @property
    def begun(self) -> bool:
        """Whether a token has come."""

    @property
    def ended(self) -> bool:
        """Whether the server has said that the answer has ended."""

    def accept(self) -> None:
        """Note that the server has taken the request up."""

    def take(self, event: str) -> int:
        """Take an event of the stream; returns how many tokens it adds.

        Raises:
            RequestFailed: it is an error.
            msgspec.MsgspecError, ValueError: it makes no sense.
        """

    def end(self) -> bool:
        """Note that the stream has ended; returns whether the server has said why.

        Raises:
            RequestFailed: it is a reason of the server's own.
        """

    def out_of_time(self) -> None:
        """End the answer with what has come, because its time is over."""


class ServerClient(ABC):
    """Asks one server. Looks every second or so whether it is healthy, and comes back whenever it is again.

    A server counts as dead, with all its answers, once it says that it is not healthy, cannot be reached, or has said
    nothing for `silence` seconds.
    """

    tells_blocks = False

    def __init__(
        self,
        address: str,
        dialect: ServerDialect,
        access: ServerAccess,
        *,
        adapters: AdapterAccess = AdapterAccess(),  # noqa: B008  it is frozen
        silence: float = 10.0,
        on_fault: Callable[[], None] = lambda: logger.exception("a fault of ours"),
    ) -> None:
        """
        Args:
            address: http:// or https://, without a path unless the server is behind one.
            on_fault: called while an exception that nobody expected is being handled.
        """
        self.address = address
        self.server_name = access.server_name
        self.id = ""
        self.on_ready: Callable[[], None] = lambda: None
        self.info: ModelInfo | None = None
        self.load: Load | None = None
        self._protocol = dialect
        self._access = access
        self._adapters = ServerAdapters(address, dialect.adapters, adapters)
        self._cancels = CancelWatch()
        self._extensions = {} if access.server_name is None else {"sni_hostname": access.server_name}
        self._headers = _STREAMED
        self._silence = silence
        self._on_fault = on_fault
        self._http: httpx2.AsyncClient | None = None
        self._connected, self._look = asyncio.Event(), asyncio.Event()
        self._live: dict[str, tuple[StreamedAnswer, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks of answers that nobody wants any more, whose connections are being closed."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._next_id = 0
        self._output_tokens = self._prompt_tokens = 0
        self._blocks = 0
        self._trouble = ""
        """Why the server could not be used last."""
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _description(self, server: ServerPages) -> tuple[ServerDescription, ModelInfo]:
        """Return what the server says of itself, and what that makes of its model.

        Raises:
            Unhealthy, httpx2.HTTPError, msgspec.MsgspecError, ValueError: it does not say, or serves something else.
        """

    @property
    def connected(self) -> bool:
        """See `Upstream`."""
        return self._connected.is_set()

    @property
    def leaving(self) -> bool:
        """See `Upstream`: no such server says so."""
        return False

    @property
    def lingered(self) -> int:
        """See `Upstream`."""
        return self._cancels.lingered

    @property
    def live(self) -> int:
        """See `Upstream`."""
        return len(self._live)

    async def idle(self) -> None:
        """See `Upstream`."""
        await self._idle.wait()

    async def start(self) -> None:
        """See `Upstream`."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"server {self.address}")

    async def aclose(self) -> None:
        """See `Upstream`."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._adapters.aclose()

    async def wait_connected(self) -> None:
        """See `Upstream`."""
        await self._connected.wait()

    def retry(self) -> None:
        """See `Upstream`."""
        self._look.set()

    def announce(self, adapter: str) -> None:
        """See `Upstream`."""
        self._adapters.announce(adapter)

    def pin(self, adapters: Sequence[str]) -> None:
        """See `Upstream`."""
        self._adapters.pin(adapters)

    def follow_blocks(self, listener: Callable[[Blocks], None] | None) -> None:
        """See `Upstream`: it does not tell its blocks."""
        return

    def _ready(self, *, started: bool) -> tuple[httpx2.AsyncClient, ModelInfo]:
        if self._http is None or self.info is None or not self.connected:
            raise EngineGone(f"server {self.address} is not connected", started=started)
        return self._http, self.info

    def _new_id(self) -> str:
        self._next_id += 1
        return str(self._next_id)

    def _begin(self, http: httpx2.AsyncClient, answer: StreamedAnswer, request: Generate, body: dict[str, Any]) -> None:
        """Args: request: ids and time limits; the `body` is what is sent."""
        task = asyncio.create_task(self._answer(http, answer, request, body), name=f"answer of {self.address}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        self._live[request.id] = answer, task
        self._idle.clear()

    def _cancel(self, id: str) -> None:
        """Forget a generation that needs no more output, and close its connection, which ends it in the server."""
        found = self._live.pop(id, None)
        if not self._live:
            self._idle.set()
        if found is not None and found[1] is not asyncio.current_task():
            found[1].cancel()

    async def _answer(
        self, http: httpx2.AsyncClient, answer: StreamedAnswer, request: Generate, body: dict[str, Any]
    ) -> None:
        """Feed an answer with its stream; whatever goes wrong ends that answer only."""
        failure: EngineGone | RequestFailed | None = None
        try:
            async with asyncio.timeout(request.timeout) as whole:
                await self._adapters.asking(
                    request.adapter,
                    request.queue_timeout,
                    lambda fields: self._stream(http, answer, request, {**body, **fields}),
                )
        except TimeoutError:
            if whole.expired():
                answer.out_of_time()
            else:
                failure = self._too_slow(answer)
        except (EngineGone, RequestFailed) as error:
            failure = error
        except (httpx2.HTTPError, OSError, Unhealthy) as error:
            self._look.set()
            failure = self._gone(answer.stream, f"broke off: {type(error).__name__}")
        except UNREADABLE as error:
            logger.warning("server %s cannot be read: %s", self.address, error)
            failure = self._gone(answer.stream, "sends what cannot be read")
        except Exception as error:
            self._on_fault()
            failure = UnreadableOutput(started=answer.stream.started)
            failure.__cause__ = error
        finally:
            if not answer.ended:
                self._cancels.closed(answer.mark)
        if failure is not None:
            # As of now: the consumer may have begun while the connection was closed, or at the server before this one.
            failure.started = answer.stream.started
            answer.stream.fail(failure)

    def _too_slow(self, answer: StreamedAnswer) -> EngineGone | EngineOverloaded:
        if answer.begun:
            return self._gone(answer.stream, f"has said nothing for {_PAUSE:g} s")
        return EngineOverloaded("the model's server has not begun to answer in time", started=False)

    def _gone(self, stream: AnswerStream, what: str) -> EngineGone:
        return EngineGone(f"server {self.address} {what}", started=stream.started)

    async def _stream(
        self, http: httpx2.AsyncClient, answer: StreamedAnswer, request: Generate, body: dict[str, Any]
    ) -> None:
        """
        Raises:
            EngineGone, RequestFailed: the server refuses the request, or has not ended its answer.
            httpx2.HTTPError, msgspec.MsgspecError, ValueError, TimeoutError: see their names.
        """
        clock = asyncio.get_running_loop().time
        # How long the request waits in the server shows in its first token only.
        async with (
            asyncio.timeout(request.queue_timeout) as limit,
            http.stream(
                "POST",
                self._protocol.generate,
                content=msgspec.json.encode(body),
                headers=self._headers,
                extensions=self._extensions,
                timeout=httpx2.Timeout(None, connect=self._silence),
            ) as response,
        ):
            if response.status_code != 200:
                raise refusal(response.status_code, response.headers, await read_body(response), self.address)
            answer.accept()
            async for event in httpx2.EventSource(response):
                if event.data == _END:
                    self._end(answer)
                    # A connection that is left before the end of the reply could not be used again.
                    limit.reschedule(clock() + _LINGER)
                    continue
                if added := answer.take(event.data):
                    limit.reschedule(clock() + _PAUSE)
                    self._output_tokens += added
                if request.id not in self._live:
                    return  # it ended here, at a stop string or its limit: closing the connection ends it there
        if request.id in self._live:
            self._end(answer)

    def _end(self, answer: StreamedAnswer) -> None:
        """
        Raises:
            EngineGone: the server has not ended its answer.
        """
        if not answer.end():
            raise self._gone(answer.stream, "has not ended its answer")

    async def _run(self) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            served = False
            try:
                connection = await asyncio.to_thread(opened, self.address, self._access, self._protocol, self._silence)
                async with connection as http:
                    server = ServerPages(http, self._protocol, self._extensions)
                    try:
                        await self._introduce(server)
                        served, backoff = True, _FIRST_BACKOFF
                        while True:
                            await self._wait(self._protocol.look)
                            await server.check()
                            self.load = await self._measured(server)
                    finally:
                        await self._lose()
            except Exception as reason:  # whatever it was, the server is looked for again
                self._report(reason, served=served)
            await self._wait(backoff * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, _LONGEST_BACKOFF)

    def _report(self, reason: Exception, *, served: bool) -> None:
        """Log why the server cannot be used, once for each reason."""
        what = f"{type(reason).__name__}: {reason}"
        # That it is not up yet is no fault to report; anything unexpected is.
        quiet = not served and (isinstance(reason, httpx2.TransportError) or what == self._trouble)
        self._trouble = what
        logger.log(logging.DEBUG if quiet else logging.WARNING, "server %s cannot be used: %s", self.address, what)
        if not isinstance(reason, _EXPECTED):
            self._on_fault()

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until it is worth to look at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._look.wait()
        self._look.clear()

    async def _introduce(self, server: ServerPages) -> None:
        """Learn what the server serves, then take requests for it."""
        await server.check()
        # The next request on a connection that is being closed would be lost.
        self._headers = _STREAMED | ({"connection": "close"} if server.drops else {})
        found, info = await self._description(server)
        await self._adapters.introduce(server)
        self._http, self.info = server.http, info
        self._blocks = found.cache_tokens // BLOCK_SIZE
        self.load = await self._measured(server)
        self.on_ready()
        self._connected.set()

    async def _measured(self, server: ServerPages) -> Load:
        """Return the server's load; what its metrics do not say is what this gateway knows."""
        counts = {"running": self.live, "prompt_tokens": self._prompt_tokens, "output_tokens": self._output_tokens}
        found = await server.metrics()
        live = [answer.mark for answer, _ in self._live.values()]
        if lingering := await self._cancels.look(server, found, live):
            logger.warning("server %s goes on with answers whose connections were closed: %d", self.address, lingering)
        return load_of(
            counts | found,
            blocks=self._blocks,
            adapter_loads=self._adapters.loads,
            adapter_evictions=self._adapters.evictions,
            adapters=self._adapters.loaded,
        )

    async def _lose(self) -> None:
        """Fail every live request, because the server is gone."""
        self._connected.clear()
        self._adapters.lose()
        self._cancels.clear()
        self._http = self.load = None
        for answer, _ in [*self._live.values()]:
            answer.stream.fail(self._gone(answer.stream, "went away"))
        if self._ending:
            await asyncio.wait({*self._ending}, timeout=self._silence)
