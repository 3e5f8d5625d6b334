"""Compaction: a model's summary stands for a conversation in the input of later turns.

What stands for it travels with the client, sealed: only gateways with this installation's secret can read it, and only
for the tenant that it was made for.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

import msgspec

from gateway.errors import invalid_value
from gateway.protocol.requests import Message
from gateway.storage.seal import BrokenSeal, Seal

SUMMARISE = (
    "Summarise our conversation so far for somebody who continues it and has not read it: what I want, facts, names "
    "and numbers, what was decided, results of function calls, and what is still open. Write the summary only."
)
"""What a user would say to get the summary. It stays before it: chat templates may want user and assistant to
alternate."""

_messages = msgspec.msgpack.Decoder(tuple[Message, ...])


class Compactions:
    """Makes and reads the `encrypted_content` of compaction items."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def close(self, conversation: Iterable[Message], summary: str, tenant: str) -> str:
        """Return what stands for a conversation: its system messages as they are, and a summary of all others."""
        kept = [message for message in conversation if message.role == "system"]
        whole = (*kept, Message("user", SUMMARISE), Message("assistant", summary))
        sealed = self._seal.seal(msgspec.msgpack.encode(whole), _context(tenant))
        return base64.urlsafe_b64encode(sealed).decode()

    def open(self, messages: tuple[Message, ...], tenant: str) -> tuple[Message, ...]:
        """Return messages with those that compaction items among them stand for.

        Raises:
            InvalidRequest: an item was not made here, or for another tenant.
        """
        if all(message.compacted is None for message in messages):
            return messages
        whole: list[Message] = []
        for message in messages:
            whole += [message] if message.compacted is None else self._opened(message.compacted, tenant)
        return tuple(whole)

    def _opened(self, content: str, tenant: str) -> tuple[Message, ...]:
        try:
            sealed = base64.urlsafe_b64decode(content.encode("ascii"))
            return _messages.decode(self._seal.open(sealed, _context(tenant)))
        except (BrokenSeal, ValueError, msgspec.MsgspecError):
            raise invalid_value(
                "input", "holds a compaction item whose encrypted_content was not made by this server for this tenant"
            ) from None


def _context(tenant: str) -> str:
    return f"rh1:compaction:{{{tenant}}}"
