"""Shows what `roundhouse route calibrate` found: tables for the terminal, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.assessment import AutoFigures, TierEvaluation
from router.evaluation import Interval
from router.judging import FEWEST
from router.pairwise import JudgeFigures
from router.tier import TIERS


class TableSection(Struct, frozen=True):
    """A table with what is to be said of it."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text: str
    words: int = 1
    """Columns that hold words; figures follow, aligned to the right."""


def sections(found: TierEvaluation) -> Iterator[TableSection]:
    """Yield the tables, most important first."""
    yield _pools(found)
    yield _kinds(found)
    if found.judge is not None:
        yield _judge(found.judge)
    if found.fitted is not None:
        yield _knob(found.fitted, "auto, fitted on these questions")
    yield _knob(found.in_use, "auto as configured")
    yield _verdict(found)


def _pools(found: TierEvaluation) -> TableSection:
    rows = [
        (
            each.pool,
            each.model,
            _interval(each.right),
            f"{each.spent:.0%}",
            _points(each.above),
            f"{each.input_tokens:.0f}",
            f"{each.output_tokens:.0f}",
            f"{each.seconds:.1f}",
            f"{each.cut:.0%}",
        )
        for each in found.pools
    ]
    costs = " : ".join(f"{cost:.3g}" for cost in found.costs)
    below = [each.pool for each in found.pools if each.above < 0]
    text = (
        f"{found.questions} questions. Cost: of the tokens ({costs} for a token), as a share of the dearest pool's."
        " Frontier: right answers less those of the best mixture of the other pools for the same cost."
        f" An oracle that knows the cheapest right answer: {found.oracle.right:.0%} for {found.oracle.spent:.0%}."
    )
    if below:
        text += f" Below the frontier: {', '.join(below)}; a mixture of the others answers more for the same money."
    header = ("pool", "model", "right", "cost", "frontier", "tokens in", "out", "seconds", "cut off")
    return TableSection("pools", header, rows, text, words=2)


def _kinds(found: TierEvaluation) -> TableSection:
    rows = [
        (kind, str(number), *(f"{each.kinds[kind]:.0%}" for each in found.pools))
        for kind, number in found.kinds.items()
    ]
    return TableSection("right answers by kind", ("kind", "questions", *(each.pool for each in found.pools)), rows, "")


def _judge(judge: JudgeFigures) -> TableSection:
    trust, telling = judge.trust, judge.trust.pairs + judge.silent
    rows = [
        (
            "of a right and a wrong answer names the right one, where it names one",
            str(trust.pairs),
            _interval(trust.agreement) if trust.pairs else "none",
        ),
        (
            "of a right and a wrong answer names none that holds in both orders",
            str(telling),
            _share(judge.silent, telling),
        ),
        ("of two right answers names one all the same", str(judge.alike), _share(judge.preferred, judge.alike)),
    ]
    beside, few = trust.ahead, f", which takes {FEWEST} pairs" if trust.pairs < FEWEST else ""
    text = f"{judge.judge} is {'better' if judge.established else 'not better beyond chance'}"
    if trust.pairs:
        text += f" than always naming {trust.rule}: {_points(beside.value)}"
        text += f" points [{_points(beside.low)}, {_points(beside.high)}]{few}."
    else:
        text += f" than a coin{few}."
    if judge.judged and judge.established:
        text += (
            f" So {judge.judged} questions without graders count: an answer is right there if it finds no other pool's"
            " better."
        )
    elif judge.judged:
        text += f" So the {judge.judged} questions without graders are left out."
    return TableSection("the judge", ("judge", "pairs", "share"), rows, text)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"


def _knob(auto: AutoFigures, title: str) -> TableSection:
    rows = [
        (
            str(each.quality),
            f"{each.spent.value:.0%}",
            _interval(each.right),
            f"{each.coin.value:.0%}",
            f"{_points(each.above.value)} [{_points(each.above.low)}, {_points(each.above.high)}]",
            " / ".join(f"{share:.0%}" for share in each.shares),
        )
        for each in auto.positions
    ]
    header = ("quality", "cost", "right", "coin", "above the coin, points", " / ".join(TIERS))
    text = f"{auto.model}; it knows {auto.familiar:.0%} of the questions."
    return TableSection(title, header, rows, text)


def _verdict(found: TierEvaluation) -> TableSection:
    rows = []
    text = [*found.notes]
    if (compared := found.comparison) is not None:
        for name, gain in (
            ("fitted", compared.fitted),
            ("as configured", compared.in_use),
            ("difference", compared.difference),
        ):
            rows.append((name, f"{_points(gain.value)} [{_points(gain.low)}, {_points(gain.high)}]"))
        if not compared.beats_coin:
            text.append("The fitted model is no better than a coin of equal cost beyond chance.")
    return TableSection("better than a coin of equal cost, points", ("auto", "on average"), rows, " ".join(text))


def _interval(figure: Interval) -> str:
    return f"{figure.value:.0%} [{figure.low:.0%}, {figure.high:.0%}]"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def show(found: TierEvaluation, console: Console) -> None:
    """Print all tables."""
    for section in sections(found):
        if section.rows:
            table = Table(title=section.title, title_justify="left")
            for column, name in enumerate(section.header):
                table.add_column(name, justify="left" if column < section.words else "right")
            for row in section.rows:
                table.add_row(*map(escape, row))
            console.print(table)
        if section.text:
            console.print(escape(section.text), soft_wrap=True)


def markdown(found: TierEvaluation, heading: str, picture: str) -> str:
    """Return all tables as a page. Args: picture: name of the file with the plot."""
    lines = [f"# {heading}", "", f"![Right answers over cost]({picture})"]
    for section in sections(found):
        if section.rows:
            lines += ["", f"## {section.title.capitalize()}", "", _row(section.header)]
            lines.append(_row(["---" if column < section.words else "--:" for column in range(len(section.header))]))
            lines += map(_row, section.rows)
        if section.text:
            lines += ["", section.text]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
