"""One routing decision: a pure function of the request, a snapshot of the engines and a policy.

Order of the rules: which models does the name allow, which of them can hold the prompt, which tier does the complexity
ask for, which replica of that tier is least loaded for its weight. If the tier cannot answer, the next one up does,
then those below. Where a tier has several replicas, `router/replica.py` puts them in the order in which they are tried.
A decision says why, serialises, and can be made again offline from the same arguments.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from router.complexity import Complexity
from router.replica import Score
from router.tier import TIERS as TIERS
from router.tier import TierChoice, ValueSource, sentences

AUTO = "auto"


class RouteCandidate(Struct, frozen=True, kw_only=True):
    """One engine replica as it was when the snapshot was taken."""

    replica: str
    tier: str
    model: str
    """Public name of its model."""
    context: int
    """Tokens of prompt and output that the replica can hold."""
    prompt_tokens: int
    """Tokens of this request's prompt in its model's tokenizer."""
    load: int
    """Predicted tokens that the replica still has to compute for others."""
    connected: bool = True
    tripped: bool = False
    """Whether its circuit breaker is open."""
    drained: bool = False
    """Whether an operator wants it to get no new requests."""
    full: bool = False
    """Whether its pool has as many turns as it may have."""
    weight: float = 1.0
    """Weight beside other replicas, above 0: one of weight 2 is given twice the load."""

    @property
    def pressure(self) -> float:
        """Load divided by weight, with this request counted, so that of idle replicas the heaviest comes first."""
        return (self.load + self.prompt_tokens) / self.weight


class ComingTier(Struct, frozen=True, kw_only=True):
    """A tier whose model this machine does not have: it is being fetched, or what is here cannot be used."""

    tier: str
    model: str
    """Public name of its model."""
    size: int = 0
    """Bytes of the model's file."""
    here: int = 0
    """Bytes of it that have come."""
    failed: bool = False
    """Whether it could not be fetched; it is tried again later."""
    unusable: bool = False
    """Whether its checkpoint cannot be used, until somebody mends it and starts again."""

    def __str__(self) -> str:
        """Say how far it is."""
        if self.unusable:
            return "is out of service: its checkpoint cannot be used"
        if self.failed:
            return "could not be fetched yet"
        if self.here >= self.size:
            return "is starting"
        return f"is coming: {100 * self.here // self.size} % of {self.size / 1e6:,.0f} MB"


class SleepingTier(Struct, frozen=True, kw_only=True):
    """A tier that has no engine now and gets one when turns wait for it."""

    tier: str
    model: str
    """Public name of its model."""
    context: int
    """Tokens of prompt and output that its model can hold."""
    prompt_tokens: int
    """Tokens of this request's prompt in its model's tokenizer."""
    waits: bool = True
    """Whether a request for `auto` that asks for it waits; else another tier stands in."""


class RouteRequest(Struct, frozen=True, kw_only=True):
    """The part of a request that the router reads."""

    model: str
    """`auto`, a tier or a model's public name."""
    adapter: str | None = None
    """Public name of an adapter of that model, if the request names one."""
    complexity: Complexity
    choice: TierChoice | None = None
    """The tier chosen for `auto`; None leaves it to the policy's thresholds of complexity."""
    output_tokens: int = 1
    """Output tokens that must fit beside the prompt."""


class RoutingPolicy(Struct, frozen=True, kw_only=True):
    """How `auto` picks a tier: thresholds of complexity, and what `router.tier` chooses by."""

    medium_from: float = 0.2
    large_from: float = 0.45
    quality: int = 50
    budget: float | None = None
    costs: tuple[float, ...] = ()
    delay_price: float = 0.0
    model: str = ""
    """Version of the model of success, if one is used."""
    by_complexity: bool = False
    escalate: bool = False
    escalate_hold: int = 0
    escalate_logprob: float | None = None

    def tier(self, complexity: float) -> str:
        if complexity >= self.large_from:
            return "large"
        return "medium" if complexity >= self.medium_from else "small"

    @property
    def digest(self) -> str:
        """A digest that changes whenever the policy may decide otherwise; part of the response cache's keys."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()


class RouteReason(enum.StrEnum):
    """Why a tier was chosen, in one word."""

    REQUESTED = "requested"
    COMPLEXITY = "complexity"
    LEARNT = "learnt"
    """The learnt model expects this tier to be worth its cost."""
    MIXTURE = "mixture"
    """Nothing is learnt of such requests: each tier gets a fixed share of them."""
    UNCERTAIN = "uncertain"
    """Neither the learnt model nor the complexity score knows such requests."""
    CONTEXT = "context"
    """The wanted tier cannot hold the prompt."""
    FALLBACK = "fallback"
    """The wanted tier is down, or its model is not here yet."""
    ESCALATED = "escalated"
    """The wanted tier has answered, and the answer looked bad."""
    WAKING = "waking"
    """The wanted tier sleeps, and the turn waits for an engine of it."""


class RouteDecision(Struct, frozen=True, kw_only=True):
    """The replica that a request goes to, and why."""

    tier: str
    model: str
    replica: str
    why: RouteReason
    complexity: float
    choice: TierChoice | None = None
    reasons: tuple[str, ...]
    """The grounds of the decision, in sentences for people."""
    fallbacks: tuple[str, ...]
    """Replicas to try next, in order, if this one fails before its first token."""
    scores: Mapping[str, Score] = {}
    """Scores of the replicas among which this one was chosen, by name; of many, those of the first in order."""
    scores_left_out: int = 0
    """Number of the others."""
    asleep: str = ""
    """The wanted tier, if it sleeps and another one stands in."""
    unavailable: Mapping[str, str] = {}
    """What keeps tiers from answering that a request for `auto` could have had, by tier."""


class TierAsleep(Exception):
    """The tier that is to answer sleeps: wait until it has an engine, then route again."""

    def __init__(self, tier: str) -> None:
        super().__init__(f"the {tier} tier is asleep")
        self.tier = tier


class Refusal(enum.Enum):
    """The kind of a refusal, where no engine can answer."""

    UNKNOWN_MODEL = "unknown_model"
    CONTEXT = "context"
    UNAVAILABLE = "unavailable"
    FULL = "full"
    """All pools that could answer have as many turns as they may have."""


class NoRoute(Exception):
    """No engine can answer; `refusal` says which kind of error that is for the client."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


