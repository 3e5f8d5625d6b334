"""The `[safety]` section: which rules apply to what clients send and to what models answer."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from gateway.records.section import Seconds, Section, SettingsError

Action = Literal["redact", "block", "flag"]

BUILT_IN = ("private_key", "api_key", "email", "card", "iban", "ip_address", "phone")
"""Rules that need no configuration, in the order in which they are tried."""
BLOCKED = "blocked"
"""Name of the rule that finds the phrases in `safety.blocked`."""
PLUGINS = "roundhouse.recognisers"
"""Group of entry points by which installed packages add rules; each is a callable that makes a `Recogniser`."""

_RuleName = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,31}$")]


class SafetyPolicy(Section, frozen=True):
    """Rules of one tenant instead of those of `[safety]`; an empty one switches them off."""

    input: Annotated[
        dict[_RuleName, Action],
        Meta(
            description="What to do with findings in requests, by rule: redact (models see a replacement), block "
            "(refuse the request) or flag (only record it)."
        ),
    ] = {}
    output: Annotated[
        dict[_RuleName, Action],
        Meta(description="What to do with findings in answers: redact, block (end the answer) or flag."),
    ] = {}


class SafetyPattern(Section, frozen=True):
    """A rule of your own: a regular expression."""

    name: Annotated[_RuleName, Meta(description="Name of the rule.")]
    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="Expression of RE2, without ^ and $; a match has at most 512 characters, which are held back.",
        ),
    ]


class SafetySettings(SafetyPolicy, frozen=True):
    """Rules for what clients send and models answer, see [safety.md](safety.md). Without rules nothing is looked at."""

    replacement: Annotated[
        str,
        Meta(max_length=64, pattern=r'^[^"\\\x00-\x1f]*$', description="Stands for what is redacted; `{rule}`: why."),
    ] = "[{rule}]"
    hold_seconds: Annotated[
        Seconds, Meta(le=60, description="Seconds that text of a stalled answer may be held back.")
    ] = 2.0
    blocked: Annotated[
        str | None,
        Meta(description="File with digests of phrases for the rule `blocked`, made by `roundhouse safety digest`."),
    ] = None
    anomalies: Annotated[
        Literal["off", "flag", "block"],
        Meta(description="What to do with requests of a size or rate far above what their key has sent before."),
    ] = "off"
    presidio: Annotated[
        list[Annotated[str, Meta(pattern="^[A-Z][A-Z_]{0,40}$")]],
        Meta(
            description="Entities (PERSON, LOCATION, ...) that Microsoft Presidio, if installed, redacts from what "
            "clients send."
        ),
    ] = []
    presidio_model: Annotated[str, Meta(description="The model of spaCy that Presidio reads with.")] = "en_core_web_lg"
    presidio_language: Annotated[str, Meta(pattern="^[a-z]{2}$", description="Language in which Presidio reads.")] = (
        "en"
    )
    patterns: Annotated[list[SafetyPattern], Meta(description="Rules of your own, see below.")] = []
    tenants: Annotated[
        dict[Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")], SafetyPolicy],
        Meta(description="Rules by tenant, instead of `input` and `output`."),
    ] = {}


def plugins() -> dict[str, EntryPoint]:
    """Entry points of the rules that installed packages add, by name."""
    return {point.name: point for point in entry_points(group=PLUGINS)}


def check_safety(safety: SafetySettings) -> None:
    """
    Raises:
        SettingsError: a rule does not exist, a pattern cannot be used, or the list of phrases cannot be read.
    """
    from gateway.recognisers.pattern import Pattern

    known = (*BUILT_IN, BLOCKED, *plugins(), *(pattern.name for pattern in safety.patterns))
    for name in known:
        if known.count(name) > 1:
            raise SettingsError(f"safety.patterns: there are two rules {name!r}; rename one")
    for pattern in safety.patterns:
        try:
            Pattern(pattern.pattern)
        except ValueError as error:
            raise SettingsError(f"safety.patterns: {pattern.name}: {error}") from None
    for where, policy in {
        "safety": safety,
        **{f"safety.tenants.{name}": p for name, p in safety.tenants.items()},
    }.items():
        for name in (*policy.input, *policy.output):
            if name not in known:
                raise SettingsError(f"{where}: there is no rule {name!r}; use one of {', '.join(known)}")
            if name == BLOCKED and safety.blocked is None:
                raise SettingsError(f"{where}: the rule 'blocked' needs safety.blocked, a file of digests")
    read_phrases(safety)


def read_phrases(safety: SafetySettings) -> dict[str, dict[int, set[str]]]:
    """Read the digests of phrases in `safety.blocked`; empty if no file is configured.

    Raises:
        SettingsError: the file cannot be read.
    """
    from gateway.recognisers.blocked import read

    if safety.blocked is None:
        return {}
    try:
        with Path(safety.blocked).open(encoding="utf-8") as file:
            return read(file)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise SettingsError(f"safety.blocked: {safety.blocked}: {error}") from None
