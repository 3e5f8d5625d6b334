"""`roundhouse route`: why a prompt goes to a tier, and whether logged decisions can be made again."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console
from rich.table import Table

from gateway.cli_redis import config_option, json_option, load_settings, with_redis


@click.group()
def route() -> None:
    """Which tier answers `auto`, and why."""


@route.command()
@config_option
@json_option
@click.option("--quality", type=click.IntRange(0, 100), help="Turn the knob for this prompt.")
@click.argument("prompt")
def explain(config: str | None, as_json: bool, quality: int | None, prompt: str) -> None:
    """Decide about PROMPT as a first message, without a server: no queue, no embedding, all tiers there."""
    from gateway.tiers import TierMemory, Tiers
    from router.complexity import score
    from router.features import Message, extract
    from router.tier import TIERS, sentences

    seen = extract([Message("user", prompt)])
    complexity = score(seen)
    tiers = Tiers(load_settings(config), TierMemory(), None)
    choice = tiers.choice(seen, complexity, tiers.predict(seen), quality=quality)
    if as_json:
        click.echo(msgspec.json.encode(choice).decode())
        return
    console = Console(highlight=False)
    prediction = choice.outlook.prediction
    table = Table("tier", "value", "cost", f"value - {choice.terms.price:.4g} x cost")
    for number, tier in enumerate(TIERS):
        shown = (choice.values[number], choice.terms.costs[number], choice.utilities[number])
        mark = "[bold]" if tier == choice.tier else ""
        table.add_row(*(f"{mark}{cell}" for cell in (tier, *(f"{value:.3f}" for value in shown))))
    console.print(table)
    console.print(f"chosen: {choice.tier}, by {choice.outlook.source.value}")
    for sentence in sentences(choice):
        console.print(f"- {sentence}")
    if prediction is not None:
        familiar = "up to 1 is familiar"
        console.print(f"strangeness {prediction.strangeness:.2f} ({familiar}), model {tiers.policy.model}")
    for reason in complexity.reasons:
        console.print(f"complexity +{reason.contribution:.2f}: {reason.sentence}")
    counted = {name: value for name, value in msgspec.structs.asdict(seen).items() if value}
    console.print("features: " + ", ".join(f"{name} {value:g}" for name, value in counted.items()), soft_wrap=True)


@route.command()
@config_option
@click.option("--tenant", required=True, help="Whose decisions.")
@click.option("--count", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Newest ones to read.")
@click.option("--show", is_flag=True, help="Print each decision as a line of JSON.")
def replay(config: str | None, tenant: str, count: int, show: bool) -> None:
    """Make logged decisions again, and fail if one comes out differently."""
    from gateway.decisions import read

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
