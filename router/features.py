"""What a conversation shows of its difficulty: counts that take no model, and 0.1 to 0.5 ms.

Only the newest user message is read closely, without what it is wrapped in (`router.canonical`), and of a long one its
beginning and end, so that cost is bounded whatever a client sends; of the history, its length counts. The word lists
are English; for other languages what remains is length, numbers, code, structure and punctuation (full-width forms
included), which degrades the score, not the service.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from router.canonical import canonical

HEAD, TAIL = 1_200, 400
"""Characters that are read of a longer message, from its beginning and from its end, where the question about a text
stands."""

_WORD = re.compile(r"\w+(?:[-'.]\w+)*")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
"""Scripts that write words without spaces between them: about two characters make a word."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_OPERATOR = re.compile(
    r"(?<=[\d)\s])[-+*/^%=<>](?=[\d(\s])|[\u00d7\u00f7\u221a\u2211\u222b\u2264\u2265\u2260]"
    r"|\b(?:plus|minus|times|divided by|multipl(?:y|ied)|subtract|add up|sum of|percent|half of|twice|remain(?:s|ing)?"
    r"|left|in total|altogether|each|average|square root|modulo|buys|gives|loses|shares|earns|spends)\b"
)
_CODE = re.compile(
    r"```|`[^`\n]+`|\b(?:def|class|import|return|function|const|SELECT|FROM|WHERE|lambda|async|await)\b[^?\n]{0,80}[:;({=]"
    r"|[{};]\s*\n|=>|->|\w\(\w{0,30}\)"
)
_QUESTION_MARK = re.compile(r"[?\uff1f\u061f]")
_ASKS = re.compile(
    r"\b(?:what|which|who|whom|whose|where|when|why|how|does|do|is|are|can|could|should|would|will|explain|describe|"
    r"tell|name|define)\b"
)
_SMALL_TALK = re.compile(r"\b(?:you|your|yourself|u)\b")
_REASONS = re.compile(
    r"\b(?:why|explain|prove|proof|derive|justify|reason(?:ing|s)?|because|therefore|compare|contrast|differ(?:s|ences?"
    r"|ent)?|versus|vs|trade-?offs?|pros and cons|advantages?|implications?|consequences?|evaluate|analy[sz]e|infer|"
    r"deduce|step[- ]by[- ]step|what if|what happens|suppose|assume|given that|relate[sd]?|causes?|how come)\b"
)
_PROCEDURE = re.compile(
    r"\b(?:how (?:do|does|did|can|could|should|would|will|to|is|are(?! you)|much|many|long|far|fast)|set ?up|configure|"
    r"install|deploy|debug|fix|troubleshoot|migrate|integrate|steps?|process|plan|strategy)\b"
)
_PRODUCES = re.compile(
    r"\b(?:write|draft|compose|create|design|implement|build|generate|develop|refactor|rewrite|summari[sz]e|translate|"
    r"outline|solve|calculate|compute|optimi[sz]e|convert|classify|extract|review|plan)\b"
)
_CONSTRAINS = re.compile(
    r"\b(?:must|exactly|at least|at most|no more than|no less than|fewer than|less than|more than|without|except|"
    r"unless|only|ensure|required?|should not|do not|don't|between|within|in the (?:form|format|style) of|"
    r"as (?:json|a table|bullets?))\b"
)
_PARTS = re.compile(
    r"^\s*(?:[-*•]|\(?[a-z0-9]{1,2}[.)])\s|;|\b(?:and then|after that|also|furthermore|first|second|finally)\b", re.M
)
_CAPITAL = re.compile(r"[A-Z]")
_TERM = re.compile(r"\b(?=\w*[a-z])(?:\w*\d\w*|\w*_\w+|[a-z]\w*[A-Z]\w*|[A-Z]{2,}\w*|\w{10,}|\w+/\w+)\b")


class PromptMessage(Struct, frozen=True):
    """One message of the conversation, oldest first."""

    role: str
    text: str


