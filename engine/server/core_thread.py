"""The thread that runs a core: messages come in through a queue, what comes out goes to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.cache.prefix_keys import pack_numbers
from engine.core import EngineCore, RequestError
from engine.outputs import failed
from engine.wire import Announce, Blocks, Cancel, Generate, Load, Output, Pin

logger = logging.getLogger("engine.server.host")

HUNG_SECONDS, HUNG_STEPS = 5.0, 20
"""Seconds, and multiples of its predicted time, after which a step counts as hung: the longer of both."""
LOOK_SECONDS = 0.25
"""Seconds between looks at the step that runs."""
_INTEGRITY_SECONDS = 10.0
"""Shortest time between two integrity checks, which are made when the engine becomes idle."""


class _Signal(enum.Enum):
    """Messages to the core's thread that no client sends."""

    WAKE = enum.auto()
    STOP = enum.auto()


class Following(NamedTuple):
    """A connection starts or stops following prefix blocks."""

    connection: str
    on: bool


Message = Generate | Cancel | Announce | Pin | Following | _Signal


class CoreThread:
    """Runs one core. Its methods are for the event loop, in which `publish` and `send_blocks` are called."""

    def __init__(
        self,
        core: EngineCore,
        prepare: Callable[[], None],
        publish: Callable[[Sequence[Output], Load], None],
        send_blocks: Callable[[Sequence[str], Blocks], None],
    ) -> None:
        """
        Args:
            prepare: called in the thread before anything else.
            publish: takes the outputs of a step, and the load after it.
            send_blocks: takes news of prefix blocks, and the connections that follow them.
        """
        self._core = core
        self._prepare = prepare
        self._publish = publish
        self._send_blocks = send_blocks
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        core.wake = lambda: self._inbox.put(_Signal.WAKE)
        self._followers: set[str] = set()
        """Connections that are told of prefix blocks; used by the thread only."""
        self._steps = 0
        self._step: int | None = None
        """Number of the step that runs; None between steps."""
        self._thread: threading.Thread | None = None
        self.failed = asyncio.Event()
        """Set when the core has failed."""
        self.failure: BaseException | None = None
        """Why it has failed."""

    async def start(self) -> None:
        """Start the thread, and return when it is prepared.

        Raises:
            Exception: what `prepare` raised.
        """
        loop = asyncio.get_running_loop()
        prepared: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loop, prepared), name="engine core")
        self._thread.start()
        await prepared

    async def stop(self) -> None:
        """End the thread after the step that it is in. Idempotent."""
        if self._thread is not None:
            self._inbox.put(_Signal.STOP)
            await asyncio.to_thread(self._thread.join)

    def put(self, message: Message) -> None:
        """Give the core a message before its next step."""
        self._inbox.put(message)

    async def wait_hung(self) -> None:
        """Return when a step takes far longer than predicted, because a device or a library hangs.

        Looks are counted, not seconds, so that a process that was stopped for a while does not count as hung.
        """
        seen, looks = None, 0
        while looks * LOOK_SECONDS <= max(HUNG_SECONDS, HUNG_STEPS * self._core.predicted_step):
            await asyncio.sleep(LOOK_SECONDS)
            looks = looks + 1 if self._step is not None and self._step == seen else 0
            seen = self._step

    def _run(self, loop: asyncio.AbstractEventLoop, prepared: asyncio.Future[None]) -> None:
        error: BaseException | None = None
        try:
            self._prepare()
        except BaseException as raised:
            error = raised
        loop.call_soon_threadsafe(_settle, prepared, error)
        if error is not None:
            return
        try:
            self._step_until_stopped(loop)
        except BaseException as error:
            # The core's state cannot be trusted any more: a supervisor has to start a fresh engine.
            logger.critical("the engine's core failed", exc_info=True)
            self.failure = error
            loop.call_soon_threadsafe(self.failed.set)

    def _step_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        core = self._core
        checked = float("-inf")
        while True:
            if core.idle and loop.time() - checked > _INTEGRITY_SECONDS:
                core.check_integrity()
                checked = loop.time()
            outputs = []
            for message in _take_all(self._inbox, core.patience):
                if message is _Signal.STOP:
                    return
                if isinstance(message, Following):
                    self._follow(message, loop)
                    continue
                try:
                    _hand_over(core, message)
                except RequestError as error:
                    assert isinstance(message, Generate)
                    outputs.append(failed(message.id, error))
            self._steps += 1
            self._step = self._steps
            outputs += core.step()
            self._step = None
            if self._followers:
                self._tell_blocks(loop)
            loop.call_soon_threadsafe(self._publish, outputs, core.load())

    def _follow(self, message: Following, loop: asyncio.AbstractEventLoop) -> None:
        if message.on:
            if not self._followers:
                self._core.follow_blocks(True)
            self._followers.add(message.connection)
            blocks = Blocks(stored=pack_numbers(self._core.held_blocks()), cleared=True)
            loop.call_soon_threadsafe(self._send_blocks, (message.connection,), blocks)
        else:
            self._followers.discard(message.connection)
            if not self._followers:
                self._core.follow_blocks(False)

    def _tell_blocks(self, loop: asyncio.AbstractEventLoop) -> None:
        changes = self._core.take_block_changes()
        if changes:
            stored, removed = ([key for key, held in changes.items() if held is which] for which in (True, False))
            blocks = Blocks(stored=pack_numbers(stored), removed=pack_numbers(removed))
            loop.call_soon_threadsafe(self._send_blocks, tuple(self._followers), blocks)


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():  # no client waits any more
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _take_all(inbox: queue.SimpleQueue[Message], wait: float | None) -> list[Message]:
    """Return everything in the inbox, after waiting `wait` seconds, or without end if None, for something to come."""
    messages = []
    with contextlib.suppress(queue.Empty):
        messages.append(inbox.get(wait != 0, wait))
        while True:
            messages.append(inbox.get_nowait())
    return messages


def _hand_over(core: EngineCore, message: Message) -> None:
    """
    Raises:
        RequestError: the request that the message brings is refused.
    """
    if isinstance(message, Generate):
        core.add(message)
    elif isinstance(message, Cancel):
        core.cancel(message.id)
    elif isinstance(message, Announce):
        core.announce(message.adapter)
    elif isinstance(message, Pin):
        core.pin(message.adapters)
