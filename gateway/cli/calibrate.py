"""`roundhouse route calibrate`: what the tiers of a deployment are worth, and a model of success learnt from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gateway.cli.asking import AskedPool, AskError, Asking, ask_all, embed, read_outcomes
from gateway.cli.calibration_tables import markdown, show
from gateway.cli.connection import config_option, json_option, load_settings, run
from gateway.cli.frontier import draw_frontier
from gateway.config.pools import PoolSettings
from gateway.config.settings import Settings, SettingsError
from gateway.config.tiers import first_pools
from gateway.processes.extras import missing
from router.canonical import canonical
from router.questions import AnswerKey, PoolAnswer, Question, read_questions
from router.questions import missing as unanswered
from router.success import Array
from router.tier import TIERS

EXAM = Path(__file__).parents[2] / "deploy" / "questions" / "general.jsonl"
_LINE_SECONDS = 20.0
"""Seconds between two lines of progress where there is no terminal."""
_CHARACTERS_OF_A_TOKEN, _TEMPLATE_TOKENS = 4, 20
"""For the estimate of what asking costs."""


class Chosen(Struct, frozen=True):
    """The options of one call."""

    url: str
    key: str
    pools: str
    questions: tuple[str, ...]
    exam: bool
    outcomes: str
    output: str | None
    report: str | None
    max_tokens: int
    concurrency: int
    yes: bool

    @property
    def names(self) -> tuple[str, ...]:
        """
        Raises:
            click.BadParameter: they are not three.
        """
        found = tuple(name.strip() for name in self.pools.split(","))
        if len(set(found)) != len(TIERS) or not all(found):
            raise click.BadParameter(
                "name three pools, from small to large: tiers, or models' names", param_hint="--pools"
            )
        return found

    def asking(self, pools: Sequence[PoolSettings]) -> Asking:
        asked = (AskedPool(name, pool.name, pool.weights) for name, pool in zip(self.names, pools, strict=True))
        return Asking(self.url, self.key, tuple(asked), self.max_tokens, self.concurrency)


@click.command()
@config_option
@json_option
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="Address of the gateway.")
@click.option("--key", default="roundhouse-demo", show_default=True, envvar="ROUNDHOUSE_API_KEY", help="API key.")
@click.option(
    "--pools", default=",".join(TIERS), show_default=True, help="Three tiers or models to ask, from small to large."
)
@click.option(
    "--questions",
    type=click.Path(dir_okay=False),
    multiple=True,
    help="Prompts of your own with their graders, beside the exam; may be given several times.",
)
@click.option("--exam/--no-exam", default=True, show_default=True, help="Whether the questions of the release count.")
@click.option(
    "--outcomes",
    type=click.Path(dir_okay=False),
    default="route-outcomes.jsonl",
    show_default=True,
    help="File that keeps the answers; what it has is not asked again.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    help="File for the model, for `router.model`, instead of installing it.",
)
@click.option(
    "--report", type=click.Path(dir_okay=False), help="File for the tables as Markdown; the plot is beside it, as PNG."
)
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Most tokens of one answer.")
@click.option(
    "--concurrency", type=click.IntRange(1, 256), default=8, show_default=True, help="Questions at the same time."
)
@click.option("--yes", is_flag=True, help="Ask the pools without asking you first.")
def calibrate(config: str | None, as_json: bool, **options: Any) -> None:
    """Ask every tier of a running gateway questions with known answers, and teach the router what they are good at.

    It says what asking costs, grades the answers, shows what each tier and each position of the quality knob is worth,
    and installs a model for these tiers if that chooses better than a mixture of them and than the model in use, on
    questions that it has not seen. Interrupt it as you like: the same command goes on where it stopped.

    \b
    roundhouse route calibrate
    roundhouse route calibrate --questions mine.jsonl --report calibration.md
    """
    chosen = msgspec.convert(options, Chosen)
    settings, names = load_settings(config), chosen.names
    if install := missing("calibrate"):
        raise click.ClickException(f"calibrating needs scikit-learn and matplotlib: {install}")
    pools, questions = _pools(settings, names), _questions(chosen)
    if chosen.output is None and [pool.tier for pool in pools] != list(TIERS):
        raise click.BadParameter("a model of other pools than small,medium,large needs --output", param_hint="--pools")
    asking = chosen.asking(pools)
    console = Console(highlight=False, stderr=as_json)
    from gateway.cli.calibration_fit import judge

    try:
        embedded = run(_embed(asking, questions))
        _confirm(settings, chosen, pools, questions)
        answers = run(_ask(chosen, asking, questions))
    except AskError as error:
        raise click.ClickException(str(error)) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"--outcomes {chosen.outcomes}: {error}") from None
    try:
        found, model = judge(settings, pools, questions, names, answers, embedded)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    if model is not None:
        note = _install(settings, chosen, model)
        found = msgspec.structs.replace(found, notes=(*found.notes, note))
    if chosen.report is not None:
        report = Path(chosen.report)
        picture = draw_frontier(found, report.with_suffix(".png"))
        today = datetime.now(UTC).date().isoformat()
        report.write_text(markdown(found, f"Router: three tiers, {today}", picture.name), "utf-8")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        show(found, console)


def _pools(settings: Settings, names: Sequence[str]) -> list[PoolSettings]:
    """Return the pools that are asked."""
    known = {pool.name: pool for pool in settings.pools} | first_pools(settings.pools)
    for name in names:
        if name not in known:
            raise click.ClickException(
                f"--pools: the configuration has no pool {name}; give --config that of the gateway, or name others"
            )
    return [known[name] for name in names]


def _questions(chosen: Chosen) -> list[Question]:
    """Read all questions; one that two files have is asked once."""
    files = [*([str(EXAM)] if chosen.exam else []), *chosen.questions]
    if not files:
        raise click.UsageError("--no-exam leaves no questions: give --questions")
    found: dict[str, Question] = {}
    for file in files:
        try:
            for question in read_questions(Path(file).read_bytes()):
                found.setdefault(question.digest, question)
        except (OSError, ValueError) as error:
            raise click.ClickException(f"--questions {file}: {error}") from None
    return list(found.values())


async def _embed(asking: Asking, questions: Sequence[Question]) -> tuple[str, Array]:
    """Return the name of the embedding model and the questions' embeddings; finds out whether there is a gateway."""
    async with asking.client() as client:
        return await embed(client, [canonical(each.prompt) for each in questions])


