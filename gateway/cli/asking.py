"""Asks the pools of a running gateway the questions of `roundhouse route calibrate`, and keeps their answers in a file.

Every answer is a line of the file as soon as it is there, so that a run which was interrupted goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import numpy as np
from msgspec import Struct

from gateway.cli.repeating import (
    ATTEMPTS,
    NO_ROOM,
    AskError,
    GatewayRefused,
    NoAnswer,
    error_of,
    posted,
    read_lines,
    together,
)
from router.questions import AnswerKey, PoolAnswer, Question, missing, read_answers
from router.success import Array

_SILENCE = 600.0
"""Seconds that one answer may take."""
_TEXTS = 32
"""Texts whose embeddings are asked for at once."""


class AskedPool(Struct, frozen=True):
    """A pool that is asked, and who has to answer: answers of others are not taken."""

    name: str
    """Tier or model that is asked for."""
    model: str
    """Public name of its model."""
    weights: str
    """See `PoolSettings.weights`."""


class Asking(Struct, frozen=True):
    """What is asked, and how."""

    url: str
    key: str
    pools: tuple[AskedPool, ...]
    max_tokens: int
    concurrency: int
    """Questions that a pool answers at the same time; pools are asked one after the other."""

    def client(self) -> httpx2.AsyncClient:
        """
        Raises:
            AskError: the address is none.
        """
        try:
            return httpx2.AsyncClient(
                base_url=self.url,
                headers={"Authorization": f"Bearer {self.key}"},
                timeout=httpx2.Timeout(_SILENCE, connect=10),
            )
        except httpx2.InvalidURL as error:
            raise AskError(f"--url {self.url}: {error}") from None


def read_outcomes(path: Path, asking: Asking) -> dict[AnswerKey, PoolAnswer]:
    """Read the answers of an outcomes file that need not be asked for again; what was being written when a run was
    killed is cut off.

    Raises:
        ValueError: it is no outcomes file.
        OSError: it cannot be read.
    """
    answers = read_lines(path, lambda content: read_answers(content, asking.max_tokens))
    wanted = {pool.name: pool.weights for pool in asking.pools}
    return {key: answer for key, answer in answers.items() if answer.weights == wanted.get(answer.pool)}


async def ask_all(
    client: httpx2.AsyncClient,
    asking: Asking,
    questions: Sequence[Question],
    path: Path,
    said: Callable[[str, int], None],
) -> dict[AnswerKey, PoolAnswer]:
    """Ask every pool what it has not answered yet; return all answers of the file.

    Args:
        said: told a pool and how many questions it has answered, after each.

    Raises:
        AskError: a question stays without an answer; those that came are kept.
        OSError, ValueError: the file cannot be used.
    """
    answers = read_outcomes(path, asking)
    with path.open("ab") as file:
        for pool in asking.pools:
            left = missing(questions, pool.name, answers)
            done = len(questions) - len(left)
            said(pool.name, done)
            async for answer in together(
                (_answer(client, pool, each, asking.max_tokens) for each in left), asking.concurrency
            ):
                file.write(msgspec.json.encode(answer) + b"\n")
                file.flush()
                answers[answer.key] = answer
                done += 1
                said(pool.name, done)
    return answers


async def _answer(client: httpx2.AsyncClient, pool: AskedPool, question: Question, max_tokens: int) -> PoolAnswer:
    body = {
        "model": pool.name,
        "messages": [{"role": "user", "content": question.prompt}],
        "temperature": 0,
        "max_completion_tokens": max_tokens,
        "roundhouse": {"cache": "no-store"},
    }

    def other(response: httpx2.Response) -> str | None:
        tier = response.headers.get("x-roundhouse-tier")
        stands_in = pool.name not in (tier, response.headers.get("x-roundhouse-model"))
        return f"the {tier} tier stands in for it" if stands_in else None

    def answered(answer: str, finish: str, input: int, output: int, seconds: float) -> PoolAnswer:
        return PoolAnswer(
            question=question.id,
            digest=question.digest,
            pool=pool.name,
            model=pool.model,
            weights=pool.weights,
            max_tokens=max_tokens,
            answer=answer,
            finish=finish,
            input_tokens=input,
            output_tokens=output,
            seconds=round(seconds, 3),
        )

    try:
        response, seconds = await posted(client, "/v1/chat/completions", body, other)
    except GatewayRefused as refused:
        if refused.code != NO_ROOM:
            raise AskError(f"{pool.name} cannot be asked: {refused}") from None
        return answered("", refused.code, 0, 0, 0.0)
    except NoAnswer as silent:
        raise AskError(
            f"{pool.name} did not answer {question.id} in {ATTEMPTS} attempts ({silent}); answers that came are kept:"
            " give the same command again"
        ) from None
    found = response.json()
    if found["model"] != pool.model:
        raise AskError(
            f"{pool.name} was answered by {found['model']}, in the configuration it is {pool.model}: give --config"
            " that of the gateway, or --pools the models' own names if a tier has several pools"
        )
    choice, usage = found["choices"][0], found["usage"]
    text = choice["message"]["content"] or ""
    return answered(text, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"], seconds)


async def embed(client: httpx2.AsyncClient, texts: Sequence[str]) -> tuple[str, Array]:
    """Return the name of the gateway's embedding model and the texts' vectors of length 1.

    A text that is too long for it has NaN. Without such a model the name is empty and vectors have no elements.

    Raises:
        AskError: the gateway does not answer.
    """
    try:
        listed = await client.get("/v1/models")
    except httpx2.HTTPError as error:
        raise AskError(f"no server answers at {client.base_url} ({error}); start one with: roundhouse serve") from None
    if listed.status_code != 200:
        raise AskError(f"{client.base_url}: {error_of(listed)[0]}")
    name = next((each["id"] for each in listed.json()["data"] if each["type"] == "embedding"), None)
    if name is None:
        return "", np.zeros((len(texts), 0), np.float32)
    rows: list[list[float] | None] = []
    for start in range(0, len(texts), _TEXTS):
        batch = texts[start : start + _TEXTS]
        together = await _embedded(client, name, batch)
        # One text that is too long has all of them refused.
        rows += together or [(await _embedded(client, name, [text]) or [None])[0] for text in batch]
    width = next((len(row) for row in rows if row is not None), 0)
    return name, np.array([row if row is not None else [np.nan] * width for row in rows], np.float32)


async def _embedded(client: httpx2.AsyncClient, name: str, texts: Sequence[str]) -> list[Any] | None:
    """None: a text is too long."""
    try:
        response, _ = await posted(client, "/v1/embeddings", {"model": name, "input": list(texts)})
    except GatewayRefused as refused:
        if refused.code == NO_ROOM:
            return None
        raise AskError(f"{name} cannot be asked: {refused}") from None
    except NoAnswer as silent:
        raise AskError(f"{name} did not answer in {ATTEMPTS} attempts: {silent}") from None
    return [each["embedding"] for each in response.json()["data"]]
