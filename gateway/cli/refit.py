"""`roundhouse route refit`: corrects the router's model by what users thought of answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from redis.asyncio import Redis

from gateway.cli.connection import config_option, load_settings, with_redis
from gateway.config.settings import Settings, SettingsError
from gateway.pipeline.routing.calibration import calibration, rates
from gateway.pipeline.routing.decisions import (
    Feedback,
    LoggedDecision,
    judged_answers,
    preferences,
    read,
    read_feedback,
)
from gateway.pipeline.routing.judgements import JudgeOpinion, judged_preferences, read_judgements, trusts
from router.correction import Correction, correct
from router.judging import FEWEST, Trust
from router.off_policy import drift
from router.refit import read_suite
from router.success import SuccessModel


@click.command()
@config_option
@click.option("--tenant", "tenants", required=True, multiple=True, help="Tenant to learn from; may be repeated.")
@click.option("--output", required=True, type=click.Path(dir_okay=False), help="File for the new model.")
@click.option("--count", type=click.IntRange(1, 1_000_000), default=100_000, show_default=True, help="Entries to read.")
def refit(config: str | None, tenants: tuple[str, ...], output: str, count: int) -> None:
    """Correct the router's model by users' feedback, and write it if it would have chosen better.

    The newest third of the judged answers says so, if `router.explore` draws tiers; else the frozen suite, on which the
    new model may not be worse. Set `router.model` to the new file to use it.

    \b
    roundhouse route refit --tenant acme --output corrected.model
    """
    settings = load_settings(config)
    try:
        calibrated = calibration(settings)
        model = calibrated.model
        if model is None:
            raise click.ClickException(f"{calibrated.why}: there is nothing to correct; see roundhouse route calibrate")
        suite = read_suite(model)
        decisions, feedback, judgements = collect(settings, tenants, count)
    except (SettingsError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    answers = judged_answers(decisions, feedback, model.version)
    trusted = trusts(judgements, feedback)
    judged = judged_preferences(judgements, decisions, feedback, model.version, trusted)
    preferred = [*preferences(decisions, feedback, model.version), *judged]
    for judge, found in trusted.items():
        click.echo(told(judge, found))
    if not (answers or preferred):
        raise click.ClickException(f"no feedback about decisions of the model {model.version}: nothing to learn from")
    for change in drift(answers):
        seen = f"{change.before:+.0%} good answers beside what was expected before, {change.now:+.0%} now"
        click.echo(f"the {change.tier} tier has changed: {seen}")
    made = correct(model, answers, preferred, suite, rates(settings)[1])
    click.echo(f"{made.taught} opinions, {len(preferred)} comparisons, {len(judged)} of them a judge's")
    _show(made, len(answers) - made.taught)
    if made.objection is not None:
        raise click.ClickException(f"{made.objection}: {output} was not written")
    Path(output).write_bytes(made.content)
    click.echo(f"model {SuccessModel.read(made.content).version} written to {output}; set router.model to use it")


def collect(
    settings: Settings, tenants: Sequence[str], count: int
) -> tuple[list[LoggedDecision], list[Feedback], list[JudgeOpinion]]:
    """Read the newest decisions, people's feedback and a judge's opinions of tenants. Raises ValueError."""

    async def collected(redis: Redis) -> tuple[list[LoggedDecision], list[Feedback], list[JudgeOpinion]]:
        return (
            [each for tenant in tenants for each in await read(redis, tenant, count)],
            [each for tenant in tenants for each in await read_feedback(redis, tenant, count)],
            [each for tenant in tenants for each in await read_judgements(redis, tenant, count)],
        )

    return with_redis(settings, collected)


def told(judge: str, found: Trust) -> str:
    """Say for people how often a judge agrees with people, and what follows."""
    if not found.pairs:
        return (
            f"judge {judge}: people have compared nothing of which it has an opinion: the router does not learn from it"
        )
    agreement, ahead = found.agreement, found.ahead
    said = (
        f"judge {judge}: agrees with people on {agreement.value:.0%} [{agreement.low:.0%}, {agreement.high:.0%}] of "
        f"{found.pairs} pairs that both have compared, {ahead.value:+.0%} [{ahead.low:+.0%}, {ahead.high:+.0%}] beside "
        f"always naming {found.rule}: "
    )
    if found.established:
        return f"{said}an opinion counts {found.weight:.2f} of a person's"
    few = f", which takes {FEWEST} pairs" if found.pairs < FEWEST else ""
    return f"{said}the router does not learn from it{few}"


def _show(found: Correction, kept: int) -> None:
    if found.gain is not None:
        click.echo(f"by the {kept} newest judged answers: {found.gain} good answers more per request, less their cost")
    if found.verdict is not None:
        click.echo("on the frozen suite, new less old:")
        click.echo(f"  area {found.verdict.area} (more is better)")
        click.echo(f"  Brier {found.verdict.brier} (less is better)")