def route(
    request: RouteRequest,
    candidates: Sequence[RouteCandidate],
    policy: RoutingPolicy,
    coming: Sequence[ComingTier] = (),
    asleep: Sequence[SleepingTier] = (),
) -> RouteDecision:
    """Choose a replica and the order of fallbacks.

    A model's own name is a promise: only its replicas may answer. `auto` and tier names may fall back.

    Args:
        coming: tiers that the request may name although their models are not here yet.
        asleep: tiers that sleep; `candidates` may have engines of them that are not connected.

    Raises:
        NoRoute: the name is unknown, the prompt fits nowhere, or nothing that could answer is up.
        TierAsleep: see there.
    """
    allowed, asleep = _allowed(request.model, candidates, coming, asleep)
    fitting, sleeping = _fitting(request, allowed), _fitting(request, asleep)
    if not (fitting or sleeping):
        raise _too_long(request, (*allowed, *asleep))
    wanted = _wanted_tier(request, policy, (*allowed, *asleep))
    usable = _usable(request, fitting, sleeping, wanted)
    order = sorted(usable, key=lambda c: (_distance(wanted, c.tier), c.pressure, c.replica))
    chosen = order[0]
    slept = any(each.tier == wanted for each in sleeping)
    awaited = any(each.tier == wanted for each in coming)
    why = _why(request, wanted, chosen, awaited or slept or any(c.tier == wanted for c in fitting))
    up = {c.tier for c in usable}
    offered = request.choice.offered if request.choice else ()
    return RouteDecision(
        tier=chosen.tier,
        model=chosen.model,
        replica=chosen.replica,
        why=why,
        complexity=request.complexity.score,
        choice=request.choice,
        reasons=_sentences(request, wanted, chosen, why, _state(wanted, fitting, sleeping, coming)),
        fallbacks=tuple(c.replica for c in order[1:]),
        asleep=wanted if slept and chosen.tier != wanted else "",
        unavailable={tier: _state(tier, fitting, sleeping, coming) for tier in offered if tier not in up},
    )


def _usable(
    request: RouteRequest, fitting: Sequence[RouteCandidate], sleeping: Sequence[SleepingTier], wanted: str
) -> list[RouteCandidate]:
    """Return the engines that can answer now, of those whose context is large enough.

    Raises:
        NoRoute, TierAsleep: see `route`.
    """
    if any(each.tier == wanted and (each.waits or request.model != AUTO) for each in sleeping):
        raise TierAsleep(wanted)
    # Safety net: if every breaker is open, engines that are connected are tried all the same.
    up = [c for c in fitting if c.connected and not c.drained]
    connected = [c for c in up if not c.full]
    usable = [c for c in connected if not c.tripped] or connected
    if usable:
        return usable
    if sleeping:
        raise TierAsleep(min(sleeping, key=lambda each: _distance(wanted, each.tier)).tier)
    if up:
        models = ", ".join(sorted({c.model for c in up}))
        raise NoRoute(Refusal.FULL, f"too many requests are being answered ({models}); try again later")
    models = ", ".join(sorted({c.model for c in fitting}))
    raise NoRoute(Refusal.UNAVAILABLE, f"no engine that could answer is up ({models}); try again in a few seconds")


def _state(
    tier: str, fitting: Sequence[RouteCandidate], sleeping: Sequence[SleepingTier], coming: Sequence[ComingTier]
) -> str:
    """Say what keeps a tier from answering."""
    awaited = next((each for each in coming if each.tier == tier), None)
    if awaited is not None:
        return str(awaited)
    if any(each.tier == tier for each in sleeping):
        return "is asleep"
    there = [each for each in fitting if each.tier == tier]
    if not there:
        return "cannot hold the prompt"
    return "is full" if any(each.full and each.connected for each in there) else "is not available"


