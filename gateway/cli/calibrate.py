"""`roundhouse route calibrate`: what the tiers of a deployment are worth, and a model of success learnt from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct
from rich.console import Console

from gateway.cli.asking import AskedPool, Asking, ask_all, embed, read_outcomes
from gateway.cli.calibration_cost import dollars, judge_questions, pool_questions
from gateway.cli.calibration_tables import markdown, show
from gateway.cli.connection import config_option, json_option, load_settings, run
from gateway.cli.frontier import draw_frontier
from gateway.cli.judging import ask_judge, comparisons, read_verdicts, with_opinions
from gateway.cli.progress import progress
from gateway.cli.repeating import AskError
from gateway.config.pools import PoolSettings
from gateway.config.settings import Settings, SettingsError
from gateway.config.tiers import first_pools
from gateway.processes.extras import missing
from router.assessment import GradedAnswers, grade
from router.canonical import canonical
from router.pairwise import JudgeFigures
from router.questions import Question, read_questions
from router.success import Array
from router.tier import TIERS

EXAM = Path(__file__).parents[2] / "deploy" / "questions" / "general.jsonl"


class Chosen(Struct, frozen=True):
    """The options of one call."""

    url: str
    key: str
    pools: str
    questions: tuple[str, ...]
    exam: bool
    outcomes: str
    judge: str | None
    verdicts: str
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
    help="Prompts of your own, with graders or without, beside the exam; may be given several times.",
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
    "--judge",
    help="Pool whose model compares answers that nothing can grade, and is measured by the others; default: judge.pool"
    " if there are such answers.",
)
@click.option(
    "--verdicts",
    type=click.Path(dir_okay=False),
    default="route-verdicts.jsonl",
    show_default=True,
    help="File that keeps what the judge says; it is not asked the same again.",
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
    """Ask every tier of a running gateway questions, and teach the router what they are good at.

    It says what asking costs, grades the answers, shows what each tier and each position of the quality knob is worth,
    and installs a model for these tiers if that chooses better than a mixture of them and than the model in use, on
    questions that it has not seen. Answers that nothing can grade are compared by a judge, which is measured by the
    others. Interrupt it as you like: the same command goes on where it stopped.

    \b
    roundhouse route calibrate
    roundhouse route calibrate --questions mine.jsonl --judge qwen2.5-coder-1.5b --report calibration.md
    """
    chosen = msgspec.convert(options, Chosen)
    settings, names = load_settings(config), chosen.names
    if install := missing("calibrate"):
        raise click.ClickException(f"calibrating needs scikit-learn and matplotlib: {install}")
    pools, questions = _pools(settings, names), _questions(chosen)
    judge = _judge(settings, chosen, questions)
    if chosen.output is None and [pool.tier for pool in pools] != list(TIERS):
        raise click.BadParameter("a model of other pools than small,medium,large needs --output", param_hint="--pools")
    asking = chosen.asking(pools)
    console = Console(highlight=False, stderr=as_json)
    from gateway.cli.calibration_fit import evaluate

    try:
        embedded = run(_embed(asking, questions))
        _confirm(settings, chosen, asking, questions, judge)
        graded, figures = run(_ask(chosen, asking, questions, judge))
    except AskError as error:
        raise click.ClickException(str(error)) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"--outcomes, --verdicts: {error}") from None
    try:
        found, model = evaluate(settings, pools, questions, graded, embedded, figures)
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


def _judge(settings: Settings, chosen: Chosen, questions: Sequence[Question]) -> AskedPool | None:
    """Return who compares answers; None if nobody has to, and nobody is to be measured."""
    ungraded = sum(each.grade is None for each in questions)
    if not ungraded and chosen.judge is None:
        return None
    if ungraded == len(questions):
        raise click.UsageError(
            "no question has a `grade`: a judge is measured by questions that have one, such as those of the exam"
        )
    name = chosen.judge or settings.judge.pool
    if name is None:
        raise click.UsageError(
            f"{ungraded} questions have no `grade`: name the pool whose model compares the answers with --judge"
        )
    pool = next((each for each in settings.pools if each.name == name), None)
    if pool is None:
        known = ", ".join(each.name for each in settings.pools)
        raise click.BadParameter(f"the configuration has no pool {name}; name one of {known}", param_hint="--judge")
    return AskedPool(pool.name, pool.name, pool.weights)


def _confirm(
    settings: Settings, chosen: Chosen, asking: Asking, questions: Sequence[Question], judge: AskedPool | None
) -> None:
    """Say what asking costs at most, and ask whether to."""
    answers = read_outcomes(Path(chosen.outcomes), asking)
    left = [pool_questions(asking, pool, questions, answers) for pool in asking.pools]
    if judge is not None:
        verdicts = read_verdicts(Path(chosen.verdicts), judge)
        left.append(judge_questions(asking, judge, questions, answers, verdicts))
    for each in left:
        click.echo(str(each), err=True)
    if not any(each.requests for each in left):
        return
    if (most := dollars(left, settings.prices)) is not None:
        click.echo(f"At the configured prices that is at most {most:.2f} dollars.", err=True)
    if not chosen.yes:
        click.confirm("Ask them?", abort=True, err=True)


async def _ask(
    chosen: Chosen, asking: Asking, questions: Sequence[Question], judge: AskedPool | None
) -> tuple[GradedAnswers, JudgeFigures | None]:
    """Ask all pools, and then the judge; return the graded answers, and what the judge is worth."""
    async with asking.client() as client:
        with progress(chosen.names, len(questions)) as said:
            answers = await ask_all(client, asking, questions, Path(chosen.outcomes), said)
        graded = grade(questions, chosen.names, answers)
        if judge is None:
            return graded, None
        compared, path = comparisons(questions, graded, answers), Path(chosen.verdicts)
        total = sum(len(each.prompts) for each in compared)
        with progress([judge.name], total, "comparisons") as said:
            verdicts = await ask_judge(client, judge, compared, path, chosen.concurrency, said)
    return with_opinions(judge, graded, compared, verdicts)


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
