"""The gateway's side of an engine: one connection, many generations, text in and out. asyncio, no torch.

    async with EngineClient("ws://127.0.0.1:9001") as engine:
        await engine.wait_connected()
        prompt = text.encode_chat(messages)
        async with engine.generate(prompt, SamplingParams(max_tokens=64), text=text, stop=["END"]) as generation:
            async for delta in generation:
                print(delta.text, end="")
        print(generation.result.finish_reason, generation.result.usage)

Every generation is fed as frames arrive, whether or not its consumer keeps up: deltas that the consumer has not taken
are merged into one pending delta, so that memory is bounded by the answer's length and stop strings end a request in
engine at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Collection, Sequence
from typing import Self, Unpack

import msgspec
from websockets.exceptions import WebSocketException

from engine.client.answer_stream import AnswerStream
from engine.client.conversation import ChatPrompt
from engine.client.generation import EngineGone, Generation, RequestInvalid, UnreadableOutput
from engine.client.link import Link
from engine.client.upstream import GenerateOptions
from engine.text.processor import TextProcessor
from engine.tls import Certificate, client_context
from engine.wire import (
    MAX_FRAME_BYTES,
    MAX_PINNED,
    MAX_STEP_BYTES,
    MOVES_SINCE,
    PROTOCOL_MIN,
    PROTOCOL_VERSION,
    Announce,
    Blocks,
    Cancel,
    Follow,
    Generate,
    Hello,
    Load,
    ModelInfo,
    Output,
    Pin,
    Ready,
    SamplingParams,
    ServerFrame,
    Step,
    decode_server_frame,
    encode,
)

logger = logging.getLogger(__name__)

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.05, 5.0


class ProtocolError(Exception):
    """The other end speaks another version of the engine's protocol, or none."""


_EXPECTED = (OSError, WebSocketException, ProtocolError, ValueError)
"""Exceptions that end a connection without a fault of this client's."""


