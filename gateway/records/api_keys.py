"""Makes, recognises and digests API keys.

A key is `rh_<43 characters>_<6 characters>`: 256 random bits and their CRC-32, both in base 62. The checksum refuses a
typing mistake or another product's key without a look at any store, and lets scanners for leaked secrets be sure:
`PATTERN` finds candidates and `well_formed` tells keys from chance. It protects from accidents, not from guessing; the
256 bits do that.

What is stored is HMAC-SHA-256 of the key under the installation's secret. As keys are random, no slow hash is needed:
there is nothing to guess. The secret makes a stolen copy of Redis useless even for telling whether a key is in use.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from typing import Final

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BITS = 256
_RANDOM = 43
"""Number of base 62 digits that hold 256 bits."""
_CHECKSUM = 6
"""Number of base 62 digits that hold 32 bits."""

PATTERN: Final = r"\brh_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}\b"
"""Regular expression for scanners of leaked secrets."""

PREFIX: Final = "rh_"

_key = re.compile(PATTERN, re.ASCII)


def new_key(secret: bytes) -> tuple[str, str]:
    """Return a new key, to be shown once, and the digest to be stored, under the installation's secret."""
    random = _base62(secrets.randbits(_BITS), _RANDOM)
    text = f"{PREFIX}{random}_{_checksum(random)}"
    return text, digest(text, secret)


def well_formed(text: str) -> bool:
    """Whether this is a key that `new_key` could have made."""
    return _key.fullmatch(text) is not None and hmac.compare_digest(
        text[-_CHECKSUM:], _checksum(text[len(PREFIX) : len(PREFIX) + _RANDOM])
    )


def digest(text: str, secret: bytes) -> str:
    """Hex HMAC-SHA-256 of a key under the installation's secret: what is stored and looked up."""
    return hmac.digest(secret, text.encode(), hashlib.sha256).hex()


def _checksum(random: str) -> str:
    return _base62(zlib.crc32(random.encode()), _CHECKSUM)


def _base62(number: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        number, digit = divmod(number, 62)
        text = _ALPHABET[digit] + text
    return text
