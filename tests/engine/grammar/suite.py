"""The JSON-Schema-Test-Suite against the grammar engine, and the table of docs/structured-output.md that comes of it.

`python -m tests.engine.grammar.suite` writes the table anew. The suite's part for draft 2020-12 is in
`json_schema_test_suite/`, with its licence, as the source distribution of the `jsonschema` package (4.26) carries it.

A schema is either refused or compiled. If it compiles, each valid instance must be accepted, as compact JSON and
indented, with its properties in some order (an answer has them in the schema's), and each invalid one rejected, in any
order and however it is spelled: with whitespace, with escapes in names and strings, with whole numbers as decimals.
"""

from __future__ import annotations

import itertools
import json
import re
import textwrap
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from llguidance import LLMatcher

from engine.request import RequestError
from tests.engine.grammar.schemas import accepts, compiled

_ARCHIVE = Path(__file__).parent / "json_schema_test_suite" / "draft2020-12.zip"
_PAGE = Path(__file__).parents[3] / "docs" / "structured-output.md"
_BEGIN, _END = "<!-- begin: JSON-Schema-Test-Suite -->", "<!-- end: JSON-Schema-Test-Suite -->"
_MOST_ORDERS = 100
_WHOLE_NUMBER = re.compile(r'(?<![\w".])(-?\d+)(?![\w".])')

UNDER = {
    ("optional/ecmascript-regex", "zero-width whitespace does not match"): "`\\S` matches U+FEFF, as in most languages",
    **{
        (f"optional/format/{format}", test): why
        for format, why, tests in [
            (
                "date",
                "February has 29 days in every year",
                ["a invalid date string with 29 days in February (normal)", "2021 is not a leap year"],
            ),
            (
                "date-time",
                "second 60 is allowed at any time",
                [
                    "an invalid date-time with leap second on a wrong minute, UTC",
                    "an invalid date-time with leap second on a wrong hour, UTC",
                ],
            ),
            (
                "time",
                "second 60 is allowed at any time",
                [
                    "invalid leap second, Zulu (wrong hour)",
                    "invalid leap second, Zulu (wrong minute)",
                    "invalid leap second, zero time-offset (wrong hour)",
                    "invalid leap second, zero time-offset (wrong minute)",
                    "invalid leap second, positive time-offset (wrong hour)",
                    "invalid leap second, positive time-offset (wrong minute)",
                    "invalid leap second, negative time-offset (wrong hour)",
                    "invalid leap second, negative time-offset (wrong minute)",
                    "an invalid time string with invalid leap second (wrong hour)",
                    "an invalid time string with invalid leap second (wrong minute)",
                ],
            ),
        ]
        for test in tests
    },
}
"""Tests whose invalid instances are let through, and why: nothing else may be."""


@dataclass
class Outcome:
    """Results of one file of the suite."""

    compiled: int = 0
    refused: int = 0
    accepted: int = 0
    rejected: int = 0
    over: list[tuple[str, str]] = field(default_factory=list)
    """Valid instances that are rejected: (schema, test)."""
    under: list[str] = field(default_factory=list)
    """Invalid instances that are accepted."""


@cache
def files() -> tuple[str, ...]:
    """Names of the suite's files, without ending."""
    with zipfile.ZipFile(_ARCHIVE) as archive:
        names = (name.removesuffix(".json") for name in archive.namelist() if name.endswith(".json"))
        return tuple(sorted(names, key=lambda name: (name.count("/"), name)))


@cache
def outcome(name: str) -> Outcome:
    """Run one file."""
    with zipfile.ZipFile(_ARCHIVE) as archive:
        groups = json.loads(archive.read(f"{name}.json"))
    result = Outcome()
    for group in groups:
        matcher = _compiled(group["schema"])
        if matcher is None:
            result.refused += 1
            continue
        result.compiled += 1
        for test in group["tests"]:
            if test["valid"]:
                if any(all(accepts(matcher, text) for text in _plain(order)) for order in _orders(test["data"])):
                    result.accepted += 1
                else:
                    result.over.append((group["description"], test["description"]))
            elif any(accepts(matcher, text) for order in _orders(test["data"]) for text in _spellings(order)):
                result.under.append(test["description"])
            else:
                result.rejected += 1
    return result


def _compiled(schema: Any) -> LLMatcher | None:
    try:
        matcher = compiled(schema)
    except RequestError:
        return None
    return None if matcher.is_error() or matcher.get_grammar_warnings() else matcher


def _orders(value: Any) -> Iterator[Any]:
    """The value with the properties of its objects in every order."""
    return itertools.islice(_reordered(value), _MOST_ORDERS)


def _reordered(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for values in itertools.product(*([*_orders(value[name])] for name in names)):
                yield dict(zip(names, values, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*([*_orders(item)] for item in value)))
    else:
        yield value


def _plain(value: Any) -> list[str]:
    return [
        json.dumps(value, separators=(",", ":"), ensure_ascii=False),
        json.dumps(value, indent=1, ensure_ascii=False),
    ]


def _spellings(value: Any) -> Iterable[str]:
    compact, indented = _plain(value)
    yield from (compact, indented, json.dumps(value))
    yield _WHOLE_NUMBER.sub(r"\1.0", compact)
    yield _WHOLE_NUMBER.sub(r"\1e0", compact)
    yield re.sub(r'"(\w)', lambda first: f'"\\u{ord(first[1]):04x}', compact)


def table() -> str:
    """Return the table of what is supported, file by file, and of every known difference, in Markdown."""
    lines = [
        "| keyword | schemas | refused | valid instances accepted | invalid instances rejected |",
        "|---|---|---|---|---|",
    ]
    over, under = [], []
    for name in files():
        found = outcome(name)
        valid, invalid = found.accepted + len(found.over), found.rejected + len(found.under)
        cells = [f"{found.accepted} of {valid}" if valid else "", f"{found.rejected} of {invalid}" if invalid else ""]
        title = name
        lines.append(f"| {title} | {found.compiled + found.refused} | {found.refused or ''} | {' | '.join(cells)} |")
        if found.over:
            what = "; ".join(dict.fromkeys(f"{schema}: {test}" for schema, test in found.over))
            over.append(_item(f"{title}: {what}"))
        reasons: dict[str, list[str]] = {}
        for test in found.under:
            reasons.setdefault(UNDER[name, test], []).append(test)
        under += [_item(f"{title}: {why} ({'; '.join(tests)})") for why, tests in reasons.items()]
    return "\n".join(
        [
            *lines,
            "",
            "Invalid instances that are let through:",
            "",
            *under,
            "",
            "Valid instances that cannot be generated:",
            "",
            *over,
        ]
    )


def _item(text: str) -> str:
    """Return an item of a Markdown list, wrapped at the width of prose."""
    return textwrap.fill(f"- {text}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def in_page() -> str:
    """The table as the page has it."""
    return _PAGE.read_text("utf-8").split(_BEGIN)[1].split(_END)[0].strip()


def _write() -> None:
    before, rest = _PAGE.read_text("utf-8").split(_BEGIN)
    _PAGE.write_text(f"{before}{_BEGIN}\n{table()}\n{_END}{rest.split(_END)[1]}", "utf-8")


if __name__ == "__main__":
    _write()
