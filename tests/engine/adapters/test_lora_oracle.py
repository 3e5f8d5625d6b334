"""Every kind of adapter in a mixed batch gives what peft gives with that adapter alone."""

from __future__ import annotations

import warnings
from itertools import cycle

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import engine.model.layers
from engine.execution.runner import ModelRunner
from engine.plan import Row, Sampled, StepPlan
from engine.request import Request
from kernels import LoraPlan, library
from tests.engine.adapters.collection import BLOCKS, Collection, ask, bank_of
from tests.engine.adapters.conftest import Collections
from tests.engine.adapters.zoo import ZOO
from tests.engine.checkpoints import VOCABULARY, random_prompt
from tests.engine.driver import drive, tokens_of
from tests.engine.model.test_decoder import distribution

ARCHITECTURES = sorted({kind.architecture for kind in ZOO.values()})
NEW_TOKENS = 8
LENGTHS = (30, 1, 17, 45, 16, 9)


CHUNKED = {"llama-tied", "mixtral"}
"""Those whose log-probabilities are also compared in chunks by default: greedy tokens come in chunks of all."""


@pytest.fixture(params=ARCHITECTURES)
def collection(request: pytest.FixtureRequest, collections: Collections) -> Collection:
    return collections(request.param)


def prompts(count: int) -> list[list[int]]:
    return [random_prompt(length, seed) for seed, length in zip(range(count), cycle(LENGTHS), strict=False)]


def with_logprobs(kind: str | None, prompt: list[int]) -> Request:
    return ask(kind, prompt, max_tokens=1, prompt_logprobs=VOCABULARY, logprobs=VOCABULARY)


def logprobs(given: list[Sampled]) -> torch.Tensor:
    """Of every position of the prompt, [tokens, VOCABULARY]."""
    entries = [entry for sampled in given for entry in sampled.prompt_logprobs or []]
    (last,) = given[-1].logprobs or ()
    return torch.stack([distribution(entry) for entry in [*entries, last]])


@pytest.mark.parametrize(
    ("collection", "chunk"),
    [
        pytest.param(architecture, chunk, id=f"{architecture}-{name}", marks=pytest.mark.deep if deep else ())
        for architecture in ARCHITECTURES
        for chunk, name, deep in ((None, "whole", False), (0, "random chunks", architecture not in CHUNKED))
    ],
    indirect=["collection"],
)
def test_logprobs_of_a_mixed_batch_equal_peft(collection: Collection, device: str, chunk: int | None) -> None:
    kinds = collection.mixture()
    asked = prompts(len(kinds))
    requests = [with_logprobs(kind, prompt) for kind, prompt in zip(kinds, asked, strict=True)]
    runner = collection.runner(*collection.folders, device=device)
    for kind, prompt, given in zip(kinds, asked, drive(runner, requests, chunk=chunk, blocks=BLOCKS), strict=True):
        theirs = collection.logits(kind, prompt).log_softmax(-1)
        torch.testing.assert_close(
            logprobs(given), theirs, rtol=0, atol=1e-4, msg=lambda text, kind=kind: f"{kind}: {text}"
        )


def test_greedy_tokens_of_a_mixed_batch_equal_peft(collection: Collection, device: str) -> None:
    kinds = collection.mixture()
    asked = prompts(len(kinds))
    requests = [ask(kind, prompt, max_tokens=NEW_TOKENS) for kind, prompt in zip(kinds, asked, strict=True)]
    runner = collection.runner(*collection.folders, device=device)
    given = dict(enumerate(tokens_of(runner, requests, chunk=0, blocks=BLOCKS)))
    assert {len(said) for said in given.values()} == {NEW_TOKENS}
    assert given == {at: collection.most_likely(kind, asked[at], given[at]) for at, kind in enumerate(kinds)}


@pytest.mark.parametrize(("architecture", "kind"), [("llama", "dora embeddings"), ("mixtral", "experts patterns")])
def test_drafted_tokens_are_computed_with_the_adapter(
    collections: Collections, device: str, architecture: str, kind: str
) -> None:
    collection = collections(architecture)
    asked = prompts(3)
    expected = [
        collection.greedy(one, prompt, NEW_TOKENS) for one, prompt in zip((kind, None, kind), asked, strict=True)
    ]
    requests = [ask(one, prompt, max_tokens=NEW_TOKENS) for one, prompt in zip((kind, None, kind), asked, strict=True)]

    def draft(one: Request) -> list[int]:
        """Two right tokens and a wrong one."""
        right = expected[requests.index(one)][len(one.output) :][:2]
        return [*right, 5]

    runner = collection.runner(kind, device=device)
    rows = drive(runner, requests, draft=draft)
    assert [one.output for one in requests] == expected
    assert any(len(sampled.tokens) == 3 for given in rows for sampled in given)


