"""Graders of answers: right or not. Pure; nothing of an answer is executed.

Graders are lenient about what surrounds an answer (a sentence, a code fence, bold type) and strict about the answer. An
answer that states two different things is wrong.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

import re2
from msgspec import Meta, Struct

_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[-\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\d])|(?<![\w.])[-\u2212]?\.\d+")
_SURROGATES = re.compile("[\ud800-\udfff]")
_LONGEST = 20_000
"""Characters of an answer that are graded."""


class Number(Struct, frozen=True, tag="number", tag_field="by", forbid_unknown_fields=True):
    """The number that the answer comes to."""

    expected: Decimal
    tolerance: Decimal = Decimal(0)


class Choice(Struct, frozen=True, tag="choice", tag_field="by", forbid_unknown_fields=True):
    """The letter that the answer states as its choice."""

    expected: Annotated[str, Meta(pattern="^[A-Z]$")]
    letters: Annotated[str, Meta(pattern="^[A-Z]{2,}$")] = "ABCD"
    """Letters of the options."""


class Regex(Struct, frozen=True, tag="regex", tag_field="by", forbid_unknown_fields=True):
    """A regular expression of RE2, found anywhere in the answer."""

    pattern: str


class Contains(Struct, frozen=True, tag="contains", tag_field="by", forbid_unknown_fields=True):
    """Words that the answer has, in any case and as whole words."""

    words: Annotated[tuple[str | tuple[str, ...], ...], Meta(min_length=1)]
    """All of them; of a list of spellings one."""
    none: tuple[str, ...] = ()
    """Words that the answer does not have."""


class Json(Struct, frozen=True, tag="json", tag_field="by", forbid_unknown_fields=True):
    """A JSON value that the answer is equal to."""

    expected: Any


class Code(Struct, frozen=True, tag="code", tag_field="by", forbid_unknown_fields=True):
    """Python code that is one of these but for names of its own, comments and annotations. Nothing is executed."""

    accepted: Annotated[tuple[str, ...], Meta(min_length=1)]


Grader = Number | Choice | Regex | Contains | Json | Code


def right(grader: Grader, answer: str) -> bool:
    """Say whether an answer is right."""
    text = _SURROGATES.sub("\ufffd", answer[:_LONGEST])
    match grader:
        case Number():
            found = stated_number(text)
            return found is not None and abs(found - grader.expected) <= grader.tolerance
        case Choice():
            return stated_choice(text, grader.letters) == grader.expected
        case Regex():
            return any(_compiled(grader.pattern).search(part) for part in {text, unfenced(text)})
        case Contains():
            spellings = [(each,) if isinstance(each, str) else each for each in grader.words]
            there = all(any(_has(text, word) for word in words) for words in spellings)
            return there and not any(_has(text, word) for word in grader.none)
        case Json():
            try:
                return same(stated_json(text), grader.expected)
            except ValueError:
                return False
        case Code():
            wanted = [_plain_code(each) for each in grader.accepted]
            # Examples of its use may follow what was asked for.
            shown = [_plain_code(part) or () for part in {text, unfenced(text)}]
            return any(part[: len(each)] == each for part in shown for each in wanted if each and part)


def check(grader: Grader) -> None:
    """
    Raises:
        ValueError: no answer could be graded by it.
    """
    match grader:
        case Regex():
            _compiled(grader.pattern)
        case Choice() if grader.expected not in grader.letters:
            raise ValueError(f"expected is {grader.expected}, which is none of the letters {grader.letters}")
        case Contains() if not all(
            each for words in grader.words for each in ([words] if isinstance(words, str) else words)
        ):
            raise ValueError("one of the words is empty")
        case Code():
            for each in grader.accepted:
                if _plain_code(each) is None:
                    raise ValueError(f"this is no Python: {each!r}")
        case _:
            pass


def stated_number(text: str) -> Decimal | None:
    """Return the number that a text comes to: a boxed one, what follows the last `answer`, a first line that is only a
    number, else the last number; None if there is none."""
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    told = re.findall(rf"(?i)\banswer\b[^\d\n]{{0,40}}?({_NUMBER.pattern})", text)
    first = text.strip().partition("\n")[0]
    alone = [first] if len(_NUMBER.findall(first)) == 1 and not re.search(r"[^\W\d_]{4}", first) else []
    for part in (*boxed[-1:], *told[-1:], *alone, text):
        if found := _NUMBER.findall(part):
            return Decimal(found[-1].replace(",", "").replace("\u2212", "-"))
    return None


def stated_choice(text: str, letters: str) -> str | None:
    """Return the letter that a text states as its choice; None if there is none, or several.

    A letter is stated where it stands alone, in brackets or before a full stop, colon or bracket. After `answer is` it
    may stand before a word, too, unless it may be the article.
    """
    plain = re.sub(r"[*_`$]|\\(?:boxed|text)\b|[{}]", "", text).strip()
    plain = re.sub(r"[^\S\n]+", " ", re.sub(r"\s*\n\s*", "\n", plain))
    if len(plain) == 1 and plain.upper() in letters:
        return plain.upper()
    letter = f"[{letters}]"
    ends = r"(?=\s*$|\s*[.,;:)\]\n]|\s+(?:because|since|as|which)\b)"
    begins = r"\b(?:answer|option|choice|statement)\b(?:\s+(?:is|would be|should be|letter|option))*\s*:?\s*[(\[]?"
    told = re.findall(rf"(?i:{begins})({letter}){ends}", plain, re.MULTILINE)
    told += re.findall(rf"(?i:{begins})({letter.replace('A', '')})\b", plain) if len(letters) > 1 else []
    if told:
        return str(told[-1]) if len(set(told)) == 1 else None
    stated = set(re.findall(rf"(?<![\w'])[(\[]?({letter})(?:\s*[.,;:)\]]|\s*$)", plain, re.MULTILINE))
    return str(stated.pop()) if len(stated) == 1 else None


def stated_json(text: str) -> Any:
    """Return the JSON value of a text: all of it, its first code block, or what its first bracket begins.

    Raises:
        ValueError: there is none.
    """
    whole = unfenced(text).strip()
    start = min((at for at in (whole.find("{"), whole.find("[")) if at >= 0), default=0)
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    for part in (whole, whole[start:]):
        try:
            return decoder.raw_decode(part)[0] if part is not whole else decoder.decode(part)
        except (ValueError, RecursionError):
            continue
    raise ValueError("no JSON")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def same(one: Any, other: Any) -> bool:
    """Compare JSON values: 1 is 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def unfenced(text: str) -> str:
    """Return the content of a text's first code block, or of the backquotes around all of it; else the text itself."""
    found = _FENCE.search(text)
    return found[1] if found else text.strip().strip("`")


