"""`roundhouse route calibrate`: asks real engines, goes on after an interruption, and installs only what is better."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.cli import asking, calibration_fit, repeating
from gateway.cli.root import main
from gateway.config.settings import load
from gateway.pipeline.routing.calibration import calibration, installed, read_model
from router.crossfit import folds
from router.questions import PoolAnswer, Question, read_questions
from router.refit import read_suite
from router.tier import TIERS
from tests.gateway.conftest import KEY, EngineThread, Serve

pytestmark = pytest.mark.anyio


@pytest.fixture
def tiers(engine: EngineThread) -> dict[str, list[str]]:
    return {tier: [engine.address] for tier in TIERS}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses, and half of the fits."""
    monkeypatch.setattr(repeating, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(calibration_fit, "folds", partial(folds, count=5))


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


def configuration(folder: Path, prices: bool = False) -> Path:
    """Write a configuration with the pools of the gateway, at prices of dollars a token."""
    lines = [f'[redis]\ndata = "{folder / "data"}"\n']
    for number, tier in enumerate(TIERS, 1):
        lines.append(f'[[pools]]\ntier = "{tier}"\nname = "tiny-{tier}"\nmodel = "m"\ncost = {number}\n')
        if prices:
            lines.append(f'[[prices]]\nname = "tiny-{tier}"\ninput = {number * 10**11}\noutput = {number * 10**11}\n')
    path = folder / "roundhouse.toml"
    path.write_text("".join(lines))
    return path


async def calibrate(folder: Path, url: str, *words: str, key: str = KEY, answer: str | None = None) -> Result:
    """Run the command, with its files in `folder`; it has an event loop of its own.

    Args:
        answer: to the question whether to ask; None: it is not put.
    """
    files = {name: str(folder / name) for name in ("questions", "outcomes", "report")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    options += ["--no-exam", "--config", str(configuration(folder)), *(["--yes"] if answer is None else [])]
    words = ("route", "calibrate", "--url", url, "--key", key, "--max-tokens", "4", *options, *words)
    return await asyncio.to_thread(partial(CliRunner().invoke, main, words, input=answer))


def answered(folder: Path) -> list[PoolAnswer]:
    return [msgspec.json.decode(line, type=PoolAnswer) for line in (folder / "outcomes").read_bytes().splitlines()]


async def test_every_tier_is_asked_every_question_and_an_interruption_loses_nothing(
    serve: Serve, tiers: Any, tmp_path: Path
) -> None:
    write_questions(tmp_path / "questions", ["Say one.", "Say two.", "Count to three."])
    async with serve(engines=tiers) as served:
        unasked = await calibrate(tmp_path, served.url, answer="n\n")
        assert unasked.exit_code == 1 and not (tmp_path / "outcomes").exists()
        first = await calibrate(tmp_path, served.url, "--json")
        assert first.exit_code == 0, first.output
        all_answers = answered(tmp_path)
        kept = (tmp_path / "outcomes").read_bytes().splitlines(keepends=True)
        # As if it was killed while it wrote the sixth answer.
        (tmp_path / "outcomes").write_bytes(b"".join(kept[:5]) + kept[5][:30])
        again = await calibrate(tmp_path, served.url, answer="y\n")
        assert again.exit_code == 0, again.output
        (tmp_path / "outcomes").write_bytes(b'{"question": 7}\n')
        broken = await calibrate(tmp_path, served.url)
    assert sorted((each.pool, each.question) for each in all_answers) == sorted(
        (tier, f"q{number}") for tier in TIERS for number in range(3)
    )
    assert {each.model for each in all_answers if each.pool == "small"} == {"tiny-small"}
    assert all(0 < each.output_tokens <= 4 and each.input_tokens > 0 for each in all_answers)
    found = json.loads(first.stdout)
    assert found["questions"] == 3 and found["kinds"] == {"Say": 2, "Count": 1}
    assert [pool["model"] for pool in found["pools"]] == ["tiny-small", "tiny-medium", "tiny-large"]
    assert found["fitted"] is None and "Too little to learn from" in found["notes"][-1]
    said = "medium (tiny-medium): 1 of 3 questions are left to ask"
    assert "small (tiny-small): 3 of 3 questions are left to ask" in unasked.output and said in again.output
    assert "small: 3 of 3 questions" in again.stderr and "medium: 2 of 3 questions" in again.stderr
    assert "auto as configured" in again.stdout and "## Pools" in (tmp_path / "report").read_text()
    assert broken.exit_code == 1 and "line 1: Expected `str`, got `int` - at `$.question`" in broken.output
    assert not installed(load(configuration(tmp_path), environ={})).exists()
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


async def test_answers_of_other_weights_are_asked_for_anew(serve: Serve, tiers: Any, tmp_path: Path) -> None:
    """They would teach a model that says it was learnt from these."""
    write_questions(tmp_path / "questions", ["Say one."])
    async with serve(engines=tiers) as served:
        await calibrate(tmp_path, served.url)
        small, *others = answered(tmp_path)
        lines = [msgspec.structs.replace(small, weights="those before"), *others]
        (tmp_path / "outcomes").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        again = await calibrate(tmp_path, served.url)
    assert "small (tiny-small): 1 of 1 questions are left" in again.output, again.output
    assert "large (tiny-large): 0 of 1 questions are left" in again.output
    assert answered(tmp_path)[-1].weights == "tiny-small"


async def test_a_gateway_with_another_configuration_is_noticed(serve: Serve, tiers: Any, tmp_path: Path) -> None:
    asked = write_questions(tmp_path / "questions", ["Say one."])
    async with serve(engines=tiers) as served:
        pools = asking.Asking(served.url, KEY, (asking.AskedPool("small", "other", "other"),), 4, 1)
        async with pools.client() as client:
            with pytest.raises(repeating.AskError, match="answered by tiny-small, in the configuration it is other"):
                await asking.ask_all(client, pools, asked, tmp_path / "outcomes", lambda pool, done: None)


async def test_what_asking_costs_is_said_in_dollars(serve: Serve, tiers: Any, tmp_path: Path) -> None:
    """As far as prices are configured: 24 tokens of prompt and 4 of answer, at 10, 20 and 30 cents a token."""
    write_questions(tmp_path / "questions", ["Say one, and two."])
    async with serve(engines=tiers) as served:
        config = configuration(tmp_path, prices=True)
        words = ("route", "calibrate", "--url", served.url, "--key", KEY, "--config", str(config), "--max-tokens", "4")
        files = ("--no-exam", "--questions", str(tmp_path / "questions"), "--outcomes", str(tmp_path / "outcomes"))
        result = await asyncio.to_thread(partial(CliRunner().invoke, main, (*words, *files), input="n\n"))
    assert f"at most {28 * 0.6:.2f} dollars" in result.output, result.output


async def test_a_model_that_knows_which_tier_is_needed_is_installed_and_the_second_time_not_compared(
    serve: Serve, tiers: Any, tmp_path: Path
) -> None:
    """The answers are made up: all tiers are right about short questions, the large one alone about proofs."""
    prompts = [f"What is {number} plus {number}?" for number in range(50)]
    prompts += [f"Prove step by step that lemma {number} holds.\nGiven: {number} cases.\nNext." for number in range(50)]
    asked = write_questions(tmp_path / "questions", prompts)
    lines = [
        PoolAnswer(each.id, each.digest, tier, f"tiny-{tier}", 4, text, "stop", 20, 4, 0.1, f"tiny-{tier}")
        for each in asked
        for tier in TIERS
        for text in ["good" if tier == "large" or each.kind == "What" else "bad"]
    ]
    (tmp_path / "outcomes").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    async with serve(engines=tiers) as served:
        result = await calibrate(tmp_path, served.url, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["comparison"]["difference"]["low"] > 0 and "The model was written to" in found["notes"][-1]
    assert [pool["right"]["value"] for pool in found["pools"]] == [0.5, 0.5, 1.0]
    # The large tier for half of the questions, the small one for the others, costs two thirds: 60 is above that.
    enough = next(each for each in found["fitted"]["positions"] if each["quality"] == 60)
    assert enough["above"]["low"] > 0
    settings = load(configuration(tmp_path), environ={})
    model = calibration(settings).model
    assert model is not None and model is read_model(str(installed(settings)))
    assert model.metadata.trained_on == "answers of tiny-small, tiny-medium, tiny-large"
    assert model.metadata.models == ("tiny-small", "tiny-medium", "tiny-large")
    assert read_suite(model).outcomes.mean(axis=0).tolist() == [0.5, 0.5, 1.0] and len(read_suite(model).outcomes) == 20
    async with serve(engines=tiers) as served:
        second = await calibrate(tmp_path, served.url, "--output", str(tmp_path / "named"))
    assert "knows 100 of these questions" in second.stdout, second.output
    assert (
        "set router.model to it" in second.stdout
        and (tmp_path / "named").read_bytes() == installed(settings).read_bytes()
    )


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        (("--pools", "small,large"), KEY, "name three pools, from small to large"),
        (("--pools", "small,large,medium"), KEY, "needs --output"),
        (("--pools", "small,medium,huge"), KEY, "the configuration has no pool huge"),
        (("--pools", "small,medium,large"), KEY, "large cannot be asked: the model 'large' does not exist"),
        ((), "wrong", "incorrect API key"),
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
        result = await calibrate(tmp_path, served.url, *words, key=key)
    assert result.exit_code != 0 and said in result.output, result.output


async def test_an_answer_that_another_tier_gave_is_none_of_the_pools(
    serve: Serve, engine: EngineThread, tmp_path: Path
) -> None:
    asked = write_questions(tmp_path / "questions", ["Say one."])
    async with serve(engines={"small": [engine.address]}) as served:
        pools = asking.Asking(served.url, KEY, (asking.AskedPool("auto", "tiny-small", "tiny-small"),), 4, 1)
        async with pools.client() as client:
            with pytest.raises(
                repeating.AskError, match=r"auto did not answer q0 in 12 attempts \(the small tier stands"
            ):
                await asking.ask_all(client, pools, asked, tmp_path / "outcomes", lambda pool, done: None)
