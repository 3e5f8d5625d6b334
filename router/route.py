"""One routing decision: a pure function of the request, a snapshot of the engines and a policy.

Order of the rules: which models does the name allow, which of them can hold the prompt, which tier does the complexity
ask for, which of the tier's pools does the conversation belong to (`router/sharing.py`), which of its replicas is least
loaded for its weight. If that pool cannot answer, the tier's next one does; if the tier cannot, the next one up does,
then those below. Where a pool has several replicas, `router/replica.py` puts them in the order in which they are tried.
A decision says why, serialises, and can be made again offline from the same arguments.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from router.candidates import ComingTier as ComingTier
from router.candidates import RouteCandidate as RouteCandidate
from router.candidates import SleepingTier as SleepingTier
from router.complexity import Complexity
from router.replica import Score
from router.tier import TIERS as TIERS
from router.tier import TierChoice, ValueSource, sentences

AUTO = "auto"


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
    unsuited: Mapping[str, str] = {}
    """Field of the request that the servers of a model lack, for models that cannot be asked this, by name."""


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
    UNSUITED = "unsuited"
    """The wanted tier's servers lack what the request asks for."""
    FALLBACK = "fallback"
    """The wanted tier is down, or its model is not here yet."""
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
    """The wanted tier, if its pool sleeps and another one stands in."""
    unavailable: Mapping[str, str] = {}
    """What keeps tiers from answering that a request for `auto` could have had, by tier."""


class TierAsleep(Exception):
    """The tier that is to answer sleeps: wait until it has an engine, then route again."""

    def __init__(self, pool: SleepingTier) -> None:
        super().__init__(f"the {pool.tier} tier is asleep")
        self.tier = pool.tier
        self.model = pool.model
        """Public name of the model of the pool that is waited for."""


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
        raise _nowhere(request, (*allowed, *asleep))
    wanted = _wanted_tier(request, policy, (*allowed, *asleep))
    usable = _usable(request, fitting, sleeping, wanted)
    order = sorted(usable, key=lambda c: (_distance(wanted, c.tier), c.rank, c.pressure, c.replica))
    chosen = order[0]
    slept = any(each.tier == wanted and (chosen.tier != wanted or each.rank < chosen.rank) for each in sleeping)
    awaited = any(each.tier == wanted for each in coming)
    own = _first(wanted, (*sleeping, *fitting))
    lacking = {each.tier: request.unsuited[each.model] for each in allowed if each.model in request.unsuited}
    why = _why(request, wanted, chosen, own, awaited=awaited, lacking=lacking)
    up = {c.tier for c in usable}
    offered = request.choice.offered if request.choice else ()
    return RouteDecision(
        tier=chosen.tier,
        model=chosen.model,
        replica=chosen.replica,
        why=why,
        complexity=request.complexity.score,
        choice=request.choice,
        reasons=(
            *_sentences(request, wanted, chosen, why, _state(wanted, fitting, sleeping, coming, lacking)),
            *_shared(request, wanted, chosen, own, (*allowed, *asleep)),
        ),
        fallbacks=tuple(c.replica for c in order[1:]),
        asleep=wanted if slept else "",
        unavailable={tier: _state(tier, fitting, sleeping, coming, lacking) for tier in offered if tier not in up},
    )


def _usable(
    request: RouteRequest, fitting: Sequence[RouteCandidate], sleeping: Sequence[SleepingTier], wanted: str
) -> list[RouteCandidate]:
    """Return the engines that can answer now, of those whose context is large enough.

    Raises:
        NoRoute, TierAsleep: see `route`.
    """
    # Safety net: if every breaker is open, engines that are connected are tried all the same.
    up = [c for c in fitting if c.connected and not c.drained]
    connected = [c for c in up if not c.full]
    usable = [c for c in connected if not c.tripped] or connected
    awaited = [each for each in sleeping if each.tier == wanted and (each.waits or request.model != AUTO)]
    if awaited and not any(c.tier == wanted for c in usable):
        raise TierAsleep(min(awaited, key=lambda each: each.rank))
    if usable:
        return usable
    if sleeping:
        raise TierAsleep(min(sleeping, key=lambda each: (_distance(wanted, each.tier), each.rank)))
    if up:
        models = ", ".join(sorted({c.model for c in up}))
        raise NoRoute(Refusal.FULL, f"too many requests are being answered ({models}); try again later")
    models = ", ".join(sorted({c.model for c in fitting}))
    raise NoRoute(Refusal.UNAVAILABLE, f"no engine that could answer is up ({models}); try again in a few seconds")


