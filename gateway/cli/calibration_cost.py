"""What asking the pools, and a judge, costs at most: said before it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from gateway.cli.asking import AskedPool, Asking
from gateway.cli.judging import Verdicts, comparisons, prompt_for, unjudged
from gateway.config.billing import PriceSettings
from gateway.pipeline.routing import rubric
from router.assessment import grade
from router.questions import AnswerKey, PoolAnswer, Question, missing

_CHARACTERS_OF_A_TOKEN, _TEMPLATE_TOKENS = 4, 20


class ToAsk(Struct, frozen=True):
    """What is left to ask one pool."""

    model: str
    said: str
    """In words."""
    requests: int
    prompt_tokens: int
    """About; of a judge at most."""
    answer_tokens: int
    """At most."""

    def __str__(self) -> str:
        return (
            f"{self.said}, about {self.prompt_tokens:,} tokens of prompts and at most {self.answer_tokens:,} of answers"
        )


def pool_questions(
    asking: Asking, pool: AskedPool, questions: Sequence[Question], answers: Mapping[AnswerKey, PoolAnswer]
) -> ToAsk:
    """Return what is left to ask a pool."""
    left = missing(questions, pool.name, answers)
    said = f"{pool.name} ({pool.model}): {len(left)} of {len(questions)} questions are left to ask"
    prompts = sum(_tokens(len(each.prompt)) for each in left)
    return ToAsk(pool.model, said, len(left), prompts, len(left) * asking.max_tokens)


def judge_questions(
    asking: Asking,
    judge: AskedPool,
    questions: Sequence[Question],
    answers: Mapping[AnswerKey, PoolAnswer],
    verdicts: Verdicts,
) -> ToAsk:
    """Return what is left to ask the judge: at most, where answers that it will compare are not there yet."""
    pools = [pool.name for pool in asking.pools]
    answered = [each for each in questions if all((each.id, each.digest, pool) in answers for pool in pools)]
    known = {each.digest for each in answered}
    sizes = []
    if answered:
        compared = comparisons(answered, grade(answered, pools, answers), answers)
        sizes = [len(prompt) for _, prompt in unjudged(compared, verdicts)]
    orders = 2 * len(list(combinations(pools, 2)))
    for each in questions:
        if each.digest not in known:
            size = len(prompt_for(each.prompt, "", "")) + 2 * asking.max_tokens * _CHARACTERS_OF_A_TOKEN
            sizes += [size] * (2 if each.grade else orders)
    most = "" if len(answered) == len(questions) else "at most "
    said = f"judge {judge.model}: {most}{len(sizes)} comparisons are left to ask"
    return ToAsk(judge.model, said, len(sizes), sum(map(_tokens, sizes)), len(sizes) * rubric.MOST_TOKENS)


def dollars(left: Sequence[ToAsk], prices: Sequence[PriceSettings]) -> float | None:
    """Return what all of it costs at most; None if a model has no price."""
    known, found = {price.name: price for price in prices}, 0.0
    for each in left:
        price = known.get(each.model)
        if price is None:
            return None
        found += (each.prompt_tokens * price.input + each.answer_tokens * price.output) / 1e12
    return found


def _tokens(characters: int) -> int:
    """Return about how many tokens a prompt has."""
    return characters // _CHARACTERS_OF_A_TOKEN + _TEMPLATE_TOKENS
