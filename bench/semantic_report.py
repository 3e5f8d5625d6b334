"""Tables and plot of the semantic cache's evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.report import picture, table
from bench.semantic_policies import SemanticOutcome
from cache.semantic.evidence import BandReport

Interval = tuple[float, float]


class ReaderVerdict(msgspec.Struct, frozen=True):
    """A reader's verdict on a pair."""

    pair: str
    """Digest of both texts."""
    stratum: str
    """Stratum of the pair: label (`same`, `other`), guards (`passed`, `refused`), class of the cosine."""
    fits: bool
    """Whether the answer to the one question serves the other."""


class SemanticRow(msgspec.Struct, kw_only=True):
    """Results of one method over all streams."""

    method: str
    target: float
    """Wrong answers per hit that were allowed."""
    setting: float | None = None
    """The method's threshold or cutoff, if it has one."""
    requests: int
    hits: int
    wrong: int
    unlabelled: int
    hit_rate: float
    hit_interval: Interval
    wrong_per_hit: float
    wrong_interval: Interval
    compared: float = 0.0
    """Share of the requests whose stored answer was compared instead of served."""
    bands: list[BandReport] = []
    """What comparisons show at the end of the first stream."""

    @classmethod
    def of(
        cls, method: str, target: float, outcomes: Sequence[SemanticOutcome], *, setting: float | None = None
    ) -> SemanticRow:
        """Sum over streams. Streams of one pool repeat its questions, so that intervals are those of one of them."""
        count = len(outcomes)
        requests = sum(outcome.requests for outcome in outcomes)
        hits = sum(outcome.hits for outcome in outcomes)
        wrong = sum(outcome.wrong for outcome in outcomes)
        return cls(
            method=method,
            target=target,
            setting=setting,
            requests=requests,
            hits=hits,
            wrong=wrong,
            unlabelled=sum(outcome.unlabelled for outcome in outcomes),
            hit_rate=hits / requests,
            hit_interval=wilson(hits / count, requests / count),
            wrong_per_hit=wrong / max(1, hits),
            wrong_interval=wilson(wrong / count, hits / count),
        )


class ReadRow(msgspec.Struct, kw_only=True):
    """The most that a method can serve while the wrong share, estimated by reading a sample, is within a target."""

    method: str
    target: float
    setting: float | None
    hit_rate: float
    by_label: float
    by_reading: float
    interval: Interval


class GuardRow(msgspec.Struct, kw_only=True):
    """What a guard is worth: hits of a threshold behind the guards, at one wrong share, with and without it."""

    guard: str
    refused: int
    """Requests whose nearest stored question with the same label was refused by this guard alone."""
    natural: float
    edited: float


class EditRow(msgspec.Struct, kw_only=True):
    """How many edited questions might be answered with their source's answer."""

    kind: str
    questions: int
    ours: int
    thresholds: dict[str, int]


class PromiseRow(msgspec.Struct, kw_only=True):
    """What the promise does with answers of which a known share is wrong."""

    share: float
    serving: float
    """Share of the runs in which answers were served at the end."""
    served: float
    """Share of the answers that were served."""
    wrong: float
    """Share of the served ones that were wrong, over all runs."""
    broken: float
    """Share of the runs in which more than the promise was wrong of what was served."""


class SemanticResult(msgspec.Struct, kw_only=True):
    pairs: int
    questions: int
    streams: int
    requests: int
    promised: dict[str, list[SemanticRow]]
    """Ours, by traffic."""
    hindsight: dict[str, list[SemanticRow]]
    """All methods with the setting that is best on the very streams, by traffic."""
    verdicts: list[ReaderVerdict]
    readings: list[ReadRow]
    guards: list[GuardRow]
    edits: list[EditRow]
    simulated: list[PromiseRow]


