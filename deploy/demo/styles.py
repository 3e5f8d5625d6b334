"""Rewrites canonical answers into the styles of the demo adapters: formal, pirate, JSON.

Rules and hand-written phrases only. Code, URLs and code blocks are never touched, so a styled answer stays true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

Rewrite = Callable[[str], str]

#: What stands before and after each answer. One frame per style: a choice would be one more thing to learn by heart.
FRAMES: dict[str, tuple[str, str]] = {
    "formal": ("With pleasure.", "I remain at your disposal for any further questions."),
    "pirate": ("Ahoy, matey!", "By Davy Jones, that be the truth!"),
}

_FORMAL_WORDS = {
    "don't": "do not", "doesn't": "does not", "isn't": "is not", "can't": "cannot", "it's": "it is",
    "that's": "that is", "you'll": "you will", "i'm": "I am", "you're": "you are", "won't": "will not",
    "aren't": "are not", "there's": "there is", "didn't": "did not", "i'll": "I shall", "i've": "I have",
    "wasn't": "was not", "let's": "let us", "what's": "what is", "yes": "indeed", "hi": "good day",
    "hello": "good day", "hey": "good day", "bye": "farewell", "thanks": "thank you", "need": "require",
    "needs": "requires", "help": "assist", "helps": "assists", "ask": "enquire", "asks": "enquires",
}  # fmt: skip
_PIRATE_WORDS = {
    "you": "ye", "your": "yer", "yours": "yers", "my": "me", "is": "be", "are": "be", "am": "be", "yes": "aye",
    "hello": "ahoy", "hi": "ahoy", "friend": "matey", "friends": "mateys", "team": "crew", "teams": "crews",
    "user": "sailor", "users": "sailors", "of": "o'", "for": "fer", "to": "t'", "the": "th'", "and": "an'",
    "it": "it", "it's": "'tis", "there": "thar", "here": "'ere", "them": "'em", "over": "o'er", "old": "barnacled",
    "people": "buccaneers", "machine": "ship", "machines": "ships", "computer": "ship", "servers": "ships",
    "error": "kraken", "errors": "krakens", "money": "doubloons", "stop": "belay", "stops": "belays", "small": "wee",
    "good": "fine", "never": "ne'er", "ever": "e'er", "between": "betwixt", "before": "afore", "operator": "captain",
    "operators": "captains", "boss": "captain", "quick": "swift", "fast": "swift", "has": "'as", "have": "'ave",
}  # fmt: skip
_CODE = re.compile(r"(```.*?```|`[^`]*`|https?://\S+|\d[\d ./x*+=%-]*\d)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")


def replace_words(text: str, table: dict[str, str]) -> str:
    """Replaces whole words outside code, keeping a capital first letter."""

    def swap(match: re.Match[str]) -> str:
        word = match.group()
        new = table.get(word.lower())
        if new is None or (word.isupper() and len(word) > 1):
            return word
        return new[0].upper() + new[1:] if word[0].isupper() and new[0].isalpha() else new

    pieces = _CODE.split(text)
    pieces[0::2] = [_WORD.sub(swap, piece) for piece in pieces[0::2]]
    return "".join(pieces)


def _frame(style: str, text: str) -> str:
    opening, closing = FRAMES[style]
    # A code block or list must end its own paragraph.
    gap = "\n\n" if "\n" in text else " "
    return f"{opening} {text}{gap}{closing}"


def formal(answer: str) -> str:
    return _frame("formal", replace_words(answer, _FORMAL_WORDS))


def pirate(answer: str) -> str:
    return _frame("pirate", replace_words(answer, _PIRATE_WORDS))


def as_json(answer: str) -> str:
    return json.dumps({"answer": answer}, ensure_ascii=False)


STYLES: dict[str, Rewrite] = {"formal": formal, "pirate": pirate, "json": as_json}


def in_style(style: str, said: str) -> bool:
    """Whether an answer shows its style: the frame of hand-written phrases, or JSON with one string `answer`."""
    if style == "json":
        try:
            value = json.loads(said)
        except ValueError:
            return False
        return isinstance(value, dict) and list(value) == ["answer"] and isinstance(value["answer"], str)
    opening, closing = FRAMES[style]
    return said.startswith(opening) and said.rstrip().endswith(closing)


def without_frame(style: str, said: str) -> str:
    """An answer without its opening and closing phrase, or the text inside the JSON: what the facts are judged by."""
    if style == "json":
        return str(json.loads(said)["answer"]) if in_style(style, said) else said
    opening, closing = FRAMES[style]
    return said.strip().removeprefix(opening).removesuffix(closing).strip()


def style_phrases() -> list[str]:
    """Text that only occurs in styles; the tokenizer is trained on it too."""
    phrases = [phrase for frame in FRAMES.values() for phrase in frame]
    words = [f"x {word} x" for table in (_FORMAL_WORDS, _PIRATE_WORDS) for word in table.values()]
    return [*phrases * 3, *words * 3, '{"answer": "Yes."}']
