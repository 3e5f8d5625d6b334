"""Texts of four kinds, as token ids of a checkpoint, on which `bench.quality` compares models."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from engine.text.processor import TextProcessor

Ids = npt.NDArray[np.int64]
_ROOT = Path(__file__).parents[1]
_CHATS = Path(__file__).with_name("texts") / "chats.toml"
_ROLES = ("user", "assistant")
_LONG = 600_000
"""Characters that are read of documents and sources."""


class Windows(msgspec.Struct, frozen=True):
    """Pieces of one kind of text."""

    kind: str
    ids: Ids
    """[windows, tokens]"""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.ids.tobytes()).hexdigest()


def windows(checkpoint: Path, count: int, tokens: int) -> list[Windows]:
    """Cut `count` pieces of `tokens` ids each, evenly spread, out of each kind of text.

    Raises:
        ValueError: a text is shorter; the message names it.
    """
    processor = TextProcessor.from_path(checkpoint)
    chats = [processor.encode_chat(chat, add_generation_prompt=False) for chat in conversations()]
    texts = {
        "documents": processor.encode("".join(_files("docs/*.md"))),
        "sources": processor.encode("".join(_files("engine/**/*.py"))),
        "licence": processor.encode((_ROOT / "LICENSE").read_text("utf-8")),
        "chats": [token for chat in chats for token in chat],
    }
    return [Windows(kind, _cut(kind, ids, count, tokens)) for kind, ids in texts.items()]


def _cut(kind: str, ids: list[int], count: int, tokens: int) -> Ids:
    if len(ids) < count * tokens:
        raise ValueError(f"{kind} has {len(ids)} tokens, too few for {count} windows of {tokens}; ask for fewer")
    starts = [number * (len(ids) // count) for number in range(count)]
    return np.array([ids[start : start + tokens] for start in starts])


def _files(pattern: str) -> Iterator[str]:
    room = _LONG
    for path in sorted(_ROOT.glob(pattern)):
        text = path.read_text("utf-8")[:room]
        room -= len(text)
        yield text


def conversations() -> list[list[dict[str, str]]]:
    """Return the messages of each conversation of texts/chats.toml."""
    found = tomllib.loads(_CHATS.read_text("utf-8"))["conversations"]
    return [
        [{"role": _ROLES[number % 2], "content": turn} for number, turn in enumerate(conversation["turns"])]
        for conversation in found
    ]
