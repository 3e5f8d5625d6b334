"""`/v1/completions`, driven by the real `openai` client; scores are compared with transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.text.processor import TextProcessor
from tests.engine.checkpoints import oracle_greedy, oracle_logits
from tests.gateway.conftest import Serve, Served

pytestmark = pytest.mark.anyio

TOKENS = [40, 41, 42, 43, 44, 45, 46, 47]
UNENDED = {"ignore_eos": True}


@pytest.fixture(scope="module")
def text(model: Path) -> TextProcessor:
    """The model's tokenizer."""
    return TextProcessor.from_path(model)


async def complete(served: Served, **options: Any) -> Any:
    """A few greedy tokens."""
    given = {"model": "small", "max_tokens": 6, "temperature": 0, "extra_body": UNENDED, **options}
    return await served.client.completions.create(**given)


def oracle_scores(model: Path, tokens: list[int]) -> list[tuple[float, int, float]]:
    """For each token but the first: its log-probability, and the most likely token with its own."""
    logprobs = oracle_logits(model, tokens)[:-1].log_softmax(-1)
    best = logprobs.max(-1)
    chosen = logprobs.gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return list(zip(chosen.tolist(), best.indices.tolist(), best.values.tolist(), strict=True))


async def test_token_ids_are_completed_without_a_template(serve: Serve, model: Path, text: TextProcessor) -> None:
    """A prompt of token ids goes to the model as it is: the tokens are those of transformers' `generate`."""
    async with serve() as served:
        answer = await complete(served, prompt=TOKENS)
        await served.settle()
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.model == "tiny-small"
    assert answer.choices[0].text == text.decode(oracle_greedy(model, TOKENS, 6))
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert answer.usage.prompt_tokens == len(TOKENS)
    assert answer.usage.completion_tokens == 6


async def test_sixteen_tokens_are_the_default(serve: Serve) -> None:
    """As OpenAI documents this endpoint."""
    async with serve() as served:
        answer = await served.client.completions.create(model="small", prompt="hello", extra_body=UNENDED)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize("as_text", [False, True])
async def test_prompts_come_in_batches(serve: Serve, text: TextProcessor, as_text: bool) -> None:
    """Lists of texts or of token lists are answered in their order, `n` answers to each."""
    prompts: Any = [[40, 41, 42], [50, 51, 52, 53], [60]]
    if as_text:
        prompts = [text.decode(prompt) for prompt in prompts]
    async with serve() as served:
        alone = [(await complete(served, prompt=prompt)).choices[0].text for prompt in prompts]
        together = await complete(served, prompt=prompts, n=2)
        await served.settle()
    assert [choice.text for choice in together.choices] == [answer for answer in alone for _ in range(2)]
    assert [choice.index for choice in together.choices] == list(range(6))
    expected = sum(len(text.encode(prompt)) if as_text else len(prompt) for prompt in prompts)
    assert together.usage.prompt_tokens == expected
    assert together.usage.completion_tokens == 36


async def test_a_stream_is_the_whole_answer_in_pieces(serve: Serve) -> None:
    """Text and scores of two prompts, streamed side by side, add up to the whole answers."""
    options: dict[str, Any] = {"prompt": ["one", "two"], "logprobs": 2, "echo": True}
    async with serve() as served:
        expected = await complete(served, **options)
        stream = await complete(served, **options, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        await served.settle()
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    for choice in expected.choices:
        pieces = [piece for chunk in chunks for piece in chunk.choices if piece.index == choice.index]
        assert "".join(piece.text for piece in pieces) == choice.text
        assert pieces[-1].finish_reason == choice.finish_reason
        scores = [piece.logprobs for piece in pieces if piece.logprobs]
        assert [token for score in scores for token in score.tokens] == choice.logprobs.tokens
        assert [offset for score in scores for offset in score.text_offset] == choice.logprobs.text_offset
        logprobs = [logprob for score in scores for logprob in score.token_logprobs]
        # The first one is null; batches of another make-up round differently.
        assert logprobs[1:] == pytest.approx(choice.logprobs.token_logprobs[1:], abs=1e-4)
        assert [set(top) for score in scores[1:] for top in score.top_logprobs] == [
            set(top) for top in choice.logprobs.top_logprobs[len(scores[0].tokens) :]
        ]


async def test_echo_puts_the_prompt_before_the_answer(serve: Serve, text: TextProcessor) -> None:
    """As it was sent, or decoded if it was sent as token ids."""
    async with serve() as served:
        plain = (await complete(served, prompt="hello")).choices[0].text
        echoed = (await complete(served, prompt="hello", echo=True)).choices[0].text
        tokens = (await complete(served, prompt=text.encode("hello"), echo=True)).choices[0].text
    assert echoed == "hello" + plain
    assert tokens == "hello" + plain


async def test_no_tokens_at_all_score_the_prompt(serve: Serve, model: Path, text: TextProcessor) -> None:
    """`max_tokens` 0 with `echo` returns the prompt alone; its scores are those of transformers' logits."""
    async with serve() as served:
        answer = await complete(served, prompt=TOKENS, max_tokens=0, echo=True, logprobs=1)
        await served.settle()
    (choice,) = answer.choices
    scores = choice.logprobs
    expected = oracle_scores(model, TOKENS)
    assert choice.text == text.decode(TOKENS)
    assert answer.usage.completion_tokens == 0
    assert scores.token_logprobs[0] is None
    assert scores.top_logprobs[0] is None
    assert scores.token_logprobs[1:] == pytest.approx([chosen for chosen, _, _ in expected], abs=1e-4)
    for top, token, (chosen, best, most) in zip(scores.top_logprobs[1:], TOKENS[1:], expected, strict=True):
        assert max(top.values()) == pytest.approx(most, abs=1e-4)
        assert len(top) == len({token, best})
        assert min(top.values()) == pytest.approx(min(chosen, most), abs=1e-4)


async def test_no_tokens_without_scores_only_echo(serve: Serve) -> None:
    """Nothing is computed that was not asked for."""
    async with serve() as served:
        answer = await complete(served, prompt="hello", max_tokens=0, echo=True)
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].logprobs is None


