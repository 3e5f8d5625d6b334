"""`roundhouse route evaluate`: what the tiers of a deployment are worth, and a model of success fitted to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import click
import msgspec
import numpy as np
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gateway.cli.asking import AskError, Asking, ask_all, embed
from gateway.cli.connection import config_option, json_option, load_settings, run
from gateway.cli.evaluation_tables import markdown, show
from gateway.config.settings import Settings, SettingsError
from gateway.processes.extras import missing
from router.assessment import GradedAnswers, TierEvaluation, assess, grade
from router.knob import draw, turn
from router.questions import AnswerKey, PoolAnswer, Question, read_questions
from router.success import Array, SuccessModel
from router.tier import TIERS, relative

QUESTIONS = Path(__file__).parents[2] / "deploy" / "questions" / "general.jsonl"
_LINE_SECONDS = 20.0
"""Seconds between two lines of progress where there is no terminal."""


class Chosen(Struct, frozen=True):
    """The options of one call."""

    url: str
    key: str
    pools: str
    questions: str
    outcomes: str
    output: str
    report: str | None
    max_tokens: int
    concurrency: int

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
    default=str(QUESTIONS),
    help="Questions with their graders; default: those in deploy/questions.",
)
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
    default="router.safetensors",
    show_default=True,
    help="File for the fitted model, if it is better than the one in use.",
)
@click.option("--report", type=click.Path(dir_okay=False), help="File for the tables as Markdown.")
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Most tokens of one answer.")
@click.option(
    "--concurrency", type=click.IntRange(1, 256), default=8, show_default=True, help="Questions at the same time."
)
def evaluate(config: str | None, as_json: bool, **options: Any) -> None:
    """Ask every tier of a running gateway questions with known answers, and fit the router to its models.

    It grades the answers, says what each tier and each position of the quality knob is worth, and writes a model for
    `router.model` if that chooses better than the one in use, on questions that it has not seen. Interrupt it as you
    like: the same command goes on where it stopped.

    \b
    roundhouse route evaluate
    roundhouse route evaluate --questions mine.jsonl --output mine.safetensors --report mine.md
    """
    chosen = msgspec.convert(options, Chosen)
    settings, names = load_settings(config), chosen.names
    if install := missing("evaluate"):
        raise click.ClickException(f"fitting a model needs scikit-learn: {install}")
    try:
        questions = read_questions(Path(chosen.questions).read_bytes())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"--questions {chosen.questions}: {error}") from None
    console = Console(highlight=False, stderr=as_json)
    try:
        answers, model, embeddings = run(_ask(chosen, names, questions))
        found, content = _judge(settings, chosen, questions, answers, (model, embeddings))
    except (AskError, SettingsError) as error:
        raise click.ClickException(str(error)) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"--outcomes {chosen.outcomes}: {error}") from None
    if content is not None:
        Path(chosen.output).write_bytes(content)
    if chosen.report is not None:
        today = datetime.now(UTC).date().isoformat()
        Path(chosen.report).write_text(markdown(found, f"Router: three tiers, {today}"), "utf-8")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        show(found, console)


async def _ask(
    chosen: Chosen, names: tuple[str, ...], questions: Sequence[Question]
) -> tuple[Mapping[AnswerKey, PoolAnswer], str, Array]:
    """Return the answers of all pools, the name of the embedding model, and the questions' embeddings."""
    asking = Asking(chosen.url, chosen.key, names, chosen.max_tokens, chosen.concurrency)
    async with asking.client() as client:
        # First of all: it finds out whether there is a gateway.
        model, embeddings = await embed(client, [each.prompt for each in questions])
        with _progress(names, len(questions)) as said:
            answers = await ask_all(client, asking, questions, Path(chosen.outcomes), said)
    return answers, model, embeddings


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


def _judge(
    settings: Settings,
    chosen: Chosen,
    questions: Sequence[Question],
    answers: Mapping[AnswerKey, PoolAnswer],
    embedded: tuple[str, Array],
) -> tuple[TierEvaluation, bytes | None]:
    """Compute all figures, and the fitted model if it is better than the one in use."""
    from gateway.pipeline.routing.tiers import read_model
    from router.crossfit import FEWEST, Rule, by_complexity, by_model, features, folds, held_out, vectors
    from router.fit import Examples, fit

    graded = grade(questions, chosen.names, answers)
    costs, notes = _costs(settings, chosen.names)
    rule = Rule(costs, settings.router.medium_from, settings.router.large_from)
    embedding, rows = embedded
    seen = features([each.prompt for each in questions])
    examples = Examples(
        vectors(seen),
        rows,
        graded.right.astype(np.float32),
        graded.tokens.astype(np.float32),
        tuple(each.digest for each in questions),
    )
    model = read_model(settings.router.model)
    known = set(model.metadata.digests).intersection(examples.digests)
    if known or not settings.router.learnt:
        beliefs, name = by_complexity(model, seen, rule), "The complexity score"
        if known:
            notes.append(
                f"The model in use was fitted on {len(known)} of these questions: in its place stands the complexity"
                " score."
            )
    else:
        own = rows if model.metadata.embedding == embedding else None
        beliefs, name = by_model(model, seen, own, rule), f"The model of {model.metadata.trained_on}"
    spent, drawn = graded.tokens * np.array(costs), draw(len(questions))
    in_use = (name, beliefs.familiar, turn(beliefs.outlooks, beliefs.tables, costs, graded.right, spent))
    fitted = None
    if len(questions) < FEWEST or min(graded.right.sum(), (1 - graded.right).sum()) < FEWEST / 4:
        notes.append(f"Too little to fit a model: it takes {FEWEST} questions, and answers right and wrong.")
    else:
        apart = held_out(examples, seen, folds([each.kind for each in questions], examples.digests), rule)
        routed = turn(apart.outlooks, apart.tables, costs, graded.right, spent)
        fitted = ("Every question judged by a model that had not seen it", apart.familiar, routed)
    found = assess(questions, graded, costs, in_use, fitted, drawn)
    content = None
    if found.comparison is not None and found.comparison.better:
        content = fit(examples, trained_on=_name(chosen, graded), embedding=embedding)
        notes.append(
            f"On questions apart the fitted model is better than what is configured: {chosen.output} was written"
            f" (model {SuccessModel.read(content).version}); set router.model to use it."
        )
    elif found.comparison is not None:
        notes.append(
            "On questions apart the fitted model is not better than what is configured beyond chance:"
            f" {chosen.output} was not written."
        )
    return msgspec.structs.replace(found, notes=tuple(notes)), content


def _costs(settings: Settings, pools: Sequence[str]) -> tuple[tuple[float, float, float], list[str]]:
    """Return the costs of a token at each pool, relative to the dearest, and what is to be said of them."""
    priced = {pool.name: pool.cost for pool in settings.pools} | {pool.tier: pool.cost for pool in settings.pools}
    configured = [priced[name] for name in pools if name in priced]
    costs = relative(configured)
    rises = len(configured) == len(TIERS) and [cost / configured[-1] for cost in configured] == list(costs)
    return costs, [] if rises else ["The costs of the configuration's pools do not rise: 7, 13 and 70 stand for them."]


def _name(chosen: Chosen, graded: GradedAnswers) -> str:
    return f"{Path(chosen.questions).name}, outcomes of {', '.join(graded.models)}"
