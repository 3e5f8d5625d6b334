"""From token ids back to text, one step at a time: incremental detokenisation and stop strings. Pure.

A token's contribution to the text is a fixed string of bytes in every tokenizer family that the engine serves, so
that streaming is an incremental UTF-8 decode: no window of earlier tokens is decoded again, a character whose bytes
are spread over tokens is never split, and the deltas of a text concatenate to the decoding of the whole. (One
exception, on garbage only: a run of byte-fallback tokens that is not UTF-8 loses its broken bytes, where the
`tokenizers` library replaces the run's good characters too, which cannot be known before the run has ended.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from encodings import utf_8
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedDecoder(ValueError):
    """The tokenizer joins its tokens in a way that has no incremental form here; the message names it."""


class TokenBytes:
    """The bytes that each token of a tokenizer adds to a text.

    Supports byte-level decoders (GPT-2, Llama 3, Qwen), sentencepiece-style ones (Llama 2, Mistral, Gemma: replace,
    byte fallback, fuse, strip; Metaspace) and tokenizers without a decoder (tokens joined by spaces).

    Raises:
        UnsupportedDecoder: for any other decoder.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(id for id, token in added.items() if token.special)
        self.leading_spaces = 0
        """Number of spaces that decoding strips from the start of a text."""
        self._replacements: list[tuple[str, str]] = []
        self._metaspace: str | None = None
        self._byte_level = self._byte_fallback = self._strip_metaspace = False
        decoder = json.loads(tokenizer.to_str())["decoder"]
        self._join = b" " if decoder is None else b""
        if decoder is not None:
            for part in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
                self._add(part)
        self._cache: dict[int, bytes] = {}

    def _add(self, part: dict[str, Any]) -> None:
        match part:
            case {"type": "ByteLevel"}:
                self._byte_level = True
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                self._replacements.append((old, new))
            case {"type": "Metaspace", "replacement": str(replacement)}:
                self._metaspace = replacement
                self._strip_metaspace = part.get("prepend_scheme") != "never"
            case {"type": "ByteFallback"}:
                self._byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                self.leading_spaces = start
            case _:
                raise UnsupportedDecoder(f"tokenizer.json: decoder {json.dumps(part)} is not supported")

    def __call__(self, token: int, first: bool = False) -> bytes:
        """Return the bytes of `token`; `first` if no token came before it. Unknown ids add nothing."""
        if first:
            return self._bytes(token, first=True)
        if token not in self._cache:
            self._cache[token] = self._bytes(token, first=False)
        return self._cache[token]

    def _bytes(self, token: int, first: bool) -> bytes:
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self._byte_level:
            try:
                return bytes(_BYTE_OF[character] for character in text)
            except KeyError:  # an added token that was never byte-encoded
                return text.encode()
        for old, new in self._replacements:
            text = text.replace(old, new)
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if self._metaspace:
            text = text.replace(self._metaspace, "" if first and self._strip_metaspace else " ")
        return text.encode() if first else self._join + text.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable character for every byte, inverted: byte-level BPE spells its tokens with these."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class IncrementalDetokenizer:
    """Decodes a growing token sequence: `push` returns text that became certain, `flush` what is left at the end."""

    def __init__(self, pieces: TokenBytes, *, skip_special: bool = True, shown: Collection[int] = ()) -> None:
        self._pieces = pieces
        self._skip = pieces.special.difference(shown) if skip_special else frozenset[int]()
        self._utf8 = utf_8.IncrementalDecoder(errors="replace")
        self._first = True
        self._strip = pieces.leading_spaces

    def push(self, token: int) -> str:
        """Return the text that `token` completes; empty while a character still lacks bytes."""
        if token in self._skip:
            return ""
        piece = self._pieces(token, self._first)
        self._first = False
        # The incremental decoder is written in Python, and most pieces need none.
        text = piece.decode() if piece.isascii() and not self._utf8.buffer else self._utf8.decode(piece)
        return self._stripped(text) if self._strip else text

    def flush(self) -> str:
        """Return the end of the text: bytes of an unfinished character become U+FFFD, as in any lossy decoding."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(" "):
                self._strip = 0
            else:
                text, self._strip = text[1:], self._strip - 1
        return text


class StopMatcher:
    """Finds stop strings in streamed text and holds back only what may still become one.

    The answer ends where the first stop string is completed; neither it nor anything after it is returned (OpenAI's
    meaning of `stop`). Of two that are completed by the same character the longer counts. The result does not depend
    on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("stop: an empty stop string would match everywhere; remove it")
        self.strings = tuple(stops)
        self.held = ""
        """Text that may still become one."""
        self.matched: str | None = None
        """Stop string that ended the text, if one did."""

    def push(self, text: str) -> str:
        """Add `text`; return what can be shown now. Nothing more is returned once `matched` is set."""
        if not self.strings:
            return text
        if self.matched is not None:
            return ""
        held = self.held + text
        ends = [(at + len(stop), -len(stop), stop) for stop in self.strings if (at := held.find(stop)) >= 0]
        if ends:
            end, length, self.matched = min(ends)
            self.held = ""
            return held[: end + length]
        keep = max(map(len, (_longest_overlap(held, stop) for stop in self.strings)), default=0)
        self.held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Return what was held back: the text has ended, so that it is no stop string after all."""
        held, self.held = self.held, ""
        return held


def _longest_overlap(text: str, stop: str) -> str:
    """Return the longest proper prefix of `stop` that `text` ends with."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return stop[:size]
    return ""


def detokenize(pieces: TokenBytes, tokens: Iterable[int], *, skip_special: bool = True) -> str:
    """Return the whole text of `tokens`, equal to what streaming them gives."""
    detokenizer = IncrementalDetokenizer(pieces, skip_special=skip_special)
    return "".join([*(detokenizer.push(token) for token in tokens), detokenizer.flush()])
