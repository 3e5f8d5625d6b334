"""How much what `auto` believes of a question changes with its wording, by the model of this release.

    python -m bench.router_wordings

Spread: the largest less the smallest of what the large tier is believed to gain over the small one, in six wordings of
a question, by the features alone, as without an embedder. *Wrapped*: each question of the exam, in lead-ins, labels and
thanks. *Reworded*: 22 of them in five other wordings by hand (`bench/texts/wordings.jsonl`), among them options with
other letters, in one line or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from bench.data import json_lines
from bench.report import Environment, options, publish, table
from gateway.cli.calibrate import EXAM
from gateway.config.settings import load
from gateway.pipeline.routing.calibration import RELEASED, rates, read_model
from router.crossfit import features
from router.questions import read_questions
from router.success import SuccessModel
from router.tier import Outlook, Terms, source, values

WORDINGS = Path(__file__).parent / "texts" / "wordings.jsonl"
WRAPPINGS = (
    "{}",
    "Question: {}\nAnswer:",
    "Hello! {}",
    "Please answer the following question: {}",
    "{}\n\nThank you very much!",
    "Q: {}\nA:",
)
MOST = 0.02


class Reworded(Struct):
    """A line of `WORDINGS`."""

    question: str
    wordings: list[str]


class Spreads(Struct, frozen=True):
    """Spreads of a set of questions."""

    wordings: str
    questions: int
    within: float
    """Share of the questions whose spread is at most `MOST`."""
    median: float
    most: float
    learnt: float
    """Share of the wordings that the model gives probabilities for."""


def spreads(model: SuccessModel, name: str, texts: Sequence[Sequence[str]]) -> Spreads:
    """Measure a set of questions, each in several wordings."""
    terms = Terms(0.2, 0.2, rates(load(environ={}))[1])
    gains, learnt = [], 0
    for each in features([text for wordings in texts for text in wordings]):
        prediction = model.predict(each)
        learnt += prediction.probabilities is not None
        small, _, large = values(Outlook(source(prediction, each.characters), 0.0, prediction), terms)
        gains.append(large - small)
    found = np.ptp(np.array(gains).reshape(len(texts), -1), axis=1)
    within, median, most = (found <= MOST).mean(), np.median(found), found.max()
    return Spreads(name, len(texts), float(within), float(median), float(most), learnt / len(gains))


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = options(__doc__).parse_args(arguments)
    model, asked = read_model(str(RELEASED)), {each.id: each.prompt for each in read_questions(EXAM.read_bytes())}
    wrapped = [[wrapping.format(prompt) for wrapping in WRAPPINGS] for prompt in asked.values()]
    reworded = [[asked[each.question], *each.wordings] for each in json_lines(WORDINGS, Reworded)]
    found = [spreads(model, "wrapped", wrapped), spreads(model, "reworded", reworded)]
    rows = []
    for each in found:
        figures = f"{each.within:.0%} | {each.median:.4f} | {each.most:.4f} | {each.learnt:.0%}"
        rows.append(f"{each.wordings} | {each.questions} | {figures}")
    text = [
        "# Router: wordings of a question",
        "",
        str(Environment.here()),
        "",
        *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(),
        "",
        *table("wordings | questions | spread ≤ 0.02 | median | most | learnt", rows),
        "",
    ]
    publish(parsed.output / "router-wordings", "\n".join(text), found)


if __name__ == "__main__":
    main()
