"""Decides which requests may be answered from the response cache, for whom, and which answers may be stored. Pure.

The rule in one sentence: only an answer that a fresh run would repeat, that came whole from the model that the router
wanted, that says the same tomorrow, and that the client does not mind being stored.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Bypass(enum.StrEnum):
    """Why the cache was not asked. The value is a counter's name in the statistics."""

    DISABLED = "disabled"
    NO_STORE = "no_store"
    """The client opted out."""
    WARM_UP = "warm_up"
    """Nothing is generated."""
    LOGPROBS = "logprobs"
    """Log-probabilities are not stored."""
    SEVERAL = "several"
    """Several answers to one prompt are asked for: they are meant to differ."""
    TOOLS = "tools"
    """The request continues from what a function has returned."""
    RANDOM = "random"
    """The temperature is above 0 and there is no seed."""
    CHANCE = "chance"
    """The request wants a different answer every time."""
    TIME = "time"
    """The right answer depends on the time of asking."""
    TRIAL = "trial"
    """The requested name compares models, and answers that cannot fail would tell nothing of them."""


class Reject(enum.StrEnum):
    """Why an answer was not stored. The value is a counter's name in the statistics."""

    UNFINISHED = "unfinished"
    """The answer was cut off, cancelled or failed."""
    BLOCKED = "blocked"
    """A safety rule has ended the answer."""
    TOOLS = "tools"
    """The answer calls functions."""
    INVALID = "invalid"
    """The answer is not in the requested format."""
    REFUSAL = "refusal"
    """The model declines to answer."""
    FALLBACK = "fallback"
    """Another tier than the wanted one has answered."""
    CANARY = "canary"
    """A model on trial has answered."""
    PERSONAL = "personal"
    """The answer would be shared among users, and holds personal data."""
    TOO_LARGE = "too_large"
    OUTDATED = "outdated"
    """The answer was invalidated or deleted while it was made."""
    UNAVAILABLE = "unavailable"
    """Redis did not answer."""


class Scope(enum.StrEnum):
    """Who may be given a stored answer."""

    USER = "user"
    """The user who asked first; the API key where no user is known."""
    TENANT = "tenant"
    """Everybody of the tenant."""


class RequestTraits(Struct, frozen=True, kw_only=True):
    """The traits of a request that the policy reads."""

    deterministic: bool
    no_store: bool = False
    logprobs: bool = False
    generate: bool = True
    several: bool = False
    outputs: bool = False
    """Whether the request continues from what functions have returned."""
    chance: bool = False
    """Whether a different answer is wanted every time; see `cache.wording`."""
    time: bool = False
    """Whether the right answer depends on the time; see `cache.wording`."""
    trial: bool = False


class AnswerTraits(Struct, frozen=True, kw_only=True):
    """The traits of an answer that the policy reads."""

    finished: bool
    """Whether the answer ended of itself: by a stop token or stop string."""
    blocked: bool = False
    calls: bool = False
    """Whether the answer calls functions."""
    valid: bool = True
    """Whether the answer is in the requested format; true if none was requested."""
    refusal: bool = False
    """Whether the model declines to answer; see `cache.wording`."""
    fallback: bool
    canary: bool = False
    personal: bool = False
    """Whether personal data was found in the question or in the answer."""
    scope: Scope = Scope.USER
    size: int
    """Bytes that would be stored."""


def may_look_up(question: RequestTraits, *, enabled: bool = True) -> Bypass | None:
    """Return None if the cache may be asked for this request (and its answer perhaps stored), else the reason why
    not."""
    if not enabled:
        return Bypass.DISABLED
    obstacles = (
        (question.no_store, Bypass.NO_STORE),
        (not question.generate, Bypass.WARM_UP),
        (question.logprobs, Bypass.LOGPROBS),
        (question.several, Bypass.SEVERAL),
        (question.outputs, Bypass.TOOLS),
        (not question.deterministic, Bypass.RANDOM),
        (question.chance, Bypass.CHANCE),
        (question.time, Bypass.TIME),
        (question.trial, Bypass.TRIAL),
    )
    return next((reason for stands, reason in obstacles if stands), None)


def may_store(answer: AnswerTraits, *, max_bytes: int) -> Reject | None:
    """Return None if the answer to a request that was looked up may be stored, else the reason why not."""
    obstacles = (
        (answer.blocked, Reject.BLOCKED),
        (not answer.finished, Reject.UNFINISHED),
        (answer.calls, Reject.TOOLS),
        (not answer.valid, Reject.INVALID),
        (answer.fallback, Reject.FALLBACK),
        (answer.canary, Reject.CANARY),
        (answer.refusal, Reject.REFUSAL),
        (answer.personal and answer.scope is not Scope.USER, Reject.PERSONAL),
        (answer.size > max_bytes, Reject.TOO_LARGE),
    )
    return next((reason for stands, reason in obstacles if stands), None)


def scope_of(configured: Scope, *, personal: bool) -> Scope:
    """Return who may be given the answer to a request. Personal answers are never shared, whatever is configured."""
    return Scope.USER if personal else configured
