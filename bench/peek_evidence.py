"""What a tier shows of its answer: probabilities of its tokens, short samples, and whether it says that it is right.

For `bench.peek`. Answers are those that `roundhouse route calibrate` has graded; an engine process scores them as parts
of prompts. Every question's evidence is a line of a file, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from tqdm import tqdm

from bench.servers import engine_process
from engine.client.engine_client import EngineClient
from engine.text.processor import TextProcessor
from engine.wire import SamplingParams, TokenIdLogprob
from router.questions import PoolAnswer, Question

PEEK = 16
"""Tokens of a sample, and of the beginning that the tier is asked about."""
TOP = 20
"""Likeliest tokens by which entropies are computed; the rest of the vocabulary counts as one token."""
LONGEST = 64
"""Tokens of an answer that are scored."""
SAMPLES = 2
TEMPERATURE = 0.7
ASK = "Is your answer above right? Answer with one word: Yes or No."
_CONCURRENCY = 6


class TierEvidence(Struct, frozen=True):
    """Evidence of one tier about its answer to one question."""

    question: str
    digest: str
    """Digest of the question's prompt."""
    pool: str
    logprobs: list[float]
    """Log-probability of each token of the answer."""
    entropies: list[float]
    """Entropy in nats of the distribution that each token was chosen from."""
    margins: list[float]
    """Difference in probability of the two likeliest tokens, at each token."""
    samples: list[str] = []
    """First `PEEK` tokens of answers that are sampled at `TEMPERATURE`; empty if none were."""
    says: tuple[float, float] | None = None
    """Probability of Yes, of Yes and No, that the tier answers about the first `PEEK` tokens and the whole answer."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.question, self.digest, self.pool


class FirstTokens(Struct, frozen=True):
    """Seconds from sending a question to some of its answer's first tokens, by their number, or to its last if there
    are fewer; of one request at a time."""

    pool: str
    seconds: dict[int, float]


class Tier:
    """An engine process with one model."""

    def __init__(self, pool: str, engine: EngineClient, text: TextProcessor) -> None:
        self._pool = pool
        self._engine = engine
        self._text = text

    async def evidence(self, question: Question, answer: PoolAnswer, *, scores_only: bool) -> TierEvidence:
        """Score an answer, sample others, and ask what the tier thinks of it."""
        asked = self._prompt(question.prompt)
        tokens = self._text.encode(answer.answer, special=False)[:LONGEST]
        scored = await self._scores(asked, tokens)
        found = TierEvidence(
            question.id,
            question.digest,
            self._pool,
            logprobs=[entry.logprob for entry in scored],
            entropies=[entropy(entry) for entry in scored],
            margins=[margin(entry) for entry in scored],
        )
        if scores_only:
            return found
        begin = self._text.decode(tokens[:PEEK])
        *samples, says_begin, says_whole = await asyncio.gather(
            *(self._sample(asked, seed) for seed in range(SAMPLES)),
            self._says(question.prompt, begin),
            self._says(question.prompt, answer.answer),
        )
        return msgspec.structs.replace(found, samples=samples, says=(says_begin, says_whole))

    async def first_tokens(self, question: Question, counts: Sequence[int]) -> FirstTokens:
        """Measure when the first tokens of a question's greedy answer come."""
        times: list[float] = []
        sampling = SamplingParams(max_tokens=max(counts), temperature=0.0)
        sent = time.monotonic()
        async with self._engine.generate(self._prompt(question.prompt), sampling) as generation:
            async for delta in generation:
                times += [time.monotonic() - sent] * len(delta.token_ids)
        return FirstTokens(self._pool, {count: times[min(count, len(times)) - 1] for count in counts})

    def _prompt(self, question: str) -> list[int]:
        return self._text.encode_chat([{"role": "user", "content": question}])

    async def _scores(self, asked: Sequence[int], tokens: Sequence[int]) -> list[TokenIdLogprob]:
        sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=TOP)
        async with self._engine.generate([*asked, *tokens], sampling) as generation:
            async for _ in generation:
                pass
        return [entry for entry in generation.prompt_logprobs[len(asked) :] if entry is not None]

    async def _sample(self, asked: Sequence[int], seed: int) -> str:
        sampling = SamplingParams(max_tokens=PEEK, temperature=TEMPERATURE, seed=seed)
        async with self._engine.generate(asked, sampling, text=self._text) as generation:
            return "".join([delta.text async for delta in generation])

    async def _says(self, question: str, answer: str) -> float:
        said = [("user", question), ("assistant", answer), ("user", ASK)]
        prompt = self._text.encode_chat([{"role": role, "content": content} for role, content in said])
        sampling = SamplingParams(max_tokens=1, temperature=0.0, logprobs=TOP, ignore_eos=True)
        top: list[tuple[int, float]] = []
        async with self._engine.generate(prompt, sampling) as generation:
            async for delta in generation:
                top += delta.logprobs[0].top if delta.logprobs else []
        words = [(self._text.decode([token]).strip().lower(), np.exp(logprob)) for token, logprob in top]
        yes, no = (sum(share for word, share in words if word == wanted) for wanted in ("yes", "no"))
        return float(yes / (yes + no)) if yes + no else 0.5