class EngineClient:
    """Talks to one engine. Keeps a connection to it and opens a new one, with backoff, whenever it is lost.

    `address` is `ws://host:port` or `unix:///path/to/socket`. An engine sends a frame every second; one that is silent
    for `silence` seconds, or up to twice as long, counts as dead. For `wss://` addresses `tls` says who we are and whom
    to trust; its files are read with every connection, so that certificates can be renewed. Without it the machine's
    authorities are trusted. The engine's certificate must be for `server_name`, or else for the host of the address.
    `on_fault` is called while an exception that nobody expected is being handled; the client then connects anew.
    """

    def __init__(
        self,
        address: str,
        *,
        silence: float = 10.0,
        tls: Certificate | None = None,
        server_name: str | None = None,
        on_fault: Callable[[], None] = lambda: logger.exception("a fault of ours"),
    ) -> None:
        if not address.startswith(("ws://", "wss://", "unix://")):
            raise ValueError(f"engine address {address!r}: use ws://host:port or unix:///path/to/socket")
        self.address = address
        self.id = ""
        """Id of the process that is behind the address, or was when it was connected; empty if it told none."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when the engine has introduced itself."""
        self.info: ModelInfo | None = None
        """Description of the model behind the engine; known from the first connection on and kept while it is away."""
        self.load: Load | None = None
        """The engine's latest snapshot, at most a second old while connected; None while it is not."""
        self._silence = silence
        self._tls = tls
        self.server_name = server_name
        self._on_fault = on_fault
        self._connected, self._retry = asyncio.Event(), asyncio.Event()
        self._live: dict[str, Generation] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._link: Link | None = None
        self._protocol = 0
        self.lingered = 0
        self.tells_blocks = False
        """Whether the engine can tell which prefix blocks it holds; known once it is connected."""
        self._on_blocks: Callable[[Blocks], None] | None = None
        self._pinned: list[str] = []
        self._next_id = 0
        self._frames = 0
        """Number of frames received so far."""
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def resumes(self) -> bool:
        """Whether the engine is connected, stays, and can go on with answers that other engines began."""
        return self.connected and self._protocol >= MOVES_SINCE and not self.leaving

    @property
    def leaving(self) -> bool:
        """Whether the engine is going away and refuses new requests."""
        return self.load is not None and self.load.draining

    @property
    def live(self) -> int:
        """Number of generations that have not ended yet."""
        return len(self._live)

    async def idle(self) -> None:
        """Wait until no generation is live."""
        await self._idle.wait()

    async def start(self) -> None:
        """Begin to connect; returns at once. Use as an async context manager instead where that fits."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"engine {self.address}")

    async def aclose(self) -> None:
        """Close the connection; live generations raise `EngineGone`."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def wait_connected(self) -> None:
        """Wait until the engine answers; from then on `info` is known. Combine with `asyncio.timeout`."""
        await self._connected.wait()

    def retry(self) -> None:
        """Connect at once, if the connection is lost, instead of after a pause."""
        self._retry.set()

    def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        text: TextProcessor | None = None,
        stop: Sequence[str] = (),
        shown: Collection[int] = (),
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Start a request and return its generation; iterate over that for deltas.

        `text` turns tokens into text and is needed for `stop` strings; without it deltas carry token ids only.
        `shown` are special tokens that become text like any other, because they mean something to the caller. The
        `options` are the other fields of `engine.wire.Generate`.

        Raises:
            EngineGone: the engine is not connected (`started` is false).
            RequestInvalid: the prompt is too long for one frame.
            ValueError: `stop` without `text`, or an empty stop string.
        """
        if not self.connected:
            raise EngineGone(f"engine {self.address} is not connected", started=False)
        self._next_id += 1
        id = str(self._next_id)
        request = Generate(id, list(prompt_ids), sampling, **options)
        generation = Generation(request, self._cancel, text=text, stop=stop, shown=shown)
        self._begin(generation, request)
        return generation

    def converse(self, conversation: ChatPrompt, *_: object, **__: object) -> AnswerStream:
        """Refuse: an engine never sees text."""
        raise RequestInvalid("prompt: engines take token ids", started=False, field="prompt")

    def resume(self, generation: Generation) -> None:
        """Go on with a generation that another engine has lost, at its next token; its consumer iterates on.

        The engine must serve the same model in the same bits, on the same kind of device, and have room for the rest.

        Raises:
            EngineGone: this engine is not connected, or cannot go on with what another one began.
            RequestInvalid: the answer is too long for one frame.
        """
        if not self.resumes:
            raise EngineGone(f"engine {self.address} cannot take an answer up", started=True)
        self._next_id += 1
        id = str(self._next_id)
        self._begin(generation, generation.rest(id))
        generation.resume(id, self._cancel)

    def hand_on(self) -> int:
        """End the answers that were begun as if the engine went away, so that others go on; returns how many."""
        going = [each for each in self._live.values() if each.started]
        for generation in going:
            generation.fail(EngineGone(f"engine {self.address} is drained", started=True, leaving=True))
        return len(going)

    def _begin(self, generation: Generation, request: Generate) -> None:
        frame = encode(request)
        if len(frame) > MAX_FRAME_BYTES:  # sent anyway, it would cost every request of this connection
            message = "prompt: too long for one message; shorten it"
            raise RequestInvalid(message, started=generation.started, field="prompt")
        self._live[request.id] = generation
        self._idle.clear()
        self._send(frame)

    def announce(self, adapter: str) -> None:
        """Announce a request for this adapter version, so that the engine can begin to load it."""
        if self.connected:
            self._send(encode(Announce(adapter)))

    def pin(self, adapters: Sequence[str]) -> None:
        """Keep these adapter versions loaded in the engine, also after reconnections; replaces the last list."""
        pinned = list(adapters)[:MAX_PINNED]
        if pinned != self._pinned:
            self._pinned = pinned
            if self.connected:
                self._send(encode(Pin(pinned)))

    def follow_blocks(self, listener: Callable[[Blocks], None] | None) -> None:
        """Pass the engine's `Blocks` frames to `listener`, now and after every reconnection; None ends that.

        When the connection is lost, `listener` is told that nothing is known any more.
        """
        followed, self._on_blocks = self._on_blocks is not None, listener
        if self.connected and self.tells_blocks and (listener is not None or followed):
            self._send(encode(Follow(listener is not None)))

    def _cancel(self, id: str) -> None:
        """Forget a generation that needs no more output; the engine ignores ids that have ended there."""
        generation = self._live.pop(id, None)
        if not self._live:
            self._idle.set()
        if generation is not None and not generation.ended_in_engine:
            self._send(encode(Cancel(id)))

    def _send(self, frame: bytes) -> None:
        if self._link is not None:
            self._link.send(frame)

    async def _run(self) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            try:
                link = self._link = Link(self.address, self._receive, max_size=MAX_STEP_BYTES)
                async with asyncio.timeout(self._silence):  # TimeoutError is an OSError
                    await link.connect(None if self._tls is None else client_context(self._tls), self.server_name)
                await self._watch(link)
            except Exception as reason:  # whatever it was ends this connection, never the next one
                # That the engine is not up yet is no fault to report; anything unexpected is.
                quiet = isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError) and not self.connected
                level = logging.DEBUG if quiet else logging.WARNING
                name = type(reason).__name__
                logger.log(level, "engine %s cannot be used: %s: %s", self.address, name, reason)
                if not isinstance(reason, _EXPECTED):
                    self._on_fault()
                if self.connected:
                    backoff = _FIRST_BACKOFF
            finally:
                await self._lose()
            # Spread out, so that many gateways do not meet a restarted engine in the same instant.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff * random.uniform(0.5, 1.0)):
                    await self._retry.wait()
            self._retry.clear()
            backoff = min(2 * backoff, _LONGEST_BACKOFF)

    def _receive(self, message: bytes) -> None:
        frame = decode_server_frame(message)
        self._frames += 1
        if not self.connected:
            self._handshake(frame)
            return
        if isinstance(frame, Blocks):
            self._tell_blocks(frame)
            return
        if not isinstance(frame, Step):
            raise ProtocolError("the engine introduced itself twice")
        adapters = self.load.adapters if self.load is not None else None
        self.load = frame.load
        if frame.load.adapters is None and adapters is not None:
            self.load = msgspec.structs.replace(frame.load, adapters=adapters)
        for output in frame.outputs:
            generation = self._live.get(output.id)
            if generation is not None:
                self._feed(generation, output)

    def _feed(self, generation: Generation, output: Output) -> None:
        """Feed one generation; whatever goes wrong with its text ends that generation only."""
        try:
            generation.feed(output)
        except Exception as error:
            logger.exception("engine %s: the answer to request %s cannot be read", self.address, generation.id)
            failure = UnreadableOutput(started=generation.started)
            failure.__cause__ = error
            generation.fail(failure)

    def _tell_blocks(self, blocks: Blocks) -> None:
        if self._on_blocks is not None:
            try:
                self._on_blocks(blocks)
            except Exception:
                logger.warning("engine %s: whoever follows its prefix blocks has failed", self.address)
                self._on_fault()

    def _handshake(self, frame: ServerFrame) -> None:
        if not isinstance(frame, Ready):
            raise ProtocolError("the engine did not introduce itself")
        oldest = frame.protocol if frame.protocol_min is None else frame.protocol_min
        if not (oldest <= PROTOCOL_VERSION and frame.protocol >= PROTOCOL_MIN):
            raise ProtocolError(
                f"the engine speaks versions {oldest} to {frame.protocol}, this client {PROTOCOL_MIN} to "
                f"{PROTOCOL_VERSION}; update the older one"
            )
        self._protocol = min(frame.protocol, PROTOCOL_VERSION)
        if self._protocol >= MOVES_SINCE:
            self._send(encode(Hello(PROTOCOL_VERSION)))
        self.id, self.info, self.load = frame.id, frame.model, frame.load
        self.on_ready()
        self.tells_blocks = frame.tells_blocks
        if self._on_blocks is not None and self.tells_blocks:
            self._send(encode(Follow(True)))
        if self._pinned:
            self._send(encode(Pin(self._pinned)))
        self._connected.set()

    async def _watch(self, link: Link) -> None:
        """Return the reason when the connection has ended; end the connection to a silent engine.

        The engine's heartbeat replaces pings: it also shows that the engine's own loop is alive. A timeout for every
        frame would cost as much as the frame.
        """
        while True:
            heard = self._frames
            done, _ = await asyncio.wait([link.closed], timeout=self._silence)
            if done:
                link.closed.result()
            if self._frames == heard:
                raise TimeoutError(f"silent for {self._silence:g} s")

    async def _lose(self) -> None:
        """Fail every live request, because the connection is gone."""
        link, self._link = self._link, None
        self._connected.clear()
        self.load = None
        lost, self._live = self._live, {}
        self._idle.set()
        self._tell_blocks(Blocks(cleared=True))
        for generation in lost.values():
            generation.fail(EngineGone(f"engine {self.address} went away", started=generation.started))
        if link is not None:
            try:
                await link.aclose()
            except Exception:
                logger.warning("engine %s: its connection could not be closed", self.address)
                self._on_fault()