def wilson(successes: float, trials: float, z: float = 1.96) -> Interval:
    """Return Wilson's 95 % interval of a share."""
    if trials <= 0:
        return 0.0, 1.0
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * (share * (1 - share) / trials + z * z / (4 * trials**2)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def markdown(result: SemanticResult) -> str:
    """Return the tables."""
    lines = [
        "# Semantic cache: hits and wrong answers",
        "",
        f"{result.streams} streams of {result.requests:,} requests from {result.questions:,} questions (from the "
        f"test part of {result.pairs:,} labelled pairs). Most questions are asked once; the others come from clusters "
        "of paraphrases by zipf's law. No question comes twice in the same words: that is the exact cache's part. In "
        "the edited traffic one request in twenty is an earlier question with another number, name or negation, or "
        "with two names exchanged. Made by `python -m bench.semantic_cache`.",
        "",
        'A hit counts as right only if a chain of "same" labels joins the two questions; everything else is wrong, '
        "hits between questions that no label speaks about included. Intervals are 95 %, those of a single stream.",
        "",
        *_promised(result.promised),
        *_simulated(result.simulated),
        *_hindsight(result.hindsight),
        *_read(result.verdicts, result.readings),
        *_guards(result.guards),
        *_edits(result.edits),
        "![Hits over wrong answers per hit](semantic-cache.png)",
    ]
    return "\n".join(lines) + "\n"


def _promised(promised: dict[str, list[SemanticRow]]) -> list[str]:
    def bands(row: SemanticRow) -> str:
        return "; ".join(
            f"from {band.bound}: {band.wrong} of {band.compared} ({percent(band.low)} to {percent(band.high)})"
            for band in row.bands
        )

    return [
        "## What is served under the promise",
        "",
        "Everything as in a gateway, with labels in place of comparisons; nothing is known at the start of a stream.",
        "",
        *table(
            "traffic | `max_wrong_hits` | hits | wrong per hit | compared instead | wrong of those compared, by band",
            (
                f"{traffic} | {percent(row.target)} | {_share(row.hit_rate, row.hit_interval)} | "
                f"{_share(row.wrong_per_hit, row.wrong_interval) if row.hits else 'none served'} | "
                f"{percent(row.compared)} | {bands(row)}"
                for traffic, rows in promised.items()
                for row in rows
            ),
        ),
        "",
    ]


def _simulated(rows: Sequence[PromiseRow]) -> list[str]:
    return [
        "## What the promise does with a known share of wrong answers",
        "",
        "One band, `max_wrong_hits` 2 %, 5,000 look-ups whose answer might be served, 100 runs each.",
        "",
        *table(
            "truly wrong | runs that serve at the end | served | wrong of the served | runs with more than 2 % wrong",
            (
                f"{percent(row.share)} | {row.serving:.0%} | {row.served:.0%} | {percent(row.wrong)} | {row.broken:.0%}"
                for row in rows
            ),
        ),
        "",
    ]


def _hindsight(hindsight: dict[str, list[SemanticRow]]) -> list[str]:
    lines = [
        "## What could be served at all",
        "",
        "Each method with the setting that has most hits among those whose wrong share stays within the target on "
        "these very streams, which no gateway can know. Ours: the model's lower bound from which answers are served.",
        "",
    ]
    for traffic, rows in hindsight.items():
        lines += [
            f"### {traffic.capitalize()} traffic",
            "",
            *table(
                "wrong per hit, at most | method | setting | hits | wrong per hit | of the wrong: unlabelled",
                (
                    f"{percent(row.target)} | {row.method} | "
                    f"{'none' if row.setting is None else f'{row.setting:.4g}'} | "
                    f"{_share(row.hit_rate, row.hit_interval)} | {_share(row.wrong_per_hit, row.wrong_interval)} | "
                    f"{row.unlabelled / max(1, row.wrong):.0%}"
                    for row in rows
                ),
                words=2,
            ),
            "",
        ]
    return lines


def _read(verdicts: Sequence[ReaderVerdict], readings: Sequence[ReadRow]) -> list[str]:
    if not verdicts:
        return []

    def found(label: str, guards: str) -> str:
        met = [verdict for verdict in verdicts if verdict.stratum.split()[:2] == [label, guards]]
        near = [verdict for verdict in met if int(verdict.stratum.split()[2]) >= 2]
        wrong, near_wrong = (sum(not verdict.fits for verdict in each) for each in (met, near))
        return f"{near_wrong} of {len(near)} | {wrong - near_wrong} of {len(met) - len(near)}"

    return [
        "## What the labels are worth",
        "",
        f"{len(verdicts)} served pairs were read by one reader, a language model, which was told neither label nor "
        "method and asked whether the answer to the one question serves the other. By their label, and by whether our "
        "guards let them pass (a threshold also serves those that they refuse), so many were found wrong:",
        "",
        *table(
            "label | guards | wrong, cosine 0.92 and more | wrong, below",
            (
                f"{name} | {guards} | {found(label, guards)}"
                for label, name in (("other", "another, or none"), ("same", "the same"))
                for guards in ("passed", "refused")
            ),
            words=2,
        ),
        "",
        "Weighted back to what was served, the most that each method could serve in hindsight:",
        "",
        *table(
            "wrong per hit by reading, at most | method | setting | hits | by reading | by label",
            (
                f"{percent(row.target)} | {row.method} | "
                f"{'none' if row.setting is None else f'{row.setting:.4g}'} | {percent(row.hit_rate)} | "
                f"{_share(row.by_reading, row.interval)} | {percent(row.by_label)}"
                for row in readings
            ),
            words=2,
        ),
        "",
    ]


def _guards(rows: Sequence[GuardRow]) -> list[str]:
    return [
        "## What each guard is worth",
        "",
        "Hits of the best threshold behind the guards with at most 20 % wrong per hit, with one of them left out.",
        "",
        *table(
            "guard left out | right answers that only it refuses | hits, natural | hits, edited",
            (f"{row.guard} | {row.refused} | {percent(row.natural)} | {percent(row.edited)}" for row in rows),
        ),
        "",
    ]


def _edits(rows: Sequence[EditRow]) -> list[str]:
    return [
        "## Edited questions alone",
        "",
        "Each is asked when only its source is stored and has been found right twenty times. Ours: those that any "
        "band's promise could serve. `word` exchanges any longer word, also one that is not content.",
        "",
        *table(
            " | ".join(["edit", "questions", "ours", *(f"threshold {name}" for name in rows[0].thresholds)]),
            (" | ".join([row.kind, *map(str, (row.questions, row.ours, *row.thresholds.values()))]) for row in rows),
        ),
        "",
    ]


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _share(share: float, interval: Interval) -> str:
    return f"{percent(share)} ({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"


def plot(curves: dict[str, dict[str, list[tuple[float, float]]]], path: Path) -> None:
    """Plot hits over wrong answers per hit, by traffic and method."""
    with picture(path, columns=len(curves), figsize=(10, 4), sharey=True) as axes:
        for axis, (traffic, methods) in zip(axes, curves.items(), strict=True):
            for method, points in methods.items():
                wrong, hits = zip(*sorted(points), strict=True)
                axis.plot([100 * share for share in wrong], [100 * share for share in hits], ".-", label=method)
            axis.set(title=f"{traffic} traffic", xlabel="wrong answers per hit (%)", ylim=(0, 12))
            axis.grid(alpha=0.3)
            axis.legend(fontsize=7)
        axes[0].set_ylabel("hits per request (%)")