def _state(
    tier: str,
    fitting: Sequence[RouteCandidate],
    sleeping: Sequence[SleepingTier],
    coming: Sequence[ComingTier],
    lacking: Mapping[str, str],
) -> str:
    """Say what keeps a tier from answering. Args: lacking: see `_why`."""
    awaited = next((each for each in coming if each.tier == tier), None)
    if awaited is not None:
        return str(awaited)
    if any(each.tier == tier for each in sleeping):
        return "is asleep"
    there = [each for each in fitting if each.tier == tier]
    return _unsuited(lacking[tier]) if tier in lacking and not there else _why_not(there)


def _unsuited(field: str) -> str:
    return f"cannot do what {field} asks for"


def _why_not(there: Sequence[RouteCandidate]) -> str:
    if not there:
        return "cannot hold the prompt"
    return "is full" if any(each.full and each.connected for each in there) else "is not available"


def _first(tier: str, places: Sequence[RouteCandidate | SleepingTier]) -> RouteCandidate | SleepingTier | None:
    """Return one of the places that a request for the tier asks first; None if the tier has none."""
    return min((each for each in places if each.tier == tier), key=lambda each: each.rank, default=None)


_Place = TypeVar("_Place", RouteCandidate, SleepingTier)


def _fitting(request: RouteRequest, places: Sequence[_Place]) -> list[_Place]:
    suited = [each for each in places if each.model not in request.unsuited]
    return [each for each in suited if each.prompt_tokens + request.output_tokens <= each.context]


def _nowhere(request: RouteRequest, allowed: Sequence[RouteCandidate | SleepingTier]) -> NoRoute:
    """Say why none of these can answer: the prompt is too long for them, or they cannot do what is asked for."""
    suited = [each for each in allowed if each.model not in request.unsuited]
    if not suited:
        field = request.unsuited[allowed[0].model]
        message = f"no engine that can do what {field} asks for is up; try again in a few seconds"
        return NoRoute(Refusal.UNAVAILABLE, message)
    largest = max(suited, key=lambda c: (c.context, c.tier == request.model))
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


def _why(
    request: RouteRequest,
    wanted: str,
    chosen: RouteCandidate,
    own: RouteCandidate | SleepingTier | None,
    *,
    awaited: bool,
    lacking: Mapping[str, str],
) -> RouteReason:
    """
    Args:
        own: of the wanted tier's places that can hold the prompt, the one that is asked first.
        awaited: whether the wanted tier is still coming, so that nobody knows what it can hold.
        lacking: field of the request that servers of a tier lack, by tier.
    """
    if chosen.tier == wanted and own is not None and own.rank < chosen.rank:
        return RouteReason.FALLBACK
    if chosen.tier == wanted:
        if request.model != AUTO:
            return RouteReason.REQUESTED
        return _SOURCES[request.choice.outlook.source] if request.choice else RouteReason.COMPLEXITY
    if awaited or own is not None:
        return RouteReason.FALLBACK
    return RouteReason.UNSUITED if wanted in lacking else RouteReason.CONTEXT


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
    if why in (RouteReason.FALLBACK, RouteReason.UNSUITED) and chosen.tier != wanted:
        grounds.append(f"the {wanted} tier {state}, the {chosen.tier} tier stands in")
    if why is RouteReason.CONTEXT:
        grounds.append(f"the prompt does not fit the {wanted} tier's context")
    return tuple(grounds)


def _shared(
    request: RouteRequest,
    wanted: str,
    chosen: RouteCandidate,
    own: RouteCandidate | SleepingTier | None,
    allowed: Sequence[RouteCandidate | SleepingTier],
) -> list[str]:
    """Say which pool of the wanted tier answers and why, if that has several.

    Args:
        own: of the wanted tier's places that can hold the prompt, the one that is asked first.
    """
    models, first = {each.model for each in allowed if each.tier == wanted}, _first(wanted, allowed)
    if len(models) < 2 or chosen.tier != wanted or own is None or first is None:
        return []
    if own.rank < chosen.rank:
        there = [each for each in allowed if isinstance(each, RouteCandidate) and each.model == own.model]
        state = _why_not(there) if isinstance(own, RouteCandidate) else "is asleep"
        return [f"{own.model} {state}, {chosen.model} stands in"]
    if first.rank < chosen.rank and first.model in request.unsuited:
        return [f"{first.model} {_unsuited(request.unsuited[first.model])}, {chosen.model} stands in"]
    if first.rank < chosen.rank:
        return [f"the prompt does not fit the context of {first.model}, {chosen.model} stands in"]
    return [f"the {wanted} tier has {len(models)} models, this conversation goes to {chosen.model}"]
