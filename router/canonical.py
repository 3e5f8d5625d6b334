r"""The same question in the same words, however it was wrapped: what is judged of a request is judged of this text.

Greetings and thanks, lead-ins ("Could you tell me"), instructions on the form of the answer ("Answer with the number
only."), labels ("Question:", "Answer:") and the letters of options say nothing of how hard a question is, yet change
its length, shape and embedding. What is taken away is English; other languages keep their text but for white space.

    >>> canonical("Hi! Question: What is 2 + 2?\nA) 3\nB) 4\nAnswer with the letter only.\nAnswer:")
    'What is 2 + 2?\n3\n4'
"""

from __future__ import annotations

import re

LONGEST = 4_000
"""Characters of a text that is looked at; a longer one stays as it is."""
_ROUNDS = 8
"""Most wrappings around one another that are taken away."""
_I = re.IGNORECASE
_GREETING = re.compile(r"^(?:hi|hello|hey|good (?:morning|afternoon|evening))(?: (?:there|again|all))?[,!.:]+\s*", _I)
_THANKS = re.compile(r"(?:many )?(?:thanks|thank you)(?: (?:in advance|a lot|so much|very much))?[.!]*$", _I)
_LEAD = re.compile(
    r"^(?:(?:here(?:'s| is) (?:a|the|my) )?(?:quick |short |simple )?question\s*[:.]"
    r"|q\s*:"
    r"|(?:please )?answer (?:the|this) (?:following )?(?:multiple[- ]choice )?question\s*[:.]"
    r"|(?:please|kindly),?\s"
    r"|(?:can|could|would|will) you (?:please |kindly )?(?:tell me|let me know)[,:]?\s"
    r"|(?:please )?(?:tell me|let me know)[,:]?\s"
    r"|i(?:'d| would) (?:like|love) to know[,:]?\s"
    r"|do you (?:happen to )?know[,:]?\s)\s*",
    _I | re.MULTILINE,
)
_LABEL = re.compile(r"(?:(?:the |your |final ){0,3}answer(?: is)?|\na)\s*:\s*$", _I)
_FORM = re.compile(
    r"(?:^|(?<=[.!?:;])[ ]|(?<=\n))(?:please )?(?:"
    r"(?:answer|reply|respond)(?: only| just)? (?:with|in|by|using|as)\b[^.?!\n]*"
    r"|(?:give|state|write|return|output|provide)(?: me)?(?: only| just)? (?:the|your|a) "
    r"(?:final |correct |right )?(?:answer|number|letter|name|word|result)(?: only| alone)?"
    r"|(?:choose|pick|select) (?:the |one )?(?:correct |right |best )?(?:answer|option|letter|choice)[^.?!\n]*"
    r"|think step by step[^.?!\n]*"
    r"|(?:do not|don't) explain[^.?!\n]*|no explanations?[^.?!\n]*|nothing else"
    r"|only (?:the|a) (?:answer|number|letter|name|word|result)(?:,? please)?"
    r")(?:[.!:]|$)",
    _I | re.MULTILINE,
)
_OPTIONS = re.compile(r"(?:^|\s)(?:options|choices)\s*:\s*", _I)
_LISTED = re.compile(r"^\s*\(?(?:[a-j]|\d{1,2})[.):]\)?\s+(?=\S)", _I | re.MULTILINE)
_IN_LINE = re.compile(r"(?<![\s,;])[ ,;]+(?=\(?[A-J][.)]\s)")
_FIRST = re.compile(r"(?:^|(?<=[?.!:])\s)\(?A[.)]\s")
_SECOND = re.compile(r"\s\(?B[.)]\s")
_FEWEST = 2
"""Lines that begin with a letter or number from which on these are options or a list."""


def canonical(text: str) -> str:
    """Return what is asked, without how it is asked; the text itself if nothing would be left, or if it is long."""
    if len(text) > LONGEST:
        return text
    plain = found = _lines(text)
    for _ in range(_ROUNDS):
        before = found
        for wrapping in (_GREETING, _THANKS, _LEAD, _LABEL, _FORM):
            found = wrapping.sub("", found).strip() or found
        if found == before:
            break
    found = _OPTIONS.sub("\n", found)
    if any(map(_options_in, found.splitlines())):
        found = _IN_LINE.sub("\n", found)
    if len(_LISTED.findall(found)) >= _FEWEST:
        found = _LISTED.sub("", found)
    found = _lines(found)
    if not found:
        return text
    # What stood after a lead-in begins like a sentence now.
    return found if found == plain else f"{found[0].upper()}{found[1:]}"


def _options_in(line: str) -> bool:
    """Whether the first two options stand in a line, which they begin, or where they follow the end of a sentence."""
    first = _FIRST.search(line)
    return first is not None and _SECOND.search(line, first.end() - 1) is not None


def _lines(text: str) -> str:
    """Return the lines that are not empty, with single spaces."""
    return "\n".join(line for line in (" ".join(line.split()) for line in text.splitlines()) if line)
