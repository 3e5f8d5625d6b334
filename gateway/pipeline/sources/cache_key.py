"""The parts of a request's key in the response cache: everything about it that shapes its answer. Pure.

A field that is added to a request later is part of the key until somebody adds it to `HARMLESS`, with the reason why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from cache.policy import Scope
from gateway.access.identity.principal import Principal
from gateway.protocol.requests import Message, TurnRequest

HARMLESS: Final = frozenset(
    {
        "messages",  # part of the conversation, which is in the key whole
        "previous_response_id",  # what it stands for is in the conversation
        "conversation",  # what it stands for is in the messages
        "background",
        "caching",  # whether, not what; its tags are in the key
        "store",
        "metadata",
        "echo",
        "service_tier",  # when, not what
        "generate",  # warm-ups are never looked up
        "max_output_tokens",  # in the key with its default
        "format",  # its grammar is in the key, however it was spelt
    }
)
"""Fields of a request that do not shape its answer, or are in the key in another form."""

_WHOLE = tuple(name for name in TurnRequest.__struct_fields__ if name not in HARMLESS)


def owner(scope: Scope, principal: Principal) -> list[str]:
    """Return the parts of the key that say whose answer it is within the tenant."""
    if scope is Scope.TENANT:
        return ["tenant"]
    if principal.user is not None and principal.expires_at is None:
        return ["user", principal.user]  # who may have several keys
    # Each issuer of tokens has names of its own for people.
    return ["key", principal.key, principal.user or ""]


def parts(
    request: TurnRequest,
    conversation: tuple[Message, ...],
    *,
    owner: list[str],
    pools: Sequence[Any],
    adapter: str | None,
    safety: str | None,
    policy: str,
    default_max_output_tokens: int,
) -> dict[str, Any]:
    """Return the parts of `cache.keys.response_digest`.

    Args:
        pools: names, weights, kinds of servers, revisions, vocabulary (which stands for the chat template too) and
            defaults of each model that may answer.
        adapter: version of the adapter.
        safety: digest of the rules that filter the answer: under other rules it may hold what these take out.
        policy: digest of how tiers are chosen.
    """
    found: dict[str, Any] = {name: getattr(request, name) for name in _WHOLE}
    if request.sampling.logit_bias:  # keys have to be text where they are sorted
        found["sampling"] = msgspec.to_builtins(request.sampling, str_keys=True)
    return found | {
        "owner": owner,
        "policy": policy,
        "pools": pools,
        "format": request.format.grammar if request.format else None,
        "adapter": adapter,
        "messages": conversation,
        "max_output_tokens": request.max_output_tokens or default_max_output_tokens,
        "safety": safety,
        "tags": request.caching.tags,
    }
