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
from bench.wording_features import BlamedFeature, TradeOff, blame, reworded, trade_off
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


class RewordedQuestion(Struct):
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


_BLAME = """## Which features see it

Of the reworded questions: how much a feature differs between wordings of a question (standard deviation, as a share of
that between questions), and the median spread if it did not. Length has little to do with it: it is whether something
is asked or demanded, and how."""
_TRADE_OFF = """## Without such features

Features that differ by the bound or more are left out, and a model is learnt without them. Each of the 257 questions,
and all its wordings, is judged by a model that was learnt from the other folds of ten; what is left out is chosen by
the wordings of the other folds alone. APGR: small to large; 0.5 is a coin. Brier: more is worse. Differences are those
from all features, with paired bootstraps over questions."""


def _rows(blamed: Sequence[BlamedFeature], traded: Sequence[TradeOff]) -> list[str]:
    """Return the two tables."""
    by_feature = [f"{each.name} | {each.differs:.2f} | {each.without:.4f}" for each in blamed if each.differs >= 0.05]
    by_bound = []
    for each in traded:
        left_out = "none" if np.isinf(each.bound) else f"{each.bound:.1f} and more"
        spread = f"{each.within:.0%} | {each.median:.4f}"
        by_bound.append(f"{left_out} | {each.basis} | {spread} | {each.apgr} | {each.less} | {each.brier}")
    return [
        _BLAME,
        "",
        *table("feature | differs by | median spread without that", by_feature),
        "",
        _TRADE_OFF,
        "",
        *table("left out | judged by | spread ≤ 0.02 | median | APGR | less | Brier, difference", by_bound, words=2),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = options(__doc__).parse_args(arguments)
    model, questions = read_model(str(RELEASED)), read_questions(EXAM.read_bytes())
    asked = {each.id: each.prompt for each in questions}
    wrapped = [[wrapping.format(prompt) for wrapping in WRAPPINGS] for prompt in asked.values()]
    by_hand = [[asked[each.question], *each.wordings] for each in json_lines(WORDINGS, RewordedQuestion)]
    found = [spreads(model, "wrapped", wrapped), spreads(model, "reworded", by_hand)]
    data = reworded(model, questions, by_hand)
    blamed, traded = blame(model, data.wordings), trade_off(data)
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
        *_rows(blamed, traded),
        "",
    ]
    record = {"spreads": found, "features": blamed, "without features": traded}
    publish(parsed.output / "router-wordings", "\n".join(text), record)


if __name__ == "__main__":
    main()