_Place = TypeVar("_Place", RouteCandidate, SleepingTier)


def _fitting(request: RouteRequest, places: Sequence[_Place]) -> list[_Place]:
    return [each for each in places if each.prompt_tokens + request.output_tokens <= each.context]


def _too_long(request: RouteRequest, allowed: Sequence[RouteCandidate | SleepingTier]) -> NoRoute:
    largest = max(allowed, key=lambda c: (c.context, c.tier == request.model))
    asked = request.adapter or request.model
    # OpenAI's words, and the code once more: by these, LiteLLM and LangChain know this error from others.
    return NoRoute(
        Refusal.CONTEXT,
        f"This model's maximum context length is {largest.context} tokens ({asked}"
        f"{f', which is {largest.model}' if largest.model != asked else ''}). However, you requested "
        f"{largest.prompt_tokens + request.output_tokens} tokens: {largest.prompt_tokens} of input and at least "
        f"{request.output_tokens} of output. Shorten the input or lower the output limit "
        "(context_length_exceeded).",
    )


def _allowed(
    name: str,
    candidates: Sequence[RouteCandidate],
    coming: Sequence[ComingTier],
    asleep: Sequence[SleepingTier],
) -> tuple[list[RouteCandidate], list[SleepingTier]]:
    """Return the engines and the sleeping tiers that a name allows.

    Raises:
        NoRoute: there are none.
    """
    known = {c.model for c in candidates} | {each.model for each in asleep}
    if name in known:
        return [c for c in candidates if c.model == name], [each for each in asleep if each.model == name]
    tiers = {c.tier for c in candidates} | {each.tier for each in asleep} | {each.tier for each in coming}
    if name == AUTO or (name in TIERS and name in tiers):
        if candidates or asleep:
            return list(candidates), list(asleep)
        raise NoRoute(Refusal.UNAVAILABLE, "no engine is configured")
    for each in coming:
        if name == each.model:
            raise NoRoute(Refusal.UNAVAILABLE, f"the model '{name}' {each}; until it answers, ask for '{AUTO}'")
    names = ", ".join([AUTO, *(t for t in TIERS if t in tiers), *sorted(known)])
    raise NoRoute(Refusal.UNKNOWN_MODEL, f"the model '{name}' does not exist; available: {names}")


def _wanted_tier(request: RouteRequest, policy: RoutingPolicy, allowed: Sequence[RouteCandidate | SleepingTier]) -> str:
    if request.model == AUTO:
        return request.choice.tier if request.choice else policy.tier(request.complexity.score)
    return request.model if request.model in TIERS else allowed[0].tier


def _distance(wanted: str, tier: str) -> int:
    """0 for the tier wanted, then the next ones up, then those below, nearest first."""
    step = TIERS.index(tier) - TIERS.index(wanted)
    return step if step >= 0 else len(TIERS) - step


def _why(request: RouteRequest, wanted: str, chosen: RouteCandidate, fits: bool) -> RouteReason:
    """Args: fits: whether the wanted tier can hold the prompt, as far as that is known."""
    if chosen.tier == wanted:
        if request.model != AUTO:
            return RouteReason.REQUESTED
        return _SOURCES[request.choice.outlook.source] if request.choice else RouteReason.COMPLEXITY
    return RouteReason.FALLBACK if fits else RouteReason.CONTEXT


_SOURCES = {
    ValueSource.LEARNT: RouteReason.LEARNT,
    ValueSource.MIXTURE: RouteReason.MIXTURE,
    ValueSource.COMPLEXITY: RouteReason.COMPLEXITY,
    ValueSource.UNCERTAIN: RouteReason.UNCERTAIN,
}


def _sentences(
    request: RouteRequest, wanted: str, chosen: RouteCandidate, why: RouteReason, state: str
) -> tuple[str, ...]:
    """Args: state: of the wanted tier, if another one stands in."""
    if request.model == AUTO:
        score = request.complexity.score
        chosen_by = request.choice
        grounds = list(sentences(chosen_by)) if chosen_by else [f"complexity {score:.2f} asks for the {wanted} tier"]
        if chosen_by is None or chosen_by.outlook.source is ValueSource.COMPLEXITY:
            grounds += [f"{reason.sentence} (+{reason.contribution:.2f})" for reason in request.complexity.reasons[:3]]
    else:
        grounds = [f"the request names {request.adapter or request.model}"]
        if request.adapter:
            grounds.append(f"it is an adapter of {request.model}")
    if why is RouteReason.FALLBACK:
        grounds.append(f"the {wanted} tier {state}, the {chosen.tier} tier stands in")
    if why is RouteReason.CONTEXT:
        grounds.append(f"the prompt does not fit the {wanted} tier's context")
    return tuple(grounds)