def harness_scores(body: Any, context_lengths: list[int]) -> list[tuple[float, bool]]:
    """Reads an answer the way lm-evaluation-harness documents it for `local-completions`: the continuation's
    log-probability, and whether greedy decoding would give it. The one generated token is cut off.
    """
    results = []
    for choice, length in zip(sorted(body.choices, key=lambda choice: choice.index), context_lengths, strict=True):
        logprobs = choice.logprobs.token_logprobs[length:-1]
        tops = choice.logprobs.top_logprobs[length:-1]
        greedy = all(logprob == max(top.values()) for logprob, top in zip(logprobs, tops, strict=True))
        results.append((sum(logprobs), greedy))
    return results


async def test_an_evaluation_harness_gets_its_loglikelihoods(serve: Serve, model: Path) -> None:
    """A batch as lm-evaluation-harness sends it; one continuation is the greedy one."""
    greedy = TOKENS[:4] + oracle_greedy(model, TOKENS[:4], 3)
    prompts = [TOKENS, greedy, [7, 8, 9]]
    contexts = [5, 4, 1]
    async with serve() as served:
        body = await served.client.completions.create(
            model="tiny-small", prompt=prompts, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True
        )
        await served.settle()
    expected = []
    for prompt, length in zip(prompts, contexts, strict=True):
        scores = oracle_scores(model, prompt)[length - 1 :]
        expected.append((sum(chosen for chosen, _, _ in scores), all(chosen == most for chosen, _, most in scores)))
    scored = harness_scores(body, contexts)
    assert [logprob for logprob, _ in scored] == pytest.approx([logprob for logprob, _ in expected], abs=1e-4)
    assert [is_greedy for _, is_greedy in scored] == [is_greedy for _, is_greedy in expected] == [False, True, False]


async def test_a_prompt_is_scored_whole_even_if_the_answer_would_end_at_once(serve: Serve) -> None:
    """An end-of-sequence token counts as the one generated token, so that cutting it off leaves the prompt whole."""
    async with serve() as served:
        eos = served.gateway.engines.pools[0].text.eos_token_ids[0]
        body: dict[str, Any] = {"prompt": TOKENS, "logprobs": 1, "echo": True, "logit_bias": {str(eos): 100}}
        scored: Any = await served.client.completions.create(model="small", max_tokens=1, **body)
        ended: Any = await served.client.completions.create(model="small", max_tokens=5, **body)
    assert ended.choices[0].finish_reason == "stop"
    assert len(ended.choices[0].logprobs.tokens) == len(TOKENS)
    assert scored.choices[0].logprobs.tokens == [*ended.choices[0].logprobs.tokens, "</s>"]


async def test_offsets_point_into_the_text(serve: Serve, text: TextProcessor) -> None:
    """A token starts where its text does; tokens that make one character together share its place."""
    prompt = "für 日本 and on"
    async with serve() as served:
        choice = (await complete(served, prompt=prompt, echo=True, logprobs=0)).choices[0]
    scores = choice.logprobs
    count = len(text.encode(prompt))
    assert scores.text_offset[0] == 0
    assert scores.text_offset == sorted(scores.text_offset)
    assert scores.text_offset[count] == len(prompt)
    named = [
        (token, offset) for token, offset in zip(scores.tokens, scores.text_offset, strict=True) if token.isascii()
    ]
    whole = [(token, offset) for token, offset in named if not token.startswith(("bytes:", "<|"))]  # no special ones
    assert len(whole) > 3
    assert all(choice.text.startswith(token, offset) for token, offset in whole)
    parts = [token for token in scores.tokens[:count] if token.startswith("bytes:")]
    assert parts
    assert all(token.startswith("bytes:\\x") for token in parts)


async def test_a_stop_string_ends_a_completion(serve: Serve) -> None:
    """As in chat."""
    async with serve() as served:
        full = (await complete(served, prompt="hello", max_tokens=24)).choices[0].text
        choice = (await complete(served, prompt="hello", max_tokens=24, stop=full[5:8])).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == full[: full.index(full[5:8])]
