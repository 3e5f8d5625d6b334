"""Finds what comes before the messages of a request, and what stands for messages in it: an earlier response, a
conversation, items that are named by id, compactions."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from gateway.errors import ApiError, Conflict, NotFound, PreviousResponseNotFound, Unavailable, missing_parameter
from gateway.protocol.input_items import item_messages
from gateway.protocol.messages import check_answers, join_calls
from gateway.protocol.requests import Message, TurnRequest
from gateway.turns.compaction import Compactions
from gateway.turns.conversations import Conversations, full
from gateway.turns.references import Find, answer_items, resolved
from gateway.turns.turn import Turn, TurnState

PATIENCE = 5.0
"""Seconds in which a turn that has ended must be added to its conversation."""
RETRY = 0.2
"""Seconds between two attempts at that, while Redis does not answer."""


class Context:
    """Makes requests whole, and adds turns that have ended to their conversations."""

    def __init__(self, conversations: Conversations, compactions: Compactions) -> None:
        self.conversations = conversations
        self.compactions = compactions

    async def complete(self, request: TurnRequest, tenant: str, find: Find) -> tuple[TurnRequest, tuple[Message, ...]]:
        """Return the request with all that its messages stand for, and the messages that come before them.

        Args:
            find: looks up a response that the caller may continue.

        Raises:
            ApiError: something that it names does not exist, is in progress or full, or an output answers no call.
        """
        messages = self.compactions.open(await resolved(request.messages, find), tenant)
        history = await self._history(request, tenant, find)
        if not (messages or history) and request.conversation is not None:
            raise missing_parameter("input")
        if history or messages is not request.messages:
            check_answers(messages, history)
            request = replace(request, messages=messages)
        return request, history

    async def keep(self, turn: Turn) -> ApiError | None:
        """Add a turn's messages and answer to its conversation; return the error if Redis does not answer.

        A conversation that has been deleted meanwhile stays so.
        """
        asked = item_messages(turn.id, turn.conversation)
        own = len(item_messages(turn.id, turn.request.messages))
        answered = {id: item for id, item in answer_items(turn).items() if item.content or item.calls}
        items = dict(list(asked.items())[len(asked) - own :]) | answered
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        await self.conversations.append(
                            turn.principal.tenant, turn.request.conversation or "", items, ended=True
                        )
                        return None
                    except NotFound:
                        return None
                    except Unavailable:
                        await asyncio.sleep(RETRY)
        except TimeoutError:
            return Unavailable("the answer could not be added to its conversation, which is as it was before")

    async def _history(self, request: TurnRequest, tenant: str, find: Find) -> tuple[Message, ...]:
        if request.conversation is not None:
            items = await self.conversations.items(tenant, request.conversation)
            if items.full:
                raise full()
            return self.compactions.open(join_calls(items.values()), tenant)
        if request.previous_response_id is not None:
            return _continued(await find(request.previous_response_id), request.previous_response_id)
        return ()


def _continued(previous: Turn | None, id: str) -> tuple[Message, ...]:
    """Return the conversation of an earlier response, with its answer.

    Raises:
        PreviousResponseNotFound: there is none, or it has failed.
        Conflict: it is still in progress.
    """
    if previous is None or previous.state in (TurnState.ADMITTING, TurnState.REFUSED):
        raise PreviousResponseNotFound(
            f"Previous response with id '{id[:80]}' not found. Send the whole conversation without "
            "previous_response_id.",
            param="previous_response_id",
        )
    if previous.log.finished is None:
        raise Conflict(
            "previous_response_id: this response is still in progress; wait for its last event or cancel it",
            param="previous_response_id",
            code="response_in_progress",
        )
    if previous.log.finished.reason == "error":
        raise PreviousResponseNotFound(
            f"Previous response with id '{id}' failed and cannot be continued; send its input again.",
            param="previous_response_id",
        )
    return previous.conversation + previous.answer
