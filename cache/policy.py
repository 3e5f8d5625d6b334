"""Which requests may be answered from the response cache, and which answers may be stored. Pure.

The rule in one sentence: only an answer that a fresh run would repeat, that came whole from the model that the router
wanted, and that the client does not mind being stored.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Bypass(enum.StrEnum):
    """Why the cache was not asked, or an answer not stored; the word is a counter's name in the statistics."""

    DISABLED = "disabled"
    NO_STORE = "no_store"
    """The client opted out."""
    RANDOM = "random"
    """Temperature above 0 without a seed."""
    LOGPROBS = "logprobs"
    """Log-probabilities are not stored."""
    WARM_UP = "warm_up"
    """Nothing was generated."""
    TOOLS = "tools"
    """It calls functions, or goes by what one has returned."""
    UNFINISHED = "unfinished"
    """Cut off, cancelled or failed."""
    INVALID = "invalid"
    """It does not keep to the format that the client asked for."""
    FALLBACK = "fallback"
    """Another tier than the wanted one stood in."""
    TOO_LARGE = "too_large"


class Question(Struct, frozen=True, kw_only=True):
    """What the policy must know of a request."""

    deterministic: bool
    no_store: bool = False
    logprobs: bool = False
    generate: bool = True
    outputs: bool = False
    """It goes on from what functions have returned."""


class Answer(Struct, frozen=True, kw_only=True):
    """What the policy must know of an answer."""

    finished: bool
    """It ended of itself: by a stop token or stop string."""
    fallback: bool
    calls: bool = False
    """It calls functions."""
    valid: bool = True
    """It keeps to the output format that was asked for, if one was."""
    size: int
    """Bytes of its text in UTF-8."""


def may_look_up(question: Question, *, enabled: bool = True) -> Bypass | None:
    """None if the cache may be asked for this request (and its answer perhaps stored), else the reason why not."""
    if not enabled:
        return Bypass.DISABLED
    if question.no_store:
        return Bypass.NO_STORE
    if not question.generate:
        return Bypass.WARM_UP
    if question.logprobs:
        return Bypass.LOGPROBS
    if question.outputs:
        return Bypass.TOOLS
    return None if question.deterministic else Bypass.RANDOM


def may_store(answer: Answer, *, max_bytes: int) -> Bypass | None:
    """None if the answer to a request that was looked up may be stored, else the reason why not."""
    if not answer.finished:
        return Bypass.UNFINISHED
    if answer.calls:
        return Bypass.TOOLS
    if not answer.valid:
        return Bypass.INVALID
    if answer.fallback:
        return Bypass.FALLBACK
    return Bypass.TOO_LARGE if answer.size > max_bytes else None
