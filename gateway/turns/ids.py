"""Ids of responses and conversations. A response's names the gateway that runs its turn, so that every other one knows
whom to ask.

resp_ <16 hex digits of the gateway's id> <32 random hex digits>
conv_ <48 random hex digits>
"""

from __future__ import annotations

import re
import secrets

_GATEWAY = "gw_"
_ID = re.compile(r"resp_([0-9a-f]{16})[0-9a-f]{32}")
_CONVERSATION = re.compile(r"conv_[0-9a-f]{48}")
_CHOICES = re.compile(r"(?:chat)?cmpl-(.+)")
"""Prefixes of ids in chat completions and completions; several choices share the turn's id."""


def new_response_id(gateway: str) -> str:
    """Return an id that nobody can guess, for a turn of this gateway (an id of `gateway.storage.presence`)."""
    return f"resp_{gateway.removeprefix(_GATEWAY)}{secrets.token_hex(16)}"


def new_conversation_id() -> str:
    """Return an id that nobody can guess."""
    return f"conv_{secrets.token_hex(24)}"


def is_conversation_id(id: str) -> bool:
    return _CONVERSATION.fullmatch(id) is not None


def response_id(named: str) -> str:
    """Convert an id of any of OpenAI's endpoints to the response's id; anything else is returned as it is."""
    match = _CHOICES.fullmatch(named)
    return f"resp_{match[1]}" if match else named


def gateway_of(response_id: str) -> str | None:
    """Return the id of the gateway that runs, or ran, this response; None if it is no id of ours."""
    match = _ID.fullmatch(response_id)
    return _GATEWAY + match[1] if match else None
