"""`/v1/chats`: the chat page's conversations, of users whose tenant keeps them on the server. OpenAI has no such
endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.access.identity import Principal
from gateway.errors import Conflict, Forbidden, NotFound, PreconditionRequired, invalid_value
from gateway.http.exchange import JsonResponse, read_parameters, revision_read
from gateway.protocol.chats import ChatEntry, ChatList, ChatSearch, ChatsFound, ChatsPage, ChatWrite, DeletedChat
from gateway.protocol.requests import converted
from gateway.services import Gateway, gateway_of
from gateway.turns.chats import Owner

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_AT_ONCE = 16
"""Responses that are deleted at once."""


async def list_chats(request: Request) -> Response:
    """`GET /v1/chats`: the newest first."""
    gateway, _, owner = await _owner(request)
    asked = converted(dict(request.query_params), ChatsPage, strict=False)
    entries = await gateway.chats.entries(owner)
    first = 0
    if asked.after is not None:
        ids = [entry.id for entry in entries]
        if asked.after not in ids:
            raise invalid_value("after", "names none of your conversations")
        first = ids.index(asked.after) + 1
    page = entries[first : first + asked.limit]
    return JsonResponse(ChatList(page, has_more=first + asked.limit < len(entries)))


async def search(request: Request) -> Response:
    """`POST /v1/chats/search`: by a body, as queries are logged on the way."""
    gateway, principal, owner = await _owner(request)
    asked = converted(await read_parameters(request, principal, ChatSearch), ChatSearch)
    found, complete = await gateway.chats.search(owner, asked.query.split())
    return JsonResponse(ChatsFound(found, complete))


async def read(request: Request) -> Response:
    """`GET /v1/chats/{chat_id}`."""
    gateway, _, owner = await _owner(request)
    chat = await gateway.chats.read(owner, request.path_params["chat_id"])
    return JsonResponse(chat, headers={"etag": f'"{chat.revision}"'})


async def write(request: Request) -> Response:
    """`POST /v1/chats/{chat_id}`: makes it (`If-None-Match: *`), or changes what was read (`If-Match`)."""
    gateway, principal, owner = await _owner(request)
    id = request.path_params["chat_id"]
    if not _ID.fullmatch(id):
        raise invalid_value("chat_id", "may have 64 letters, digits, _ and -")
    given = converted(await read_parameters(request, principal, ChatWrite), ChatWrite)
    revision = await gateway.chats.write(owner, id, _revision_read(request), given, gateway.settings.chat)
    entry = ChatEntry(id, given.title, given.updated_ms, given.pinned, given.folder, revision)
    return JsonResponse(entry, headers={"etag": f'"{revision}"'})


async def delete(request: Request) -> Response:
    """`DELETE /v1/chats/{chat_id}`: forgets its responses too."""
    gateway, principal, owner = await _owner(request)
    id = request.path_params["chat_id"]
    responses = await gateway.chats.responses(owner, id)
    for start in range(0, len(responses), _AT_ONCE):
        some = responses[start : start + _AT_ONCE]
        await asyncio.gather(*(_forget(gateway, principal, response) for response in some))
    # Last: while a response cannot be deleted, the conversation stays, and deleting it can be repeated.
    await gateway.chats.delete(owner, id)
    return JsonResponse(DeletedChat(id))


_PATH = "/v1/chats/{chat_id}"

routes: list[BaseRoute] = [
    Route("/v1/chats", list_chats, methods=["GET"]),
    Route("/v1/chats/search", search, methods=["POST"]),
    Route(_PATH, read, methods=["GET"]),
    Route(_PATH, write, methods=["POST"]),
    Route(_PATH, delete, methods=["DELETE"]),
]


async def _owner(request: Request) -> tuple[Gateway, Principal, Owner]:
    """Return the gateway, who asks, and whose conversations these are.

    Raises:
        Forbidden: nobody knows which user asks, or the tenant does not keep conversations here.
        RateLimited: the user asks too often.
    """
    gateway = gateway_of(request)
    principal = await gateway.authenticate(request, "chat")
    user = user_of(principal)
    if user is None:
        raise Forbidden(
            "a key without a user keeps no conversations here, as several people may hold it; sign in, or use a key "
            "that has a user",
            code="user_required",
        )
    if gateway.settings.chat.history_of(principal.tenant, has_user=True) != "server":
        raise Forbidden("this tenant's conversations are not kept on the server", code="chats_not_kept")
    return gateway, principal, await _counted(gateway, principal, user)


async def counted_owner(gateway: Gateway, principal: Principal) -> Owner:
    """Count a request; return whose it is: a user's, or that of a key without one.

    Raises:
        RateLimited: too often.
    """
    name = user_of(principal) or f"key {principal.counts_as or principal.key}"
    return await _counted(gateway, principal, name)


async def _counted(gateway: Gateway, principal: Principal, name: str) -> Owner:
    owner = gateway.chats.owner(principal.tenant, name)
    await gateway.chats.admit(owner)
    return owner


def user_of(principal: Principal) -> str | None:
    """Return a name of the user, which is the same for keys and for tokens if the directory knows both; None: nobody
    knows which user asks."""
    if principal.user_id is not None:
        return f"user {principal.user_id}"
    return None if principal.user is None else f"{principal.key} {principal.user}"


async def _forget(gateway: Gateway, principal: Principal, response: str) -> None:
    """Delete a response and the comment on it, if they are still kept; one that is being written is ended first."""
    with contextlib.suppress(NotFound, Conflict):
        turn = await gateway.turns.find(response, principal)
        if not turn.finished:
            turn.cancel()
            with turn.watch() as viewer:
                async for _ in viewer.entries():
                    pass
        await gateway.turns.delete(response, principal)
    await gateway.comments.remove(principal.tenant, response)


def _revision_read(request: Request) -> int:
    """Return the revision that a change is meant for; 0: there is to be none.

    Raises:
        PreconditionRequired: the request does not say it.
    """
    read = revision_read(request)
    if read is None and request.headers.get("if-none-match") != "*":
        raise PreconditionRequired(
            "changing a conversation needs the header If-Match with the ETag that reading it gave, or If-None-Match: * "
            "for a new one, so that nobody's change is overwritten unseen",
            param="If-Match",
        )
    return read or 0