class Features(Struct, frozen=True):
    """Features of the newest user message, and (the last two) of the conversation."""

    words: int = 0
    lines: int = 0
    questions: int = 0
    """Number of question marks."""
    asks: bool = False
    """Whether the message asks for information, other than about the assistant itself ("how are you")."""
    reasons: int = 0
    """Number of signs that an explanation, comparison or proof is wanted."""
    procedure: int = 0
    """Number of signs that a way of doing something is wanted."""
    produces: int = 0
    """Number of signs that a text, program or result is to be made."""
    constraints: int = 0
    parts: int = 0
    """Number of enumerations and sub-questions."""
    numbers: int = 0
    operators: int = 0
    """Number of arithmetic signs and words."""
    code: int = 0
    terms: int = 0
    """Number of technical terms: identifiers, acronyms, long words."""
    characters: int = 0
    """Length of the message in characters, of a long one as it came."""
    digits: float = 0.0
    """Share of the characters read that are digits; the next three are shares too."""
    symbols: float = 0.0
    r"""Share of symbols of formulas and mark-up: `\ ^ _ { } $`."""
    signs: float = 0.0
    """Share of arithmetic signs and brackets."""
    capitals: float = 0.0
    first_line: int = 0
    """Length of the first line in characters."""
    middle_line: float = 0.0
    """Length of the median line in characters."""
    numeric_lines: float = 0.0
    """Share of lines that begin like a number."""
    distinct: float = 0.0
    """Share of the words, split at blanks, that are not repetitions."""
    word_length: float = 0.0
    """Mean length of such a word in characters."""
    turns: int = 0
    """Number of user messages before the newest."""
    history_words: int = 0
    """Words of the history, estimated from its number of characters."""


def extract(messages: Sequence[PromptMessage]) -> Features:
    """Compute the features of a conversation; all are zero if it holds no user message."""
    newest = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "user"), None)
    if newest is None:
        return Features()
    whole = messages[newest].text
    text = canonical(_read(whole))
    lower = text.lower()
    earlier = [message for i, message in enumerate(messages) if i != newest]
    lines = [line for line in text.splitlines() if line.strip()]
    blank_split = lower.split()
    size = len(text) or 1
    return Features(
        words=count_words(text),
        lines=len(lines),
        questions=len(_QUESTION_MARK.findall(text)),
        asks=bool(_QUESTION_MARK.search(text) or _ASKS.search(lower)) and not _SMALL_TALK.search(lower),
        reasons=len(_REASONS.findall(lower)),
        procedure=len(_PROCEDURE.findall(lower)),
        produces=len(_PRODUCES.findall(lower)),
        constraints=len(_CONSTRAINS.findall(lower)),
        parts=len(_PARTS.findall(lower)),
        numbers=len(_NUMBER.findall(text)),
        operators=len(_OPERATOR.findall(lower)),
        code=len(_CODE.findall(text)),
        terms=len(_TERM.findall(text)),
        characters=len(text) if len(whole) <= HEAD + TAIL else len(whole),
        digits=_share(text, "0123456789", size),
        symbols=_share(text, "\\^_{}$", size),
        signs=_share(text, "=+-*/<>()", size),
        capitals=len(_CAPITAL.findall(text)) / size,
        first_line=len(lines[0]) if lines else 0,
        middle_line=median(map(len, lines)) if lines else 0.0,
        numeric_lines=sum(1 for line in lines if line[0] in "0123456789-$") / (len(lines) or 1),
        distinct=len(set(blank_split)) / (len(blank_split) or 1),
        word_length=sum(map(len, blank_split)) / (len(blank_split) or 1),
        turns=sum(1 for message in earlier if message.role == "user"),
        history_words=sum(len(message.text) for message in earlier) // 6,
    )


def _read(whole: str) -> str:
    """Return what is read of a message: of a long one the beginning and the end."""
    return whole if len(whole) <= HEAD + TAIL else f"{whole[:HEAD]}\n{whole[-TAIL:]}"


def _share(text: str, characters: str, size: int) -> float:
    return sum(map(text.count, characters)) / size


def count_words(text: str) -> int:
    """Count the words of a text in any script."""
    unspaced = len(_UNSPACED.findall(text))
    spaced = _UNSPACED.sub(" ", text) if unspaced else text
    return len(_WORD.findall(spaced)) + (unspaced + 1) // 2
