"""What clients ask for: all routes beside those of the admin API."""

from __future__ import annotations

from starlette.routing import BaseRoute

from gateway.http import (
    batches,
    chat_completions,
    chats,
    completions,
    conversations,
    embeddings,
    feedback,
    files,
    health,
    messages,
    models,
    ollama,
    openapi,
    page,
    prompts,
    responses,
    shares,
    sign_in,
    tickets,
    tokenizer,
)

ROUTES: list[BaseRoute] = [
    *responses.routes,
    *conversations.routes,
    *chats.routes,
    *shares.routes,
    *prompts.routes,
    *feedback.routes,
    *chat_completions.routes,
    *completions.routes,
    *messages.routes,
    *ollama.routes,
    *embeddings.routes,
    *files.routes,
    *batches.routes,
    *models.routes,
    *openapi.routes,
    *sign_in.routes,
    *tickets.routes,
    *tokenizer.routes,
    *health.routes,
    *page.routes,
]
