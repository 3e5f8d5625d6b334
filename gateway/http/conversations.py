"""`/v1/conversations`: what turns with a `conversation` continue, and add to. See also `gateway.turns.context`."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.access.identity import Principal
from gateway.http.exchange import JsonResponse, read_parameters
from gateway.protocol.conversation_create import ConversationCreate, ConversationUpdate, ItemsCreate, parse_items
from gateway.protocol.input_items import item_list, item_messages, items_page, parse_page, shown_item
from gateway.protocol.requests import Message, converted
from gateway.services import gateway_of
from gateway.turns.conversations import Conversation, Conversations, unknown_item
from gateway.turns.ids import new_conversation_id


async def create(request: Request) -> Response:
    """`POST /v1/conversations`."""
    kept, principal = await _opened(request)
    body = converted(await read_parameters(request, principal, ConversationCreate), ConversationCreate)
    id = new_conversation_id()
    items = await _items(request, principal, id, body.items)
    return _shown(await kept.create(principal.tenant, id, body.metadata or {}, items))


async def read(request: Request) -> Response:
    """`GET /v1/conversations/{conversation_id}`."""
    kept, principal = await _opened(request)
    return _shown(await kept.read(principal.tenant, _id(request)))


async def update(request: Request) -> Response:
    """`POST /v1/conversations/{conversation_id}`: replaces the metadata."""
    kept, principal = await _opened(request)
    body = converted(await read_parameters(request, principal, ConversationUpdate), ConversationUpdate)
    return _shown(await kept.update(principal.tenant, _id(request), body.metadata or {}))


async def delete(request: Request) -> Response:
    """`DELETE /v1/conversations/{conversation_id}`."""
    kept, principal = await _opened(request)
    await kept.delete(principal.tenant, _id(request))
    return JsonResponse({"id": _id(request), "object": "conversation.deleted", "deleted": True})


async def add_items(request: Request) -> Response:
    """`POST /v1/conversations/{conversation_id}/items`."""
    kept, principal = await _opened(request)
    body = converted(await read_parameters(request, principal, ItemsCreate), ItemsCreate)
    items = await _items(request, principal, _id(request), body.items)
    await kept.append(principal.tenant, _id(request), items)
    return JsonResponse(item_list(items))


async def list_items(request: Request) -> Response:
    """`GET /v1/conversations/{conversation_id}/items`."""
    kept, principal = await _opened(request)
    page = parse_page(request.query_params)
    return JsonResponse(items_page(await kept.items(principal.tenant, _id(request)), page))


async def read_item(request: Request) -> Response:
    """`GET /v1/conversations/{conversation_id}/items/{item_id}`."""
    kept, principal = await _opened(request)
    items, item = await kept.items(principal.tenant, _id(request)), _id(request, "item_id")
    if item not in items:
        raise unknown_item(item)
    return JsonResponse(shown_item(item, items[item]))


async def delete_item(request: Request) -> Response:
    """`DELETE /v1/conversations/{conversation_id}/items/{item_id}`: answers with the conversation."""
    kept, principal = await _opened(request)
    conversation = await kept.read(principal.tenant, _id(request))
    await kept.remove(principal.tenant, conversation.id, _id(request, "item_id"))
    return _shown(conversation)


_PATH = "/v1/conversations/{conversation_id}"

routes: list[BaseRoute] = [
    Route("/v1/conversations", create, methods=["POST"]),
    Route(_PATH, read, methods=["GET"]),
    Route(_PATH, update, methods=["POST"]),
    Route(_PATH, delete, methods=["DELETE"]),
    Route(f"{_PATH}/items", add_items, methods=["POST"]),
    Route(f"{_PATH}/items", list_items, methods=["GET"]),
    Route(f"{_PATH}/items/{{item_id}}", read_item, methods=["GET"]),
    Route(f"{_PATH}/items/{{item_id}}", delete_item, methods=["DELETE"]),
]


async def _opened(request: Request) -> tuple[Conversations, Principal]:
    """Return where conversations are kept, and who asks for one."""
    gateway = gateway_of(request)
    return gateway.turns.context.conversations, await gateway.authenticate(request, "chat")


async def _items(request: Request, principal: Principal, id: str, given: list[Any] | None) -> dict[str, Message]:
    """Return items that a client sends, with ids of their own."""
    messages = await gateway_of(request).turns.checked(parse_items(given), principal, id)
    return item_messages(secrets.token_hex(16), messages)


def _id(request: Request, name: str = "conversation_id") -> str:
    id: str = request.path_params[name]
    return id


def _shown(conversation: Conversation) -> Response:
    return JsonResponse(
        {
            "id": conversation.id,
            "object": "conversation",
            "created_at": conversation.created_at,
            "metadata": conversation.metadata,
        }
    )
