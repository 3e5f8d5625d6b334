"""`roundhouse route stats`: what people and a judge think of the tiers' answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from gateway.cli.connection import config_option, json_option, load_settings
from gateway.cli.refit import collect, told
from gateway.pipeline.routing.decisions import Feedback
from gateway.pipeline.routing.judgements import JudgeOpinion, trusts
from router.judging import Trust
from router.tier import TIERS

_SINGLE = ("up", "down", "withdrawn", "regenerate", "edit")
_SIDES = [(one, other) for one in TIERS for other in TIERS if one != other]


class Preferred(Struct, frozen=True):
    """How often a tier's answer was preferred over another tier's."""

    tier: str
    over: str
    count: int


class JudgeStats(Struct, frozen=True):
    """What a judge has said."""

    judge: str
    pairs: int
    undecided: int
    """Pairs of which it has no opinion."""
    contradicted: int
    """Those of which it named another answer in the other order."""
    preferred: list[Preferred]
    trust: Trust
    established: bool
    weight: float


class OpinionStats(Struct, frozen=True):
    """What people and judges think of answers."""

    signals: dict[str, int]
    preferred: list[Preferred]
    judges: list[JudgeStats]


def summed(feedback: Sequence[Feedback], judgements: Sequence[JudgeOpinion]) -> OpinionStats:
    """Sum up opinions."""
    signals = Counter(str(each.signal) for each in feedback)
    people = Counter((each.tier, other.tier) for each in feedback for other in each.over)
    return OpinionStats(
        signals={signal: signals[signal] for signal in _SINGLE},
        preferred=_preferred(people),
        judges=[
            _judge(judge, [each for each in judgements if each.judge == judge], found)
            for judge, found in sorted(trusts(judgements, feedback).items())
        ],
    )


def _judge(judge: str, own: Sequence[JudgeOpinion], found: Trust) -> JudgeStats:
    return JudgeStats(
        judge=judge,
        pairs=len(own),
        undecided=sum(not each.opinion for each in own),
        contradicted=sum(each.said[0] * each.said[1] < 0 for each in own),
        preferred=_preferred(Counter(each.named for each in own if each.named)),
        trust=found,
        established=found.established,
        weight=found.weight,
    )


def _preferred(counted: Counter[tuple[str, str]]) -> list[Preferred]:
    return [Preferred(*sides, counted[sides]) for sides in _SIDES]


@click.command()
@config_option
@json_option
@click.option("--tenant", "tenants", required=True, multiple=True, help="Tenant to read; may be repeated.")
@click.option("--count", type=click.IntRange(1, 1_000_000), default=100_000, show_default=True, help="Entries to read.")
def stats(config: str | None, as_json: bool, tenants: tuple[str, ...], count: int) -> None:
    """Show what people and a judge think of answers, and how often they agree.

    \b
    roundhouse route stats --tenant acme
    """
    try:
        _, feedback, judgements = collect(load_settings(config), tenants, count)
    except ValueError as error:
        raise click.ClickException(f"a log holds something else: {error}") from None
    found = summed(feedback, judgements)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    console = Console(highlight=False)
    console.print(", ".join(f"{number} {signal}" for signal, number in found.signals.items()))
    table = Table("preferred", "over", "people", *(f"judge {each.judge}" for each in found.judges))
    columns = (found.preferred, *(each.preferred for each in found.judges))
    for row in zip(*columns, strict=True):
        table.add_row(row[0].tier, row[0].over, *(str(each.count) for each in row))
    console.print(table)
    for each in found.judges:
        order = f"{each.contradicted} because the order changed it"
        console.print(
            f"judge {each.judge}: {each.pairs} pairs, no opinion on {each.undecided} ({order})", soft_wrap=True
        )
        console.print(told(each.judge, each.trust), soft_wrap=True)
