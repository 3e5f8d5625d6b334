"""The log of a judge's opinions: a capped stream per tenant in Redis, apart from what people think of answers.

What a judge says is cheap, and would push people's opinions out of a common log. It is read by `roundhouse route stats`
and `refit`, and by nobody who may ask this gateway anything. It holds no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from gateway.pipeline.routing.decisions import Feedback, LoggedDecision, believed
from router.judging import Trust, TwicePair, trust
from router.refit import Preference
from router.tier import TIERS

KEY = "rh1:route-judge:{{{tenant}}}"
ENTRIES = 20_000
"""Opinions that are kept of a tenant, about."""
Pair = frozenset[str]
"""Ids of two answers."""


class JudgeOpinion(Struct, frozen=True, kw_only=True):
    """A judge's opinion on two answers to the same request."""

    at: int
    """Unix time in milliseconds."""
    judge: str
    """Public name of the model that judged."""
    responses: tuple[str, str]
    """Ids of the answers. One that was made to be compared has that of the response, `+` and its tier."""
    tiers: tuple[str, str]
    said: tuple[int, int]
    """What the judge said while the first answer stood first, and while it stood second: 1 it is better, -1 the other
    one is, 0 neither is."""
    characters: tuple[int, int]
    """Lengths of the answers."""

    @property
    def opinion(self) -> int:
        """1: the first answer is better, -1: the second one is, 0: no opinion that holds in both orders."""
        return self.said[0] if self.said[0] == self.said[1] else 0

    @property
    def named(self) -> tuple[str, str] | None:
        """Tiers of the better answer and of the other one; None: no opinion."""
        first, second = self.tiers
        return (first, second) if self.opinion > 0 else (second, first) if self.opinion else None

    @property
    def pair(self) -> Pair:
        return frozenset(self.responses)


async def read_judgements(redis: Redis, tenant: str, count: int) -> list[JudgeOpinion]:
    """Return the newest opinions on a tenant's answers, newest first.

    Raises:
        RedisError: Redis does not answer.
        ValueError: somebody has written something else there.
    """
    entries = await redis.xrevrange(KEY.format(tenant=tenant), count=count)
    found = cast("list[tuple[bytes, dict[bytes, bytes]]]", entries)
    return [msgspec.json.decode(fields[b"judgement"], type=JudgeOpinion) for _, fields in found]


def trusts(judgements: Sequence[JudgeOpinion], feedback: Sequence[Feedback]) -> dict[str, Trust]:
    """Return what the opinions of each judge count, by its name."""
    said = _people(feedback)
    pairs: dict[str, dict[Pair, TwicePair]] = {each.judge: {} for each in judgements}
    for each in sorted(judgements, key=lambda judgement: judgement.at):
        preferred = said.get(each.pair)
        if preferred is None or not each.opinion:
            continue
        # Seen from the answer of the larger tier.
        side = 1 if TIERS.index(each.tiers[0]) > TIERS.index(each.tiers[1]) else -1
        first, second = each.characters
        pairs[each.judge][each.pair] = TwicePair(
            person=side if preferred == each.responses[0] else -side,
            judge=side * each.opinion,
            longer=side * ((first > second) - (first < second)),
        )
    return {judge: trust(list(own.values())) for judge, own in pairs.items()}


def judged_preferences(
    judgements: Sequence[JudgeOpinion],
    decisions: Sequence[LoggedDecision],
    feedback: Sequence[Feedback],
    model: str,
    trusted: Mapping[str, Trust],
) -> list[Preference]:
    """Return the preferences of judges that may teach, beside the probabilities of one version of the model.

    Where a person has compared the same answers, that person's word counts alone (`decisions.preferences`).
    """
    routed = {each.response: each for each in decisions}
    said, found = _people(feedback), dict[Pair, Preference]()
    for each in sorted(judgements, key=lambda judgement: judgement.at):
        weight = trusted[each.judge].weight
        decision = next((routed[response] for response in each.responses if response in routed), None)
        probabilities = None if decision is None else believed(decision, model)
        if decision is None or probabilities is None or not weight or each.named is None or each.pair in said:
            continue
        better, worse = each.named
        found[each.pair] = Preference(
            better=better,
            worse=worse,
            probabilities=(probabilities[TIERS.index(better)], probabilities[TIERS.index(worse)]),
            propensity=decision.choice.propensity,
            weight=weight,
        )
    return list(found.values())


def _people(feedback: Sequence[Feedback]) -> dict[Pair, str]:
    """Return the answer that people prefer of each two that they have compared; the newest opinion counts."""
    return {
        frozenset((thought.response, other.response)): thought.response
        for thought in sorted(feedback, key=lambda thought: thought.at)
        for other in thought.over
    }
