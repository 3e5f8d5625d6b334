"""Seals what others may hold but not read: AES-256-GCM with keys derived from the installation's secret.

Each process has a key of its own, derived from a random salt that stands before what it seals, and counts its nonces:
no nonce is ever used twice with one key, however much is sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_SALT, _NONCE = 16, 12
"""Lengths of salt and nonce in bytes."""


class BrokenSeal(ValueError):
    """The data was not sealed with this installation's secret, was changed, or was sealed as something else."""


class Seal:
    """Seals and opens. `context` says what the data is; data sealed as one thing cannot be opened as another."""

    def __init__(self, secret: bytes) -> None:
        self._salt = secrets.token_bytes(_SALT)
        self._nonces = itertools.count()

        @lru_cache(maxsize=1024)
        def cipher(salt: bytes) -> AESGCM:
            return AESGCM(hmac.digest(secret, salt, hashlib.sha256))

        self._cipher = cipher

    def seal(self, data: bytes, context: str) -> bytes:
        """Seal data; the result is 44 bytes longer."""
        nonce = next(self._nonces).to_bytes(_NONCE, "big")
        return self._salt + nonce + self._cipher(self._salt).encrypt(nonce, data, context.encode())

    def open(self, sealed: bytes, context: str) -> bytes:
        """Open sealed data.

        Raises:
            BrokenSeal: see there.
        """
        salt, nonce, text = sealed[:_SALT], sealed[_SALT : _SALT + _NONCE], sealed[_SALT + _NONCE :]
        try:
            return self._cipher(salt).decrypt(nonce, text, context.encode())
        except (InvalidTag, ValueError):
            raise BrokenSeal(f"{context}: sealed with another secret, or damaged") from None
