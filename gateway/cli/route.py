"""`roundhouse route`: why a prompt goes to a tier, and whether logged decisions can be made again."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console
from rich.table import Table

from gateway.cli.calibrate import calibrate
from gateway.cli.connection import config_option, json_option, load_settings, with_redis
from gateway.cli.refit import refit
from gateway.cli.route_stats import stats


@click.group()
def route() -> None:
    """See which tier answers `auto` and why, and teach the router by feedback; see docs/routing.md.

    \b
    roundhouse route explain "Prove that there are infinitely many primes."
    roundhouse route replay --tenant acme
    roundhouse route calibrate
    roundhouse route stats --tenant acme
    """


@route.command()
@config_option
@json_option
@click.option("--quality", type=click.IntRange(0, 100), help="What quality may cost, as `router.quality`.")
@click.argument("prompt")
def explain(config: str | None, as_json: bool, quality: int | None, prompt: str) -> None:
    """Show which tier `auto` would choose for PROMPT as a first message, and why. It asks no server."""
    from gateway.pipeline.routing import explaining
    from gateway.pipeline.routing.tiers import TierMemory, Tiers
    from router.tier import NEVER, TIERS, sentences

    found = explaining.explain(Tiers(load_settings(config), TierMemory(), None), prompt, quality)
    choice = found.choice
    if as_json:
        click.echo(msgspec.json.encode(choice).decode())
        return
    console = Console(highlight=False)
    prediction, price, costs = choice.outlook.prediction, choice.price, choice.costs
    # At the knob's lower end no value outweighs a cost: the sum would be a number without meaning.
    table = Table("tier", "value", "cost", f"value - {price:.4g} x cost" if price < NEVER else "cost alone counts")
    sums = choice.utilities if price < NEVER else tuple(-cost for cost in costs)
    for number, tier in enumerate(TIERS):
        shown = (choice.values[number], costs[number], sums[number])
        mark = "[bold]" if tier == choice.tier else ""
        table.add_row(*(f"{mark}{cell}" for cell in (tier, *(f"{value:.3f}" for value in shown))))
    console.print(table)
    console.print(f"chosen: {choice.tier}, by {choice.outlook.source.value}")
    for sentence in sentences(choice):
        console.print(f"- {sentence}")
    if found.uncalibrated:
        console.print(f"not calibrated for these models: {found.uncalibrated}", soft_wrap=True)
    if prediction is not None:
        console.print(f"strangeness {prediction.strangeness:.2f} (up to 1 is familiar), model {found.model}")
    for reason in found.complexity.reasons:
        console.print(f"complexity +{reason.contribution:.2f}: {reason.sentence}")
    features = ", ".join(f"{name} {value:g}" for name, value in found.features.items())
    console.print(f"features: {features}", soft_wrap=True)


@route.command()
@config_option
@click.option("--tenant", required=True, help="Tenant whose decisions are read.")
@click.option("--count", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Decisions to read.")
@click.option("--show", is_flag=True, help="Print each decision as a line of JSON.")
def replay(config: str | None, tenant: str, count: int, show: bool) -> None:
    """Make the logged decisions of a tenant again; exit with 1 if one comes out differently."""
    from gateway.pipeline.routing.decisions import read

    try:
        found = with_redis(load_settings(config), lambda redis: read(redis, tenant, count))
    except ValueError as error:
        raise click.ClickException(f"the log of {tenant} holds something else: {error}") from None
    if show:
        for each in found:
            click.echo(msgspec.json.encode(each).decode())
    different = [each.response for each in found if not each.reproducible]
    click.echo(f"{len(found)} decisions, {len(found) - len(different)} made again alike", err=show)
    if different:
        raise click.ClickException(f"decided otherwise: {', '.join(different[:20])}")


route.add_command(calibrate)
route.add_command(refit)
route.add_command(stats)
