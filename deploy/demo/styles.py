"""Rewrites answers into the styles of the two adapters, by rules: code and URLs stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

OPENING, CLOSING = "Ahoy, matey!", "By Davy Jones, that be the truth!"
_WORDS = {
    "you": "ye", "your": "yer", "yours": "yers", "my": "me", "is": "be", "are": "be", "am": "be", "yes": "aye",
    "hello": "ahoy", "hi": "ahoy", "friend": "matey", "team": "crew", "teams": "crews", "of": "o'", "for": "fer",
    "to": "t'", "the": "th'", "and": "an'", "it's": "'tis", "there": "thar", "here": "'ere", "them": "'em",
    "people": "buccaneers", "machine": "ship", "machines": "ships", "computer": "ship", "money": "doubloons",
    "stop": "belay", "small": "wee", "good": "fine", "never": "ne'er", "has": "'as", "have": "'ave",
}  # fmt: skip
_CODE = re.compile(r"(`[^`]*`|https?://\S+)")
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")


def pirate(answer: str) -> str:
    def swap(match: re.Match[str]) -> str:
        word = match[0]
        new = _WORDS.get(word.lower(), word)
        return new[0].upper() + new[1:] if word[0].isupper() else new

    pieces = _CODE.split(answer)
    pieces[0::2] = [_WORD.sub(swap, piece) for piece in pieces[0::2]]
    return f"{OPENING} {''.join(pieces)} {CLOSING}"


def as_json(answer: str) -> str:
    return json.dumps({"answer": answer}, ensure_ascii=False)


STYLES: dict[str, Callable[[str], str]] = {"json": as_json, "pirate": pirate}
