"""Asks a judge which of two pools' answers to a question is better, and keeps what it says in a file.

It is asked what the judge of a gateway is asked (`gateway.pipeline.routing.rubric`), in both orders. Every verdict is a
line of the file as soon as it is there, by a digest of what was asked: other answers are judged anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx2
import msgspec
from msgspec import Struct

from gateway.cli.asking import AskedPool
from gateway.cli.repeating import ATTEMPTS, NO_ROOM, AskError, GatewayRefused, NoAnswer, posted, read_lines, together
from gateway.pipeline.routing import rubric
from gateway.protocol.requests import Message
from router.assessment import GradedAnswers
from router.pairwise import AnswerPair, JudgeFigures, figures, judged, pairs
from router.questions import AnswerKey, PoolAnswer, Question, decoded, digest

Verdicts = Mapping[str, int | None]
"""What the judge said, by the digest of what it was asked: 1 the first answer is better, -1 the second one, 0 neither;
None: nothing that can be read, or the texts are too long for it."""


class Verdict(Struct, frozen=True):
    """A line of a verdicts file."""

    question: str
    """Id of the question, for people."""
    asked: str
    """Digest of what the judge was asked."""
    judge: str
    weights: str
    """See `PoolAnswer.weights`."""
    said: int | None


class AnswerComparison(Struct, frozen=True):
    """Two answers to be compared."""

    pair: AnswerPair
    question: str
    """Id of the question."""
    prompts: tuple[str, ...]
    """What the judge is asked in both orders, first with the smaller pool's answer first; empty if the answers are
    alike."""

    def opinion(self, verdicts: Verdicts) -> int:
        """Return which is better: 1 the larger pool's answer, -1 the smaller one's, 0 no opinion."""
        if not self.prompts:
            return 0
        smaller_first, larger_first = (verdicts[digest(prompt)] for prompt in self.prompts)
        if smaller_first is None or larger_first is None or smaller_first != -larger_first:
            return 0
        return larger_first


def prompt_for(question: str, first: str, second: str) -> str:
    """Return what a judge is asked about two answers to a question."""
    return rubric.question(rubric.conversation_text([Message("user", question)], None), first, second)


def comparisons(
    questions: Sequence[Question], graded: GradedAnswers, answers: Mapping[AnswerKey, PoolAnswer]
) -> list[AnswerComparison]:
    """Return what the judge is asked about questions that all pools have answered."""
    found = []
    for pair in pairs(graded.right, [each.digest for each in questions]):
        asked = questions[pair.row]
        one, other = (answers[asked.id, asked.digest, graded.pools[place]].answer for place in pair.pools)
        both = () if one.strip() == other.strip() else ((one, other), (other, one))
        found.append(AnswerComparison(pair, asked.id, tuple(prompt_for(asked.prompt, *order) for order in both)))
    return found


def unjudged(compared: Sequence[AnswerComparison], verdicts: Verdicts) -> list[tuple[str, str]]:
    """Return what the judge has not been asked yet: ids of questions, and prompts."""
    prompts = {prompt: each.question for each in compared for prompt in each.prompts}
    return [(question, prompt) for prompt, question in prompts.items() if digest(prompt) not in verdicts]


def read_verdicts(path: Path, judge: AskedPool) -> dict[str, int | None]:
    """Read what a judge has said.

    Raises:
        ValueError: it is no verdicts file.
        OSError: it cannot be read.
    """
    found = read_lines(path, lambda content: decoded(content, Verdict))
    return {each.asked: each.said for each in found.values() if each.weights == judge.weights}


async def ask_judge(
    client: httpx2.AsyncClient,
    judge: AskedPool,
    compared: Sequence[AnswerComparison],
    path: Path,
    concurrency: int,
    said: Callable[[str, int], None],
) -> dict[str, int | None]:
    """Ask the judge what it was not asked yet; return all that it has said.

    Args:
        said: told the judge and how many verdicts there are, after each.

    Raises:
        AskError: there is no verdict; those that came are kept.
        OSError, ValueError: the file cannot be used.
    """
    verdicts = read_verdicts(path, judge)
    left = unjudged(compared, verdicts)
    done = sum(len(each.prompts) for each in compared) - len(left)
    said(judge.name, done)
    with path.open("ab") as file:
        async for verdict in together((_verdict(client, judge, *each) for each in left), concurrency):
            file.write(msgspec.json.encode(verdict) + b"\n")
            file.flush()
            verdicts[verdict.asked] = verdict.said
            done += 1
            said(judge.name, done)
    return verdicts


def with_opinions(
    judge: AskedPool, graded: GradedAnswers, compared: Sequence[AnswerComparison], verdicts: Verdicts
) -> tuple[GradedAnswers, JudgeFigures]:
    """Return the answers with what the judge thinks of those without graders, and what it is worth."""
    opinions = [each.opinion(verdicts) for each in compared]
    among = [each.pair for each in compared]
    found = figures(judge.model, graded.right, graded.characters, among, opinions)
    return msgspec.structs.replace(graded, right=judged(graded.right, among, opinions)), found


async def _verdict(client: httpx2.AsyncClient, judge: AskedPool, question: str, prompt: str) -> Verdict:
    body = {
        "model": judge.name,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_completion_tokens": rubric.MOST_TOKENS,
        "structured_outputs": {"choice": rubric.LETTERS},
        "roundhouse": {"cache": "no-store"},
    }
    try:
        response, _ = await posted(client, "/v1/chat/completions", body)
        said = rubric.verdict(response.json()["choices"][0]["message"]["content"] or "")
    except GatewayRefused as refused:
        if refused.code != NO_ROOM:
            raise AskError(f"the judge {judge.name} cannot be asked: {refused}") from None
        said = None
    except NoAnswer as silent:
        raise AskError(
            f"the judge {judge.name} did not answer about {question} in {ATTEMPTS} attempts ({silent}); verdicts that"
            " came are kept: give the same command again"
        ) from None
    return Verdict(question, digest(prompt), judge.model, judge.weights, said)
