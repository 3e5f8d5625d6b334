"""Ids of responses and conversations. A response's names the gateway that runs its turn, so that every other one knows
whom to ask, and shows to whoever has the installation's secret that it was given to this tenant, and when: so an id of
which nothing is kept can be told from one that never was.

resp_ <16 hex digits of the gateway's id> <32 hex digits: an encrypted block of time, number and check>
conv_ <48 random hex digits>
"""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
import time

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

_GATEWAY = "gw_"
_ID = re.compile(r"resp_([0-9a-f]{16})([0-9a-f]{32})")
_CONVERSATION = re.compile(r"conv_[0-9a-f]{48}")
_CHOICES = re.compile(r"(?:chat)?cmpl-(.+)")
"""Prefixes of ids in chat completions and completions; several choices share the turn's id."""


class ResponseIds:
    """Makes the ids of one gateway's turns, and recognises those of all gateways with the same secret."""

    def __init__(self, secret: bytes, gateway: str) -> None:
        """Args: secret: 32 bytes; gateway: an id of `gateway.storage.presence`."""
        self._key = secret
        # One block each, which no other has: there are no patterns that a mode would have to hide.
        cipher = Cipher(AES(secret), ECB())
        self._seal, self._open = cipher.encryptor(), cipher.decryptor()
        self._gateway = gateway.removeprefix(_GATEWAY)
        self._numbers = itertools.count(secrets.randbits(32))

    def new(self, tenant: str) -> str:
        """Return an id that nobody can guess."""
        number = next(self._numbers) % 2**32
        block = (int(time.time()) << 32 | number).to_bytes(8, "big") + self._check(self._gateway, tenant)
        return f"resp_{self._gateway}{self._seal.update(block).hex()}"

    def issued(self, id: str, tenant: str) -> int | None:
        """Return the Unix time at which a gateway gave this id to a turn of the tenant; None if none has."""
        match = _ID.fullmatch(id)
        if match is None:
            return None
        block = self._open.update(bytes.fromhex(match[2]))
        genuine = secrets.compare_digest(block[8:], self._check(match[1], tenant))
        return int.from_bytes(block[:4], "big") if genuine else None

    def _check(self, gateway: str, tenant: str) -> bytes:
        return hashlib.blake2b(f"{gateway} {tenant}".encode(), digest_size=8, key=self._key).digest()


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