def _confirm(settings: Settings, chosen: Chosen, pools: Sequence[PoolSettings], questions: Sequence[Question]) -> None:
    """Say what asking costs at most, and ask whether to."""
    answers = read_outcomes(Path(chosen.outcomes), chosen.asking(pools))
    prices, dollars, priced, left = {price.name: price for price in settings.prices}, 0.0, True, 0
    for name, pool in zip(chosen.names, pools, strict=True):
        asked = unanswered(questions, name, answers)
        left += len(asked)
        prompts = sum(len(each.prompt) // _CHARACTERS_OF_A_TOKEN + _TEMPLATE_TOKENS for each in asked)
        most = len(asked) * chosen.max_tokens
        click.echo(
            f"{name} ({pool.name}): {len(asked)} of {len(questions)} questions are left to ask, about {prompts:,} "
            f"tokens of prompts and at most {most:,} of answers",
            err=True,
        )
        price = prices.get(pool.name)
        priced &= price is not None
        dollars += (prompts * price.input + most * price.output) / 1e12 if price is not None else 0.0
    if not left:
        return
    if priced:
        click.echo(f"At the configured prices that is at most {dollars:.2f} dollars.", err=True)
    if not chosen.yes:
        click.confirm("Ask them?", abort=True, err=True)


async def _ask(chosen: Chosen, asking: Asking, questions: Sequence[Question]) -> Mapping[AnswerKey, PoolAnswer]:
    async with asking.client() as client:
        with _progress(chosen.names, len(questions)) as said:
            return await ask_all(client, asking, questions, Path(chosen.outcomes), said)


def _install(settings: Settings, chosen: Chosen, model: bytes) -> str:
    """Write the model so that a gateway which reads finds the old one or the new one; say where it is."""
    from gateway.pipeline.routing.calibration import installed

    path = installed(settings) if chosen.output is None else Path(chosen.output)
    new = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(model)
        os.replace(new, path)
    except OSError as error:
        raise click.ClickException(f"the model cannot be written ({error}): name a file with --output") from None
    use = (
        "gateways with these pools use it from their next start" if chosen.output is None else "set router.model to it"
    )
    return f"The model was written to {path}: {use}."


class _Said(Protocol):
    def __call__(self, pool: str, done: int) -> None: ...


@contextmanager
def _progress(pools: Sequence[str], total: int) -> Iterator[_Said]:
    """Show how many questions each pool has answered, and how long the rest will take."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines(total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, speed_estimate_period=120) as shown:
        tasks: dict[str, TaskID] = {pool: shown.add_task(pool, total=total, start=False) for pool in pools}

        def said(pool: str, done: int) -> None:
            shown.start_task(tasks[pool])
            shown.update(tasks[pool], completed=done)

        yield said


def _lines(total: int) -> _Said:
    """Print a line when a pool begins and ends, and now and then between."""
    begun: dict[str, tuple[float, int]] = {}
    last = float("-inf")

    def said(pool: str, done: int) -> None:
        nonlocal last
        now = monotonic()
        started, at = begun.setdefault(pool, (now, done))
        if done in (at, total) or now - last >= _LINE_SECONDS:
            left = f", about {(now - started) / (done - at) * (total - done):.0f} s left" if at < done < total else ""
            click.echo(f"{pool}: {done} of {total} questions{left}", err=True)
            last = now

    return said