def entropy(entry: TokenIdLogprob) -> float:
    """Return the entropy of a position's distribution in nats."""
    shares = np.exp([logprob for _, logprob in entry.top])
    shares = np.append(shares, max(0.0, 1.0 - shares.sum()))
    return float(-(shares * np.log(np.maximum(shares, 1e-12))).sum())


def margin(entry: TokenIdLogprob) -> float:
    """Return the difference in probability of a position's two likeliest tokens."""
    return float(np.exp(entry.top[0][1]) - np.exp(entry.top[1][1]))


@contextlib.asynccontextmanager
async def tier(pool: str, model: Path, threads: int) -> AsyncIterator[Tier]:
    """Serve a model for the block."""
    async with contextlib.AsyncExitStack() as stack:
        address = f"unix://{stack.enter_context(tempfile.TemporaryDirectory())}/engine.sock"
        await stack.enter_async_context(engine_process(address, model, threads=threads, max_running=16))
        engine = await stack.enter_async_context(EngineClient(address))
        await engine.wait_connected()
        yield Tier(pool, engine, TextProcessor.from_path(model))


def read(path: Path) -> dict[tuple[str, str, str], TierEvidence]:
    """Return the evidence of a file; a line that was being written when a run was killed is left out."""
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = [msgspec.json.decode(line, type=TierEvidence) for line in whole]
    return {each.key: each for each in found}


async def gather(
    pool: str,
    model: Path,
    questions: Sequence[Question],
    answers: Mapping[tuple[str, str, str], PoolAnswer],
    path: Path,
    threads: int,
    *,
    scores_only: bool,
) -> None:
    """Add the evidence that a file does not have yet."""
    known = read(path)
    left = [each for each in questions if (each.id, each.digest, pool) not in known]
    if not left:
        return
    room = asyncio.Semaphore(_CONCURRENCY)
    with path.open("ab") as file, tqdm(total=len(left), desc=pool, disable=None) as progress:
        async with tier(pool, model, threads) as served, asyncio.TaskGroup() as tasks:

            async def one(question: Question) -> None:
                async with room:
                    answer = answers[question.id, question.digest, pool]
                    found = await served.evidence(question, answer, scores_only=scores_only)
                file.write(msgspec.json.encode(found) + b"\n")
                file.flush()
                progress.update()

            for question in left:
                tasks.create_task(one(question))


async def times(
    pool: str, model: Path, questions: Sequence[Question], counts: Sequence[int], threads: int
) -> list[FirstTokens]:
    """Measure first tokens, one request at a time, after one to warm up."""
    async with tier(pool, model, threads) as served:
        await served.first_tokens(questions[0], counts)
        return [await served.first_tokens(each, counts) for each in questions]
