"""All turns of one gateway: starts, finds, continues, drains and forgets them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from redis.asyncio import Redis

from engine.client.conversation import Prompt
from gateway.access.identity import Principal
from gateway.background import BackgroundTasks
from gateway.config.settings import TurnSettings
from gateway.errors import ApiError, Conflict, NotFound, Unavailable
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.stream import Finished
from gateway.storage.presence import Presence, new_id
from gateway.turns.context import Context
from gateway.turns.creations import Creations
from gateway.turns.ids import ResponseIds
from gateway.turns.references import resolved
from gateway.turns.remote import RemoteTurns
from gateway.turns.turn import Turn, TurnState, Viewer

logger = logging.getLogger("roundhouse.turns")

MAX_RETAINED_CHARACTERS = 256 * 1024 * 1024
"""Most characters of all finished turns together, questions included; the oldest are forgotten first."""
QUEUED = 1.0
"""Seconds after which a background turn that is neither routed nor refused is shown as queued."""


class TurnPipeline(Protocol):
    """The interface of what carries a turn from request to answer: `gateway.pipeline.run.Pipeline` in production."""

    async def run(self, turn: Turn) -> None:
        """Run the turn, giving its events to `turn.append` in the order of `gateway.protocol.stream`.

        Raises:
            ApiError: the turn was refused; only before it was routed.
        """
        ...

    async def count(self, turn: Turn) -> dict[str, Prompt]:
        """Return the prompt by pool name, without running the turn.

        Raises:
            ApiError: the turn would be refused.
        """
        ...

    async def check(self, turn: Turn) -> None:
        """Apply the safety rules to the turn's messages, without running it.

        Raises:
            ApiError: a rule forbids them.
        """
        ...


class Turns:
    """Running turns, and finished ones for as long as they can be resumed or continued from memory."""

    def __init__(
        self, pipeline: TurnPipeline, settings: TurnSettings, context: Context, ids: ResponseIds | None = None
    ) -> None:
        """Args: ids: makes this process's; None: those of a gateway that knows of no other."""
        self._pipeline = pipeline
        self._settings = settings
        self.context = context
        self.ids = ids or ResponseIds(secrets.token_bytes(32), new_id())
        self._turns: dict[str, Turn] = {}
        self._begun: dict[str, asyncio.Event] = {}
        """Events by id of a turn that may begin; set once it has begun, or will not."""
        self._tasks = BackgroundTasks("turns")
        self._retained: OrderedDict[str, asyncio.TimerHandle] = OrderedDict()
        self._retained_characters = 0
        self._remote: RemoteTurns | None = None
        self._creations: Creations | None = None
        self.draining = False
        """Whether new turns are refused."""

    async def share(self, redis: Redis, reader: Redis, presence: Presence, secret: bytes) -> None:
        """Share turns with the gateways that use the same Redis, until `aclose`; for `reader` see `Mailbox`."""
        self._creations = Creations(redis, secret, self._settings.store_ttl)
        self._remote = RemoteTurns(redis, reader, presence, secret, self._settings, self)
        await self._remote.start()

    def configure(self, pipeline: TurnPipeline, settings: TurnSettings) -> None:
        """Use a new configuration for new turns; running ones stay in the pipeline they began in."""
        self._pipeline = pipeline
        self._settings = settings

    @property
    def running(self) -> int:
        """Number of turns that have not ended, including those being admitted."""
        return len(self._tasks)

    @property
    def unfinished(self) -> Iterable[Turn]:
        """Turns that have not ended."""
        return [turn for turn in self._turns.values() if not turn.finished]

    @property
    def retained(self) -> int:
        """Number of finished turns that are kept in memory."""
        return len(self._retained)

    @property
    def viewers(self) -> int:
        return sum(turn.viewers for turn in self._turns.values())

    @property
    def shared(self) -> dict[str, int]:
        """See `RemoteTurns.shared`."""
        return self._remote.shared if self._remote else {"followed": 0, "feeds": 0, "unstored": 0}

    async def start(
        self,
        request: TurnRequest,
        principal: Principal,
        *,
        wake: Callable[[], None] | None = None,
        orphan_timeout: float | None = None,
        own: Mapping[str, Turn] | None = None,
        idempotency_key: str | None = None,
    ) -> Viewer:
        """Start a turn and watch it from its first entry. Returns once it has been admitted and routed; one in
        the background a second later at most: if it is refused after that, it fails.

        Args:
            wake: see `Viewer.wake`.
            orphan_timeout: seconds the turn runs on without a viewer, instead of the configured ones.
            own: turns of the caller's connection, which it may continue even if they are not stored.
            idempotency_key: the same key and request of the same caller give the same turn.

        Raises:
            ApiError: the turn was refused: unknown model or previous response, too long, over a limit, no engine, ...
        """
        if idempotency_key is None or self._creations is None:
            id = self.ids.new(principal.tenant)
            return await self._start(id, request, principal, wake, orphan_timeout, own or {})
        claim = self._creations.claim(principal, idempotency_key, request)
        while True:
            id = self.ids.new(principal.tenant)
            with self._coming(id):
                existing = await self._creations.take(claim, id)
                if existing is None:
                    try:
                        return await self._start(id, request, principal, wake, None, own or {})
                    except ApiError:
                        await self._creations.release(claim, id)
                        raise
            turn = await self._find(existing, principal)
            if turn is not None:
                return await _admitted(turn.watch(wake=wake))
            await self._creations.release(claim, existing)

    async def count(self, request: TurnRequest, principal: Principal) -> dict[str, Prompt]:
        """Return a request's prompt by the name of each pool that can be asked it; starts no turn.

        Raises:
            ApiError: a turn would be refused.
        """
        self._check_draining()
        request, history = await self.context.complete(
            request, principal.tenant, partial(self._find, principal=principal)
        )
        return await self._pipeline.count(Turn(self.ids.new(principal.tenant), principal, request, history, 0))

    async def checked(self, messages: tuple[Message, ...], principal: Principal, id: str) -> tuple[Message, ...]:
        """Return messages that a client keeps in the conversation `id` for later turns, which check only what is new:
        with the items that they name, and as the safety rules leave them.

        Raises:
            ApiError: an item does not exist, or a rule forbids one.
        """
        messages = await resolved(messages, partial(self._find, principal=principal))
        turn = Turn(id, principal, TurnRequest(model="auto", messages=messages), (), 0)
        await self._pipeline.check(turn)
        return turn.request.messages

    def get(self, response_id: str) -> Turn | None:
        """Return the turn with this id, if it runs or is kept in this process."""
        return self._turns.get(response_id)

    async def awaited(self, response_id: str) -> Turn | None:
        """Return the turn with this id like `get`, but wait until it is known whether it begins."""
        begun = self._begun.get(response_id)
        if begun is not None and response_id not in self._turns:
            await begun.wait()
        return self._turns.get(response_id)

    async def look(self, response_id: str, principal: Principal) -> Turn | None:
        """Return this tenant's turn with this id wherever it runs, also one that is being admitted or was refused.

        Raises:
            ApiError: it was refused elsewhere, or Redis or its gateway does not answer.
        """
        return await self._find(response_id, principal)

    async def find(self, response_id: str, principal: Principal) -> Turn:
        """Return the running or kept turn of this tenant, wherever it runs.

        Raises:
            NotFound: there is none, it is no longer kept, or it is another tenant's.
            Unavailable: it may be elsewhere, but Redis or its gateway does not answer.
        """
        turn = await self._find(response_id, principal, failed=True)
        if turn is None or turn.state in (TurnState.ADMITTING, TurnState.REFUSED):
            raise NotFound(
                f"response_id: no response {response_id[:80]!r}; it is unknown, deleted, or no longer kept",
                param="response_id",
                code="response_not_found",
            )
        return turn

    async def delete(self, response_id: str, principal: Principal) -> None:
        """Forget a response that has ended, everywhere.

        Raises:
            NotFound: see `find`.
            Conflict: it is still in progress.
            Unavailable: Redis does not answer.
        """
        turn = await self.find(response_id, principal)
        if not turn.finished:
            raise Conflict(
                "response_id: this response is still in progress; cancel it first",
                param="response_id",
                code="response_in_progress",
            )
        if self._remote is not None:
            await self._remote.delete(response_id, principal)
        self.forget(response_id)

    def forget(self, response_id: str) -> None:
        """Drop a turn that has ended from memory."""
        if response_id in self._retained:
            self._retained.pop(response_id).cancel()
            self._retained_characters -= _characters(self._turns.pop(response_id))

    async def drain(self, grace: float) -> None:
        """Refuse new turns, let running ones end, cancel those that take longer than `grace` seconds."""
        self.draining = True
        await self._tasks.wait(grace)
        for turn in list(self._turns.values()):
            turn.cancel()

    async def aclose(self) -> None:
        """Cancel what still runs and forget everything."""
        await self.drain(0)
        await self._tasks.aclose(1.0)
        if self._remote is not None:
            await self._remote.aclose()
        while self._retained:
            self.forget(next(iter(self._retained)))

    async def _start(
        self,
        id: str,
        request: TurnRequest,
        principal: Principal,
        wake: Callable[[], None] | None,
        orphan_timeout: float | None,
        own: Mapping[str, Turn],
    ) -> Viewer:
        self._check_draining()
        request, history = await self.context.complete(request, principal.tenant, partial(self._seen, principal, own))
        self._check_draining()  # it may have taken a while
        if orphan_timeout is None and not request.background:
            orphan_timeout = self._settings.orphan_timeout
        turn = Turn(id, principal, request, history, orphan_timeout)
        if request.conversation is not None and request.generate:
            turn.on_answered = partial(self.context.keep, turn)
        self._turns[turn.id] = turn
        if id in self._begun:
            self._begun[id].set()
        self._tasks.begin(self._run(turn))
        return await _admitted(turn.watch(wake=wake))

    @contextlib.contextmanager
    def _coming(self, id: str) -> Iterator[None]:
        """Announce that a turn with this id may begin: callers who know its id wait until that is decided."""
        begun = self._begun[id] = asyncio.Event()
        try:
            yield
        finally:
            del self._begun[id]
            begun.set()

    def _check_draining(self) -> None:
        if self.draining:
            raise Unavailable("the server is restarting; connect again", code="draining", headers={"retry-after": "1"})

    async def _find(self, response_id: str, principal: Principal, *, failed: bool = False) -> Turn | None:
        """Return a turn wherever it runs; for `failed` see `RemoteTurns.find`."""
        turn = await self.awaited(response_id)
        if turn is not None:
            return turn if turn.principal.tenant == principal.tenant else None
        return await self._remote.find(response_id, principal, failed=failed) if self._remote else None

    async def _seen(self, principal: Principal, own: Mapping[str, Turn], id: str) -> Turn | None:
        """Return a turn that the caller may continue."""
        return own.get(id) or await self._find(id, principal)

    async def _run(self, turn: Turn) -> None:
        try:
            await self._pipeline.run(turn)
            if not turn.finished:
                raise RuntimeError("the pipeline ended before the turn did")
        except ApiError as error:
            self._end(turn, error)
        except Exception:
            logger.exception("turn failed", extra={"response_id": turn.id})
            self._end(turn, ApiError("the server failed while it worked on this request"))
        except asyncio.CancelledError:
            self._end(turn, Unavailable("the server is shutting down", code="draining"))
            raise
        finally:
            self._retain(turn)

    def _end(self, turn: Turn, error: ApiError) -> None:
        if turn.state is TurnState.ADMITTING:
            turn.refuse(error)
        elif turn.state is TurnState.RUNNING:
            turn.append(Finished("error", turn.delivered(), error, turn.cost))

    def _retain(self, turn: Turn) -> None:
        if not turn.finished:
            del self._turns[turn.id]
            # Nobody may be waiting any more: a refusal nobody asks for is no unhandled error.
            turn.admitted.exception()
            return
        if self._remote is not None:
            self._remote.ended(turn)
        # An answer that is not to be stored is kept just long enough for a cut connection to fetch its end.
        seconds = self._settings.retention if turn.request.store else self._settings.orphan_timeout
        loop = asyncio.get_running_loop()
        self._retained[turn.id] = loop.call_later(seconds, self.forget, turn.id)
        self._retained_characters += _characters(turn)
        while len(self._retained) > self._settings.max_retained or self._retained_characters > MAX_RETAINED_CHARACTERS:
            self.forget(next(iter(self._retained)))


async def _admitted(viewer: Viewer) -> Viewer:
    """Return the viewer once its turn has been admitted; it is closed if that is refused, or nobody waits any more."""
    turn = viewer.turn
    try:
        if turn.request.background:
            await asyncio.wait([turn.admitted], timeout=QUEUED)
            if not turn.admitted.done():
                turn.begin()
        await asyncio.shield(turn.admitted)
    except BaseException:
        viewer.close()
        raise
    return viewer


def _characters(turn: Turn) -> int:
    return turn.log.characters + turn.request.extent + sum(message.size for message in turn.conversation)