def _has(text: str, word: str) -> bool:
    """Whether a text has a word, or several, without letters or digits right before or after."""
    words = r"\s+".join(map(re.escape, word.casefold().split()))
    return re.search(rf"(?<!\w){words}(?!\w)", text.casefold()) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else error
        raise ValueError(
            f"RE2 cannot compile {pattern!r}: {said.decode() if isinstance(said, bytes) else said}"
        ) from None


class _Renamed(ast.NodeTransformer):
    """Replaces names that the code binds itself by their order, and leaves out docstrings and annotations."""

    def __init__(self, bound: frozenset[str]) -> None:
        self._bound = bound
        self._names: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"name{len(self._names)}") if name in self._bound else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._name(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._name(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        plain: ast.AST = self.visit(ast.Assign([node.target], node.value))
        return plain


def _plain_code(source: str) -> tuple[str, ...] | None:
    """Return the statements of Python code in a form that does not depend on how it names what it binds.

    None: it is no Python. An assignment to one name counts as its expression, `print` of one as that.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(source.strip())
        bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        return tuple(ast.dump(_Renamed(frozenset(bound)).visit(_bare(statement))) for statement in tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _bare(statement: ast.stmt) -> ast.stmt:
    """Return the expression of a statement that only shows or names it."""
    match statement:
        case ast.Assign(targets=[ast.Name()], value=ast.expr() as value):
            return ast.Expr(value)
        case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
            return ast.Expr(value)
        case ast.Expr(value=ast.Call(func=ast.Name("print"), args=[value], keywords=[])):
            return ast.Expr(value)
    return statement
