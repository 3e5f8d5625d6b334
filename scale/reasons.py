"""Why a pool has the size that it has: a kind with figures, of which its sentence is made.

Figures travel beside the sentence with places for them, so that a page can say it in another language.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from scale.decimals import plain


class ScaleReasonKind(enum.StrEnum):
    """Why a pool has the size that it has, in one word."""

    LOAD = "load"
    SLOTS = "slots"
    KV = "kv"
    ADAPTERS = "adapters"
    TTFT = "ttft"
    BOUNDS = "bounds"
    BUDGET = "budget"
    HOLD = "hold"
    """A larger target is not long enough ago."""
    SURVIVORS = "survivors"
    """Those that would stay do not hold what is in flight."""
    NO_SIGNAL = "no_signal"
    STUCK = "stuck"
    """Replicas that were asked for do not come."""
    ASLEEP = "asleep"
    WAKING = "waking"
    STARTS_FAIL = "starts_fail"
    """Replicas end before they are ready."""


Figure = float | str
"""A number or a name."""

SENTENCES: Mapping[ScaleReasonKind, tuple[str, ...]] = {
    ScaleReasonKind.LOAD: (
        "work keeps {offered} replicas busy: {sized} with room for chance",
        "work keeps {offered} replicas busy: {sized} with room for chance and {spare} spare",
    ),
    ScaleReasonKind.SLOTS: ("slots in use need {replicas} replicas at {percent}% of each",),
    ScaleReasonKind.KV: ("KV blocks in use need {replicas} replicas at {percent}% of each",),
    ScaleReasonKind.ADAPTERS: ("memory for adapters in use needs {replicas} replicas at {percent}% of each",),
    ScaleReasonKind.TTFT: ("{extra} more because TTFT p95 was above {aim} s",),
    ScaleReasonKind.BOUNDS: ("{bound} is {limit}, not {target}",),
    ScaleReasonKind.BUDGET: (
        "the budget of {budget} an hour pays {paid} replicas",
        "the budget of {budget} an hour pays {paid} replicas beside {draining} that drain",
    ),
    ScaleReasonKind.HOLD: ("the target was {target} within the last {seconds} s",),
    ScaleReasonKind.SURVIVORS: ("fewer than {replicas} replicas would not hold what is in flight",),
    ScaleReasonKind.NO_SIGNAL: ("no current figures: the size stays",),
    ScaleReasonKind.STUCK: ("no replica became ready for {seconds} s: asks for {least} instead of {target}",),
    ScaleReasonKind.ASLEEP: ("no request yet", "no request for {seconds} s"),
    ScaleReasonKind.WAKING: ("{turns} turns wait for a first replica",),
    ScaleReasonKind.STARTS_FAIL: (
        "{count} starts have failed, the next one is tried in {seconds} s",
        "{count} starts have failed, the next one is tried in {seconds} s: {cause}",
    ),
}
"""Sentences of each kind; a reason's own is the one with places for its figures."""

_BY_PLACES: Mapping[tuple[str, frozenset[str]], str] = {
    (kind, frozenset(re.findall(r"\{(\w+)\}", sentence))): sentence
    for kind, sentences in SENTENCES.items()
    for sentence in sentences
}


def sentence_of(kind: str, places: Iterable[str]) -> str | None:
    """Return the sentence of a kind with places for such figures; None if there is none in this version."""
    return _BY_PLACES.get((kind, frozenset(places)))


class ScaleReason(Struct, frozen=True):
    """One reason of a decision."""

    kind: ScaleReasonKind
    figures: Mapping[str, Figure] = {}
    """What stands in the sentence's places, by their names."""
    alert: bool = False
    """Whether an operator should look at it."""

    @property
    def text(self) -> str:
        """The reason for people, with its figures."""
        sentence = _BY_PLACES[self.kind, frozenset(self.figures)]
        return sentence.format_map(
            {name: each if isinstance(each, str) else plain(each) for name, each in self.figures.items()}
        )
