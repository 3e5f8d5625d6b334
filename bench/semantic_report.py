"""Tables and plot of the semantic cache's evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.report import picture, table
from bench.semantic_policies import SemanticOutcome

Interval = tuple[float, float]


class ReaderVerdict(msgspec.Struct, frozen=True):
    """A reader's verdict on a pair."""

    pair: str
    """Digest of both texts."""
    stratum: str
    """Stratum of the pair: label (`same`, `other`), guards (`passed`, `refused`), class of the cosine."""
    fits: bool
    """Whether the answer to the one question serves the other."""


class Truth(msgspec.Struct, frozen=True):
    """Wrong answers per request, estimated from the read pairs, with a 95 % interval."""

    error: float
    low: float
    high: float


class SemanticRow(msgspec.Struct, kw_only=True):
    """Results of one method at one bound, over all streams."""

    method: str
    delta: float
    setting: float | None = None
    """The method's threshold, if it has one."""
    requests: int
    hits: int
    wrong: int
    unlabelled: int
    hit_rate: float
    hit_interval: Interval
    error: float
    """Wrong answers per request."""
    error_interval: Interval
    error_per_hit: float
    error_per_hit_interval: Interval
    rival: float | None = None
    """The hit rate of a threshold with the same error, chosen on these very streams."""
    estimate: float | None = None
    """Our monitor's estimate of the error, from its random checks."""
    truth: Truth | None = None
    """The error, estimated by reading a sample."""
    true_rival: float | None = None
    """The hit rate of a threshold with the same error by reading."""

    @classmethod
    def of(
        cls,
        method: str,
        delta: float,
        outcomes: Sequence[SemanticOutcome],
        *,
        setting: float | None = None,
        rival: float | None = None,
    ) -> SemanticRow:
        """Sum over streams. Streams of one pool repeat its questions, so that intervals are those of one of them."""
        count = len(outcomes)
        requests = sum(outcome.requests for outcome in outcomes)
        hits = sum(outcome.hits for outcome in outcomes)
        wrong = sum(outcome.wrong for outcome in outcomes)
        return cls(
            method=method,
            delta=delta,
            setting=setting,
            requests=requests,
            hits=hits,
            wrong=wrong,
            unlabelled=sum(outcome.unlabelled for outcome in outcomes),
            hit_rate=hits / requests,
            hit_interval=wilson(hits / count, requests / count),
            error=wrong / requests,
            error_interval=wilson(wrong / count, requests / count),
            error_per_hit=wrong / max(1, hits),
            error_per_hit_interval=wilson(wrong / count, hits / count),
            rival=rival,
        )


class Adversarial(msgspec.Struct, kw_only=True):
    """How many edited questions were answered with their source's answer."""

    kind: str
    questions: int
    ours: int
    thresholds: dict[str, int]
    """Wrong answers of the calibrated threshold, by delta."""


class TrafficVariant(msgspec.Struct):
    """Results on another kind of traffic."""

    name: str
    ours: SemanticRow
    threshold: SemanticRow


class Ceilings(msgspec.Struct, frozen=True):
    """Hit rates of a verifier that knows the labels."""

    alone: float
    guarded: float
    """Hit rate behind the guards."""


class SemanticResult(msgspec.Struct, kw_only=True):
    pairs: int
    questions: int
    streams: int
    requests: int
    rows: list[SemanticRow]
    ceilings: Ceilings
    verdicts: list[ReaderVerdict]
    edited: list[SemanticRow]
    adversarial: list[Adversarial]
    sensitivity: list[TrafficVariant]


def wilson(successes: float, trials: float, z: float = 1.96) -> Interval:
    """Return Wilson's 95 % interval of a share."""
    if trials <= 0:
        return 0.0, 1.0
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * (share * (1 - share) / trials + z * z / (4 * trials**2)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def markdown(result: SemanticResult) -> str:
    """Return the tables, with their conclusions."""
    ours = {row.delta: row for row in result.rows if row.method == "ours"}
    lines = [
        "# Semantic cache: hits and wrong answers",
        "",
        f"{result.streams} streams of {result.requests:,} requests from {result.questions:,} questions (the test part "
        f"of {result.pairs:,} labelled pairs). Most questions are asked once; the others come from clusters of "
        "paraphrases by zipf's law. No question comes twice in the same words: that is the exact cache's part. Made "
        "by `python -m bench.semantic_cache`.",
        "",
        'A hit counts as right only if a chain of "same" labels joins the two questions; everything else is wrong, '
        "hits between questions that no label speaks about included. delta bounds wrong answers per request. Intervals "
        "are 95 %, those of a single stream.",
        "",
        *_table(result.rows),
        "What our monitor estimates from its random checks, beside the truth: "
        + ", ".join(
            f"{_percent(row.estimate or 0)} / {_percent(row.error)} (delta {_percent(delta)})"
            for delta, row in ours.items()
        )
        + ".",
        "",
        *_ceilings(result.rows, result.ceilings),
        *_reading(result.rows, result.verdicts),
        "## With edited questions",
        "",
        "The same streams with one request in twenty an earlier question in which a number, a name, a negation or the "
        "order of two names was changed.",
        "",
        *_table(result.edited),
        *_edited_alone(result.adversarial, list(ours)),
        *_other_traffic(result.sensitivity),
        "![Hits and wrong answers of each method at each bound](semantic-cache.png)",
    ]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[SemanticRow]) -> list[str]:
    return [
        *table(
            "delta | method | threshold | hits | wrong per request | wrong per hit | of the wrong: unlabelled",
            map(_line, rows),
            words=2,
        ),
        "",
        _ratios(rows),
        "",
    ]


