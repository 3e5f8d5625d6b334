"""The load that is planned for: how often requests come, and how long prompts and answers are."""

from __future__ import annotations

import csv
import datetime
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Annotated

from msgspec import Meta, Struct, convert

_PREFIXES = 16
"""Different beginnings that prompts share, such as system prompts of tenants."""
_DAY = 86_400


class Length(Struct, frozen=True):
    """One request of a load."""

    at: float
    """Seconds since the first one."""
    prompt: int
    """Tokens of the prompt, at least 1."""
    answer: int


class PlannedTraffic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load in numbers."""

    rate: Annotated[float, Meta(gt=0)]
    """Requests per second when it is busiest."""
    input: Annotated[float, Meta(ge=1)]
    """Mean tokens of a prompt."""
    output: Annotated[float, Meta(ge=1)]
    """Mean tokens of an answer."""
    shared: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of a prompt that many begin with, so that it is computed once and then found in the prefix cache."""
    spread: Annotated[float, Meta(ge=0, le=2)] = 0.8
    """Standard deviation of the logarithm of lengths; 0 makes all equal."""
    peak: Annotated[float, Meta(ge=1)] = 1.0
    """The busiest time's rate over the mean of the day, by which money per token is reckoned."""

    @property
    def unique(self) -> float:
        """Mean tokens of a prompt that have to be computed."""
        return max(1.0, self.input * (1 - self.shared))

    def lengths(self, seconds: float, seed: int = 1, *, rate: float | None = None) -> Iterator[Length]:
        """Yield requests that come at random (Poisson), with lengths that are log-normal."""
        chance, now = random.Random(seed), 0.0
        while (now := now + chance.expovariate(rate or self.rate)) < seconds:
            unique = self._length(chance, self.unique)
            yield Length(now, round(self.input - self.unique) + unique, self._length(chance, self.output))

    def prompts(self, lengths: Iterable[Length], seed: int = 1) -> Iterator[list[int]]:
        """Yield the tokens of each request's prompt: a shared beginning, then tokens that no other prompt has."""
        chance, fresh = random.Random(seed), count(1)
        most = round(self.input - self.unique)
        shared = [[next(fresh) for _ in range(most)] for _ in range(_PREFIXES)]
        for each in lengths:
            prefix = shared[chance.randrange(_PREFIXES)][: each.prompt - 1]
            yield prefix + [next(fresh) for _ in range(each.prompt - len(prefix))]

    def _length(self, chance: random.Random, mean: float) -> int:
        return max(1, round(mean * chance.lognormvariate(-(self.spread**2) / 2, self.spread)))


def parse_traffic(text: str) -> PlannedTraffic:
    """Read a load such as `rate=20,input=1000,output=200,shared=0.4`; `daily` requests, with `peak`, may give the rate.

    Raises:
        ValueError: it is no such text; the message names what is wrong.
    """
    fields = parse_fields(text)
    if "daily" in fields:
        if "rate" in fields:
            raise ValueError("give rate or daily, not both")
        fields["rate"] = fields.pop("daily") / _DAY * fields.get("peak", 1.0)
    return convert(fields, PlannedTraffic)


def parse_fields(text: str) -> dict[str, float]:
    """Read `name=number,...`.

    Raises:
        ValueError: it is no such text.
    """
    fields = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        try:
            fields[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"{part!r}: write name=number, as in rate=20,input=1000,output=200")
    return fields


def read_trace(lines: Iterable[str]) -> list[Length]:
    """Read a trace in CSV with the columns of Azure's: TIMESTAMP, ContextTokens, GeneratedTokens.

    Raises:
        ValueError: a column is missing, or a value is none.
    """
    found = []
    for row in csv.DictReader(lines):
        try:
            # Azure writes seven digits behind the point, Python reads six.
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=datetime.UTC).timestamp()
            found.append(Length(at, max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"]))))
        except KeyError as error:
            raise ValueError(f"the trace has no column {error}") from None
    if len(found) < 2:
        raise ValueError("the trace has fewer than two requests")
    found.sort(key=lambda each: each.at)
    return [Length(each.at - found[0].at, each.prompt, each.answer) for each in found]


def summarise(trace: Sequence[Length]) -> PlannedTraffic:
    """Return a trace's means as a load of its mean rate, nothing of which is shared."""
    requests = len(trace)
    return PlannedTraffic(
        rate=requests / max(trace[-1].at, 1e-9),
        input=sum(each.prompt for each in trace) / requests,
        output=sum(each.answer for each in trace) / requests,
    )
