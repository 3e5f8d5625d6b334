"""Tells clients the state of their limits, and which limit refused them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.errors import InsufficientQuota, InvalidRequest, RateLimited
from gateway.limits.counters import Counters, Gauge, bounds_of, never_fits
from gateway.protocol.stream import LimitReading, LimitState
from gateway.records.quota import Amounts, LimitSubject

_TOKENS = ("input_tokens_per_minute", "output_tokens_per_minute")
_SPEND = ("spend_per_day", "spend_per_month")
_RATES = ("requests_per_minute", *_TOKENS)


def read(subjects: Sequence[LimitSubject], counters: Sequence[Counters], soft: float) -> LimitState:
    """Return the limit of each kind of which least is left. `soft`: share of a limit from which clients are warned."""
    tightest: dict[str, tuple[Gauge, str]] = {}
    for subject, own in zip(subjects, counters, strict=True):
        for gauge in own.gauges(bounds_of(subject.quota)):
            if gauge.name not in tightest or gauge.remaining < tightest[gauge.name][0].remaining:
                tightest[gauge.name] = gauge, subject.name
    return LimitState(
        tuple(
            LimitReading(
                name=gauge.name,
                subject=subject,
                limit=gauge.limit,
                remaining=gauge.remaining,
                reset_seconds=gauge.milliseconds / 1000,
                warning=gauge.used >= soft * gauge.limit,
            )
            for gauge, subject in tightest.values()
        )
    )


def check_size(subjects: Iterable[LimitSubject], wanted: Amounts) -> None:
    """
    Raises:
        InvalidRequest: more than a limit can ever give.
    """
    for subject in subjects:
        gauge = never_fits(subject.quota, wanted)
        if gauge is not None:
            spends = gauge.name in _SPEND
            most = f"{gauge.limit} micro-dollars" if spends else f"{gauge.limit} tokens that may ever be used at once"
            raise InvalidRequest(
                f"this request may use up to {wanted.input_tokens} input tokens, {wanted.output_tokens} output tokens "
                f"and {wanted.spend} micro-dollars, more than {_named(subject)} may: {gauge.name} allows {most}; "
                "shorten the input or lower the output limit",
                # What the input alone exceeds goes by another name in each protocol.
                param=None if gauge.name == _TOKENS[0] else "max_output_tokens",
                code="request_exceeds_limit",
            )


def refusal(
    subjects: Sequence[LimitSubject], counters: Sequence[Counters], wanted: Amounts, soft: float
) -> RateLimited:
    """Return the error that names the limit and the wait."""
    found = [
        (subject, *short)
        for subject, own in zip(subjects, counters, strict=True)
        if (short := own.shortfall(bounds_of(subject.quota), wanted)) is not None
    ]
    subject, gauge, wait = max(found, key=lambda each: each[2])
    kind = InsufficientQuota if gauge.name in _SPEND else RateLimited
    taken = "open" if gauge.name == "open_sockets" else "used or held by running turns"
    error = kind(
        f"{gauge.name} of {_named(subject)} is reached: {gauge.used} of {gauge.limit} are {taken}"
        f"{_needed(gauge, wanted)}; try again in {duration(wait / 1000)}",
        retry_after=wait / 1000,
        code="too_many_connections" if gauge.name == "open_sockets" else None,
    )
    error.limit = gauge.name
    error.headers |= headers(read(subjects, counters, soft))
    reached = f"{gauge.name}; subject={subject.name}; used={gauge.used}; limit={gauge.limit}"
    error.headers["x-roundhouse-limit-reached"] = reached
    return error


def _named(subject: LimitSubject) -> str:
    return "the tenant" if subject.name == "tenant" else subject.name


def _needed(gauge: Gauge, wanted: Amounts) -> str:
    """Return how much would be taken, where that is not always one."""
    amounts = dict.fromkeys(_SPEND, wanted.spend)
    amounts |= zip(_TOKENS, (wanted.input_tokens, wanted.output_tokens), strict=True)
    return f", and this request may need {amounts[gauge.name]}" if gauge.name in amounts else ""


def headers(state: LimitState) -> dict[str, str]:
    """Return `x-ratelimit-*` as OpenAI sends them, and a warning if there is one."""
    by_name = {reading.name: reading for reading in state.readings}
    found = {"requests": by_name.get("requests_per_minute"), "tokens": state.tokens}
    found |= {"input-tokens": by_name.get(_TOKENS[0]), "output-tokens": by_name.get(_TOKENS[1])}
    told: dict[str, str] = {}
    for name, reading in found.items():
        if reading is not None:
            told[f"x-ratelimit-limit-{name}"] = str(reading.limit)
            told[f"x-ratelimit-remaining-{name}"] = str(reading.remaining)
            told[f"x-ratelimit-reset-{name}"] = duration(reading.reset_seconds)
    if warnings := [f"{reading.name} of {reading.subject}" for reading in state.readings if reading.warning]:
        told["x-roundhouse-limit-warning"] = ", ".join(warnings)
    return told


def duration(seconds: float) -> str:
    """Format a duration as OpenAI writes it: `120ms`, `6.5s`, `6m0s`, `1h2m3s`."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or hours else "") + f"{rest / 1000:g}s"


def leaves(state: LimitState, share: float, turns: int) -> bool:
    """Whether one more turn that may use only this share of each rate, and of the running turns, may begin.

    Args:
        turns: number of such turns that have begun, whether or not they count as running yet.
    """
    for reading in state.readings:
        used, most = reading.limit - reading.remaining, share * reading.limit
        if reading.name == "concurrent_turns" and max(used, turns) + 1 > max(1, most):
            return False
        if reading.name in _RATES and used >= most:
            return False
    return True