def _edited_alone(adversarial: Sequence[Adversarial], deltas: Sequence[float]) -> list[str]:
    return [
        "## Edited questions alone",
        "",
        "Each is asked when only its source is stored, at the loosest bound, and the source has been found right "
        "twenty times. `word` exchanges any longer word, also one that is not content.",
        "",
        *table(
            " | ".join(["edit", "questions", "ours", *(f"threshold at {_percent(delta)}" for delta in deltas)]),
            (
                " | ".join([row.kind, *map(str, (row.questions, row.ours, *row.thresholds.values()))])
                for row in adversarial
            ),
        ),
        "",
    ]


def _other_traffic(variants: Sequence[TrafficVariant]) -> list[str]:
    return [
        "## Other traffic",
        "",
        "At delta 1 %, with the same model, cutoff and threshold.",
        "",
        *table(
            "traffic | hits, ours | wrong, ours | hits, threshold | wrong, threshold",
            (
                f"{variant.name} | {_percent(variant.ours.hit_rate)} | {_percent(variant.ours.error)} | "
                f"{_percent(variant.threshold.hit_rate)} | {_percent(variant.threshold.error)}"
                for variant in variants
            ),
        ),
        "",
    ]


def _ceilings(rows: Sequence[SemanticRow], ceilings: Ceilings) -> list[str]:
    limits = (
        f"{(ceilings.alone + row.error) / row.rival:.2f} ({(ceilings.guarded + row.error) / row.rival:.2f} behind the "
        f"guards) at {_percent(row.delta)}"
        for row in rows
        if row.rival
    )
    return [
        f"A verifier that knew every label would hit {_percent(ceilings.alone)} of the requests "
        f"({_percent(ceilings.guarded)} behind the guards) without a mistake. With the errors that ours makes on top, "
        f"nothing can have more hits per hit of the threshold than {', '.join(limits)}.",
        "",
    ]


def _reading(rows: Sequence[SemanticRow], verdicts: Sequence[ReaderVerdict]) -> list[str]:
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
        "Weighted back to what was served:",
        "",
        *table(
            "delta | hits, ours | wrong by label | wrong by reading | hits of a threshold with that error by reading",
            (
                f"{_percent(row.delta)} | {_percent(row.hit_rate)} | {_percent(row.error)} | "
                f"{_percent(row.truth.error)} {_between((row.truth.low, row.truth.high))} | {_percent(row.true_rival)}"
                for row in rows
                if row.truth is not None and row.true_rival is not None
            ),
            words=0,
        ),
        "",
    ]


def _ratios(rows: Sequence[SemanticRow]) -> str:
    ratios = (f"{row.hit_rate / row.rival:.2f} at {_percent(row.delta)}" for row in rows if row.rival)
    return f"Hits of ours per hit of a threshold with the same error, chosen on these streams: {', '.join(ratios)}."


def _line(row: SemanticRow) -> str:
    setting = "" if row.setting is None else "none" if row.setting > 1 else f"{row.setting:.4g}"
    return (
        f"{_percent(row.delta)} | {row.method} | {setting} | {_percent(row.hit_rate)} {_between(row.hit_interval)} | "
        f"{_percent(row.error)} {_between(row.error_interval)} | {_percent(row.error_per_hit)} "
        f"{_between(row.error_per_hit_interval)} | {row.unlabelled / max(1, row.wrong):.0%}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _between(interval: Interval) -> str:
    return f"({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"


def plot(result: SemanticResult, path: Path) -> None:
    """Plot hits over wrong answers, with and without edited questions."""
    with picture(path, columns=2, figsize=(10, 4), sharey=True) as axes:
        methods = dict.fromkeys(row.method for row in (*result.rows, *result.edited))
        colours = {method: f"C{place}" for place, method in enumerate(methods)}
        for axis, rows, title in zip(
            axes, (result.rows, result.edited), ("as labelled", "with 5 % edited questions"), strict=True
        ):
            for method in dict.fromkeys(row.method for row in rows):
                mine = [row for row in rows if row.method == method]
                axis.plot(
                    [100 * row.error for row in mine],
                    [100 * row.hit_rate for row in mine],
                    "o-",
                    label=method,
                    color=colours[method],
                    markersize=4,
                )
            axis.set(title=title, xlabel="wrong answers per request (%)")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("hits per request (%)")
        for axis in axes:
            axis.legend(fontsize=7)
