"""For each endpoint, requests that name something which another tenant has; see `test_tenants_apart`."""

from __future__ import annotations

from typing import Any

from tests.gateway.attempts import Attempt

ASK: dict[str, Any] = {"model": "tiny-small", "input": "hello", "max_output_tokens": 1}  # more could be merged, or not
CHAT: dict[str, Any] = {"model": "$", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
OLLAMA: dict[str, Any] = {"model": "$", "messages": CHAT["messages"], "options": {"num_predict": 2}, "stream": False}
BATCH = {"input_file_id": "$", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
PROMPT: dict[str, Any] = {"model": "$", "prompt": "hello", "max_tokens": 2}
TEXT = {"model": "$", "prompt": "hello"}
AS_KEY = Attempt("ticket", headers={"authorization": "Bearer $"})

CASES: dict[str, list[Attempt]] = {
    "POST /v1/responses": [
        Attempt("response", {**ASK, "previous_response_id": "$"}),
        Attempt("response", {**ASK, "previous_response_id": "$", "stream": True}),
        Attempt("response", {**ASK, "previous_response_id": "$", "background": True}),
        Attempt("conversation", {**ASK, "conversation": "$"}),
        Attempt("conversation", {**ASK, "conversation": {"id": "$"}, "stream": True}),
        Attempt("model", {**ASK, "model": "$"}),
        Attempt("model", {**ASK, "model": "$", "stream": True}),
        Attempt("idempotency key", ASK, headers={"idempotency-key": "$"}),
    ],
    "POST /v1/responses/compact": [
        Attempt("response", {"model": "tiny-small", "previous_response_id": "$", "max_output_tokens": 2}),
        Attempt("model", {"model": "$", "input": "hello"}),
    ],
    "POST /v1/responses/input_tokens": [
        Attempt("response", {"previous_response_id": "$"}),
        Attempt("conversation", {"conversation": "$", "input": "hello"}),
        Attempt("model", {"model": "$", "input": "hello"}),
    ],
    "GET /v1/responses/{id}": [
        Attempt("response"),
        Attempt("response", query="?stream=true"),
        Attempt("response", query="?stream=true&starting_after=1"),
    ],
    "DELETE /v1/responses/{id}": [Attempt("response")],
    "GET /v1/responses/{id}/input_items": [Attempt("response"), Attempt("response", query="?limit=1&order=asc")],
    "POST /v1/responses/{id}/cancel": [Attempt("response")],
    "POST /v1/responses/{id}/feedback": [Attempt("response", {"rating": "up"})],
    "POST /v1/conversations": [AS_KEY],
    "GET /v1/conversations/{conversation_id}": [Attempt("conversation")],
    "POST /v1/conversations/{conversation_id}": [Attempt("conversation", {"metadata": {"a": "b"}})],
    "POST /v1/conversations/{conversation_id}/items": [Attempt("conversation", {"items": CHAT["messages"]})],
    "GET /v1/conversations/{conversation_id}/items": [
        Attempt("conversation"),
        Attempt("conversation", query="?limit=1&order=asc"),
    ],
    "GET /v1/conversations/{conversation_id}/items/{item_id}": [Attempt("item")],
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": [Attempt("item")],
    "DELETE /v1/conversations/{conversation_id}": [Attempt("conversation")],  # last: nothing of it is left
    "GET /v1/chats": [AS_KEY],  # of users: see http/test_chats.py
    "POST /v1/chats/search": [AS_KEY],
    "GET /v1/chats/{chat_id}": [AS_KEY],
    "POST /v1/chats/{chat_id}": [AS_KEY],
    "DELETE /v1/chats/{chat_id}": [AS_KEY],
    "POST /v1/shares": [AS_KEY],  # see http/test_shares.py
    "GET /v1/shares": [AS_KEY],
    "GET /v1/shares/{share_id}": [AS_KEY],
    "DELETE /v1/shares/{share_id}": [AS_KEY],
    "GET /v1/prompts": [AS_KEY],
    "POST /v1/prompts": [AS_KEY],  # by admins: see http/test_prompts.py
    "GET /v1/prompts/{prompt_id}": [Attempt("prompt")],
    "POST /v1/prompts/{prompt_id}": [AS_KEY],
    "DELETE /v1/prompts/{prompt_id}": [AS_KEY],
    "GET /v1/models": [AS_KEY],
    "GET /v1/models/": [AS_KEY],
    "GET /v1/models/{model:path}": [Attempt("model")],
    "POST /v1/chat/completions": [Attempt("model", CHAT), Attempt("model", {**CHAT, "stream": True, "n": 2})],
    "POST /v1/completions": [Attempt("model", PROMPT), Attempt("model", {**PROMPT, "stream": True})],
    "POST /v1/messages": [Attempt("model", CHAT), Attempt("model", {**CHAT, "stream": True})],
    "POST /v1/messages/count_tokens": [
        Attempt("model", {key: value for key, value in CHAT.items() if key != "max_tokens"})
    ],
    "POST /api/chat": [Attempt("model", OLLAMA), Attempt("model", {**OLLAMA, "stream": True})],
    "POST /api/generate": [Attempt("model", {"model": "$", "prompt": "hello", "options": {"num_predict": 2}})],
    "GET /api/tags": [AS_KEY],
    "POST /api/show": [Attempt("model", {"model": "$"})],
    "POST /api/embed": [AS_KEY],
    "POST /api/embeddings": [AS_KEY],
    "POST /tokenize": [Attempt("model", TEXT)],
    "POST /detokenize": [Attempt("model", {"model": "$", "tokens": [1]})],
    "GET /tokenizer_info": [Attempt("model", query="?model=$")],
    "POST /v1/embeddings": [AS_KEY],
    "POST /v1/files": [AS_KEY],
    "GET /v1/files": [AS_KEY, Attempt("file", query="?after=$")],
    "GET /v1/files/{id}": [Attempt("file")],
    "GET /v1/files/{id}/content": [Attempt("file")],
    "DELETE /v1/files/{id}": [Attempt("file")],
    "POST /v1/batches": [Attempt("file", BATCH)],
    "GET /v1/batches": [AS_KEY, Attempt("batch", query="?after=$")],
    "GET /v1/batches/{id}": [Attempt("batch")],
    "POST /v1/batches/{id}/cancel": [Attempt("batch")],
    "POST /v1/tickets": [AS_KEY],
    "WS /v1/responses": [
        Attempt("response", {"type": "response.create", **ASK, "previous_response_id": "$", "stream_id": "a"}),
        Attempt("response", {"type": "response.cancel", "response_id": "$", "stream_id": "a"}),
        Attempt("response", {"type": "response.resume", "response_id": "$"}),
        Attempt("response", {"type": "response.resume", "response_id": "$", "starting_after": 2}),
        Attempt("model", {"type": "response.create", **ASK, "model": "$"}),
        Attempt("idempotency key", {"type": "response.create", **ASK, "idempotency_key": "$"}),
    ],
}  # fmt: skip
"""By method and path of a route."""