@pytest.mark.parametrize("architecture", ["llama-tied", "mixtral"])
def test_rows_of_the_base_do_not_change_by_a_bit(collections: Collections, device: str, architecture: str) -> None:
    """The same step with and without adapters on the other rows."""
    collection = collections(architecture)
    kinds = collection.mixture()
    runner = collection.runner(*collection.folders, device=device)

    def base_rows(kinds: list[str | None]) -> list[torch.Tensor]:
        requests = [with_logprobs(kind, prompt) for kind, prompt in zip(kinds, prompts(len(kinds)), strict=True)]
        given = drive(runner, requests, chunk=0, blocks=BLOCKS)
        return [logprobs(rows) for rows, kind in zip(given, collection.mixture(), strict=True) if kind is None]

    mixed, alone = base_rows(kinds), base_rows([None] * len(kinds))
    assert len(mixed) >= 2
    for ours, expected in zip(mixed, alone, strict=True):
        assert torch.equal(ours, expected)


def test_adapters_come_go_and_move_between_steps(collections: Collections, device: str) -> None:
    """A request goes on while others' adapters are removed, their blocks get other content, and they come back."""
    collection = collections("llama")
    staying, moving = "dora embeddings", ["rank 16", "patterns", "embeddings and head"]
    runner = collection.runner(staying, device=device)
    bank = bank_of(runner)
    prompt, place = random_prompt(30), BLOCKS
    long = ask(staying, prompt, max_tokens=NEW_TOKENS)
    long.block_table = [BLOCKS - 1, BLOCKS - 2, BLOCKS - 3]
    for turn in range(NEW_TOKENS):
        kind = moving[turn % 3]
        needed = bank.prepare(kind)
        bank.install(kind, range(place, place + needed))
        place += 17
        guest = ask(kind, random_prompt(9, turn), max_tokens=1)
        guest.block_table = [turn]
        first, second = runner.launch(
            StepPlan([Row(long, long.computed, long.uncomputed, True), Row(guest, 0, 9, True)])
        ).result()
        long.computed = long.length
        long.output += first.tokens
        assert second.tokens[0] == collection.greedy(kind, guest.prompt, 1)[0]
        bank.remove(kind)
        runner._cache.sectors[place - 17 : place - 17 + needed] = 9.0
    assert long.output == collection.greedy(staying, prompt, NEW_TOKENS)


def test_long_prompts_pass_feed_forward_layers_in_parts(
    collections: Collections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that begin and end within prompts, of adapters that reach these layers, some or none of them."""
    collection = collections("llama")
    kinds = ["rank 8", None, "only v_proj", "one layer", "rank 8"]
    runner = collection.runner("rank 8", "only v_proj", "one layer")
    rows: list[int] = []
    run = engine.model.layers.Mlp._run

    def spy(mlp: engine.model.layers.Mlp, x: torch.Tensor, lora: LoraPlan | None) -> torch.Tensor:
        rows.append(len(x))
        return run(mlp, x, lora)

    def answers() -> list[list[Sampled]]:
        asked = [with_logprobs(kind, random_prompt(31 + seed, seed)) for seed, kind in enumerate(kinds)]
        return drive(runner, asked, blocks=BLOCKS)

    whole = answers()
    monkeypatch.setattr(engine.model.layers, "_MLP_TOKENS", 16)
    monkeypatch.setattr(engine.model.layers.Mlp, "_run", spy)
    parts = answers()
    assert max(rows) == (16 if library.cpu is not None else len(kinds) * 33)
    for one, other in zip(whole, parts, strict=True):
        expected, found = (answer[0].prompt_logprobs or [] for answer in (one, other))
        assert [each.token for each in expected] == [each.token for each in found]
        assert [each.logprob for each in expected] == pytest.approx([each.logprob for each in found], abs=1e-5)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("llama", "rank 16"),
        ("llama", "dora embeddings"),
        ("llama-bias", "dora with biases"),
        ("llama-tied", "tied embeddings and head"),
        ("mixtral", "experts"),
    ],
)
def test_bf16_stays_close_to_fp32(collections: Collections, device: str, architecture: str, kind: str) -> None:
    """As close as peft's own bf16, within a factor of two, for a prompt and for decodes beside others."""
    collection = collections(architecture)
    runner: ModelRunner = collection.runner(kind, device=device, dtype="bfloat16")
    prompt = random_prompt(60)
    whole, _, pieces = drive(
        runner, [with_logprobs(kind, prompt), with_logprobs(None, prompt), with_logprobs(kind, prompt)], chunk=0
    )
    exact = collection.logits(kind, prompt).log_softmax(-1)
    with warnings.catch_warnings(action="ignore"), torch.inference_mode():
        base = AutoModelForCausalLM.from_pretrained(collection.base, dtype=torch.bfloat16)
        model = PeftModel.from_pretrained(base, collection.folders[kind], autocast_adapter_dtype=False).eval()
        theirs = model(input_ids=torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    error = (theirs - exact).abs().mean()
    for given in (whole, pieces):
        assert (logprobs(given) - exact).abs().mean() < 2 * error
