"""Which requests may be answered from the response cache, for whom, and which answers may be stored. Pure.

The rule in one sentence: only an answer that a fresh run would repeat, that came whole from the model that the router
wanted, that says the same tomorrow, and that the client does not mind being stored.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Bypass(enum.StrEnum):
    """Why the cache was not asked; the word is a counter's name in the statistics."""

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
    """It goes on from what a function has returned."""
    RANDOM = "random"
    """Temperature above 0 without a seed."""
    CHANCE = "chance"
    """It asks for something else every time."""
    TIME = "time"
    """What is right depends on when it is asked."""
    TRIAL = "trial"
    """Models are compared under the name that it asks for: answers that cannot fail would tell nothing of them."""


class Reject(enum.StrEnum):
    """Why an answer was not stored; the word is a counter's name in the statistics."""

    UNFINISHED = "unfinished"
    """Cut off, cancelled or failed."""
    BLOCKED = "blocked"
    """A safety rule has ended it."""
    TOOLS = "tools"
    """It calls functions."""
    INVALID = "invalid"
    """It does not keep to the format that the client asked for."""
    REFUSAL = "refusal"
    """The model declines to answer."""
    FALLBACK = "fallback"
    """Another tier than the wanted one stood in."""
    CANARY = "canary"
    """A model on trial gave it."""
    PERSONAL = "personal"
    """It would be shared among users, and holds personal data."""
    TOO_LARGE = "too_large"
    OUTDATED = "outdated"
    """It was invalidated or deleted while it was made."""
    UNAVAILABLE = "unavailable"
    """Redis did not answer."""


class Scope(enum.StrEnum):
    """Who may be given a stored answer."""

    USER = "user"
    """Whoever asked first: the user, or the API key where no user is known."""
    TENANT = "tenant"
    """Everybody of the tenant."""


class RequestTraits(Struct, frozen=True, kw_only=True):
    """What the policy must know of a request."""

    deterministic: bool
    no_store: bool = False
    logprobs: bool = False
    generate: bool = True
    several: bool = False
    outputs: bool = False
    """It goes on from what functions have returned."""
    chance: bool = False
    """See `cache.wording`."""
    time: bool = False
    """See `cache.wording`."""
    trial: bool = False


class AnswerTraits(Struct, frozen=True, kw_only=True):
    """What the policy must know of an answer."""

    finished: bool
    """It ended of itself: by a stop token or stop string."""
    blocked: bool = False
    calls: bool = False
    """It calls functions."""
    valid: bool = True
    """It keeps to the output format that was asked for, if one was."""
    refusal: bool = False
    """See `cache.wording`."""
    fallback: bool
    canary: bool = False
    personal: bool = False
    """Personal data was found in the question or in it."""
    scope: Scope = Scope.USER
    size: int
    """Bytes of what would be stored."""


def may_look_up(question: RequestTraits, *, enabled: bool = True) -> Bypass | None:
    """None if the cache may be asked for this request (and its answer perhaps stored), else the reason why not."""
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
    """None if the answer to a request that was looked up may be stored, else the reason why not."""
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
    """Who may be given the answer to a request. What is personal is never shared, whatever is configured."""
    return Scope.USER if personal else configured
