"""Everyday questions with three kinds of answers."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec


class EverydayQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question that anybody may ask, with answers in three voices."""

    ask: str
    plain: str
    pirate: str
    socrates: str


class _Questions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    questions: list[EverydayQuestion]


@cache
def everyday_questions() -> list[EverydayQuestion]:
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return msgspec.convert(read, _Questions).questions
