"""`roundhouse route evaluate`: asks real engines, goes on after an interruption, and writes only what is better."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.cli import asking
from gateway.cli.root import main
from gateway.pipeline.routing.tiers import read_model
from router.questions import PoolAnswer, Question, read_questions
from router.refit import read_suite
from router.tier import TIERS
from tests.gateway.conftest import KEY, EngineThread, Serve

pytestmark = pytest.mark.anyio


@pytest.fixture
def tiers(engine: EngineThread) -> dict[str, list[str]]:
    return {tier: [engine.address] for tier in TIERS}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LONGEST_PAUSE", 0.01)


def write_questions(path: Path, prompts: Sequence[str]) -> list[Question]:
    """Write questions whose right answer has the word `good`."""
    lines = [
        {
            "id": f"q{number}",
            "kind": prompt.split()[0],
            "prompt": prompt,
            "grade": {"by": "contains", "words": ["good"]},
        }
        for number, prompt in enumerate(prompts)
    ]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    return read_questions(path.read_bytes())


async def evaluate(folder: Path, url: str, *words: str, key: str = KEY) -> Result:
    """Run the command, with its files in `folder`; it has an event loop of its own."""
    files = {name: str(folder / name) for name in ("questions", "outcomes", "output", "report")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    words = ("route", "evaluate", "--url", url, "--key", key, "--max-tokens", "4", *options, *words)
    return await asyncio.to_thread(CliRunner().invoke, main, words)


def answered(folder: Path) -> list[PoolAnswer]:
    return [msgspec.json.decode(line, type=PoolAnswer) for line in (folder / "outcomes").read_bytes().splitlines()]


async def test_every_tier_is_asked_every_question_and_an_interruption_loses_nothing(
    serve: Serve, tiers: Any, tmp_path: Path
) -> None:
    write_questions(tmp_path / "questions", ["Say one.", "Say two.", "Count to three."])
    async with serve(engines=tiers) as served:
        first = await evaluate(tmp_path, served.url, "--json")
        assert first.exit_code == 0, first.output
        all_answers = answered(tmp_path)
        kept = (tmp_path / "outcomes").read_bytes().splitlines(keepends=True)
        # As if it was killed while it wrote the sixth answer.
        (tmp_path / "outcomes").write_bytes(b"".join(kept[:5]) + kept[5][:30])
        again = await evaluate(tmp_path, served.url)
        assert again.exit_code == 0, again.output
        (tmp_path / "outcomes").write_bytes(b'{"question": 7}\n')
        broken = await evaluate(tmp_path, served.url)
    assert sorted((each.pool, each.question) for each in all_answers) == sorted(
        (tier, f"q{number}") for tier in TIERS for number in range(3)
    )
    assert {each.model for each in all_answers if each.pool == "small"} == {"tiny-small"}
    assert all(0 < each.output_tokens <= 4 and each.input_tokens > 0 for each in all_answers)
    found = json.loads(first.stdout)
    assert found["questions"] == 3 and found["kinds"] == {"Say": 2, "Count": 1}
    assert [pool["model"] for pool in found["pools"]] == ["tiny-small", "tiny-medium", "tiny-large"]
    assert found["fitted"] is None and "Too little to fit a model" in found["notes"][-1]
    assert "small: 3 of 3 questions" in again.stderr and "medium: 2 of 3 questions" in again.stderr
    assert "auto as configured" in again.stdout and "## Pools" in (tmp_path / "report").read_text()
    assert broken.exit_code == 1 and "line 1: Expected `str`, got `int` - at `$.question`" in broken.output
    assert not (tmp_path / "output").exists()


async def test_a_model_that_knows_which_tier_is_needed_is_written_and_the_second_time_not_compared(
    serve: Serve, tiers: Any, tmp_path: Path
) -> None:
    """The answers are made up: all tiers are right about short questions, the large one alone about proofs."""
    prompts = [f"What is {number} plus {number}?" for number in range(50)]
    prompts += [f"Prove step by step that lemma {number} holds.\nGiven: {number} cases.\nNext." for number in range(50)]
    asked = write_questions(tmp_path / "questions", prompts)
    lines = [
        PoolAnswer(each.id, each.digest, tier, f"tiny-{tier}", 4, text, "stop", 20, 4, 0.1)
        for each in asked
        for tier in TIERS
        for text in ["good" if tier == "large" or each.kind == "What" else "bad"]
    ]
    (tmp_path / "outcomes").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    async with serve(engines=tiers) as served:
        result = await evaluate(tmp_path, served.url, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["comparison"]["difference"]["low"] > 0 and "was written" in found["notes"][-1]
    assert [pool["right"]["value"] for pool in found["pools"]] == [0.5, 0.5, 1.0]
    half = next(each for each in found["fitted"]["positions"] if each["quality"] == 50)
    assert half["above"]["low"] > 0
    model = read_model(str(tmp_path / "output"))
    assert model.metadata.trained_on == "questions, outcomes of tiny-small, tiny-medium, tiny-large"
    assert read_suite(model).outcomes.mean(axis=0).tolist() == [0.5, 0.5, 1.0]
    (tmp_path / "roundhouse.toml").write_text(f'[router]\nmodel = "{tmp_path / "output"}"\n')
    async with serve(engines=tiers) as served:
        second = await evaluate(tmp_path, served.url, "--config", str(tmp_path / "roundhouse.toml"))
    assert "was fitted on 100 of these questions" in second.stdout, second.output


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        (("--pools", "small,large"), KEY, "name three pools, from small to large"),
        (("--pools", "small,medium,huge"), KEY, "huge cannot be asked: the model 'huge' does not exist"),
        ((), "wrong", "incorrect API key"),
        (("--pools", "auto,small,medium"), KEY, "auto did not answer q0 in 12 attempts (the small tier stands in"),
        (("--url", "http://127.0.0.1:1"), KEY, "no server answers at http://127.0.0.1:1"),
        (("--questions", "/nowhere"), KEY, "--questions /nowhere: "),
    ],
)
async def test_what_cannot_be_asked_is_said(
    serve: Serve, engine: EngineThread, tmp_path: Path, words: tuple[str, ...], key: str, said: str
) -> None:
    """An answer that another tier gave is none of the pool's."""
    write_questions(tmp_path / "questions", ["Say one."])
    async with serve(engines={tier: [engine.address] for tier in ("small", "medium")}) as served:
        result = await evaluate(tmp_path, served.url, *words, key=key)
    assert result.exit_code != 0 and said in result.output, result.output
