"""The interface of a hook, and the built-in one, which applies the rules of the configuration. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.access.identity.principal import Principal
from gateway.config.safety import BLOCKED, BUILT_IN, Action, SafetyPolicy, SafetySettings, plugins
from gateway.recognisers.accounts import Card, Iban
from gateway.recognisers.blocked import Blocked
from gateway.recognisers.contacts import Email, IpAddress, Phone
from gateway.recognisers.credentials import ApiKey, PrivateKey
from gateway.recognisers.pattern import Pattern
from gateway.recognisers.recogniser import Recogniser
from gateway.safety.json_stream import JsonFilter
from gateway.safety.reading import TextKind
from gateway.safety.stream import FilterRule, StreamFilter, TextFilter

Direction = Literal["input", "output"]


class Finding(Struct, frozen=True):
    """A finding of a rule. The text itself never leaves the filter."""

    rule: str
    action: Action
    direction: Direction
    digest: str
    """Keyed digest: equal texts have equal digests, and nothing can be learnt without the installation's secret."""


class HookVerdict(Struct, frozen=True):
    """The verdict of a hook on one text of a request."""

    text: str
    """Text that the model may see, unless a finding blocks the request."""
    findings: tuple[Finding, ...] = ()


Told = Callable[[Finding], None]


class Hook(Protocol):
    """Checks what goes to models and what comes from them."""

    def check_input(self, text: str, kind: TextKind, principal: Principal) -> HookVerdict:
        """Check one text of what a client sends; see `gateway.safety.reading`."""
        ...

    def open_stream(self, principal: Principal, told: Told, *, json: bool) -> StreamFilter | None:
        """A filter for one text of an answer; None if answers pass.

        Args:
            told: is called for each finding.
            json: the text is a JSON document.
        """
        ...


class Rules:
    """The hook that applies a policy's rules."""

    def __init__(
        self, policy: SafetyPolicy, recognisers: Mapping[str, Recogniser], replacement: str, key: bytes
    ) -> None:
        """
        Args:
            recognisers: by rule, in the order in which they count.
            replacement: for what is redacted, with `{rule}` for the rule.
            key: of the digests.
        """
        self._key = key
        self._input = _Rules(policy.input, recognisers, replacement)
        self._output = _Rules(policy.output, recognisers, replacement)

    @property
    def changes_output(self) -> bool:
        """Whether answers may be changed or cut, not only flagged."""
        return bool(self._output.enforced)

    @property
    def checks_output(self) -> bool:
        return bool(self._output.enforced or self._output.flagged)

    @property
    def checks_input(self) -> bool:
        return bool(self._input.enforced or self._input.flagged)

    def check_input(self, text: str, kind: TextKind, principal: Principal) -> HookVerdict:
        findings: list[Finding] = []

        def told(finding: Finding) -> None:
            findings.append(replace(finding, action=_action(finding.action, kind)))

        filter = self._input.filter("input", self.digest, told, kind is TextKind.JSON)
        out = filter.feed(text) + filter.finish() if filter else text
        if kind is TextKind.ID and any(finding.action != "flag" for finding in findings):
            out = f"call_{self.digest(text)[:24]}"
        return HookVerdict(out, tuple(findings))

    def open_stream(self, principal: Principal, told: Told, *, json: bool) -> StreamFilter | None:
        return self._output.filter("output", self.digest, told, json)

    def digest(self, text: str) -> str:
        """Return the keyed digest of a text that was found."""
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16, key=self._key).hexdigest()


_INSTEAD: Mapping[TextKind, Action] = {TextKind.FIXED: "block", TextKind.ID: "redact"}


def _action(action: Action, kind: TextKind) -> Action:
    """Return the action on a finding: what cannot be replaced is blocked, and for an id another one can always
    stand."""
    if action == "flag" or kind not in _INSTEAD:
        return action
    return _INSTEAD[kind]


class _Rules:
    """The rules of one direction. Flags are raised beside what is enforced, and hold nothing back."""

    def __init__(self, actions: Mapping[str, Action], recognisers: Mapping[str, Recogniser], replacement: str) -> None:
        self.enforced: list[FilterRule] = []
        self.flagged: list[FilterRule] = []
        for name, recogniser in recognisers.items():
            action = actions.get(name)
            if action == "flag":
                self.flagged.append(FilterRule(name, recogniser))
            elif action is not None:
                with_name = replacement.replace("{rule}", name)
                self.enforced.append(FilterRule(name, recogniser, with_name, action == "block"))
        # What is replaced outside a string of a JSON document becomes one.
        self._quoted = [replace(rule, replacement=json.dumps(rule.replacement)) for rule in self.enforced]

    def filter(
        self, direction: Direction, digest: Callable[[str], str], told: Told, as_json: bool
    ) -> StreamFilter | None:
        def enforced(rule: FilterRule, text: str) -> None:
            told(Finding(rule.name, "block" if rule.blocks else "redact", direction, digest(text)))

        def flagged(rule: FilterRule, text: str) -> None:
            told(Finding(rule.name, "flag", direction, digest(text)))

        def plain(in_string: bool = True) -> StreamFilter:
            rules = self.enforced if in_string else self._quoted
            filter = TextFilter(rules, enforced)
            return Watched(filter, TextFilter(self.flagged, flagged)) if self.flagged else filter

        if not (self.enforced or self.flagged):
            return None
        return JsonFilter(plain) if as_json else plain()


class Watched:
    """A `StreamFilter` beside which another one looks at the same text, and changes nothing."""

    def __init__(self, filter: StreamFilter, watcher: StreamFilter) -> None:
        self._filter = filter
        self._watcher = watcher

    @property
    def held(self) -> int:
        return self._filter.held

    @property
    def blocked(self) -> bool:
        return self._filter.blocked

    def feed(self, text: str) -> str:
        self._watcher.feed(text)
        return self._filter.feed(text)

    def release(self) -> str:
        return self._filter.release()

    def finish(self) -> str:
        self._watcher.finish()
        return self._filter.finish()


def recognisers(
    safety: SafetySettings, phrases: Mapping[str, Mapping[int, set[str]]], key: bytes
) -> dict[str, Recogniser]:
    """Return the recognisers of all rules of a configuration, in the order in which they count.

    Args:
        phrases: the list in `safety.blocked`.
        key: of its digests.

    Raises:
        ValueError: a pattern cannot be used.
    """
    built_in: dict[str, Recogniser] = {
        "private_key": PrivateKey(),
        "api_key": ApiKey(),
        "email": Email(),
        "card": Card(),
        "iban": Iban(),
        "ip_address": IpAddress(),
        "phone": Phone(),
    }
    installed: dict[str, Recogniser] = {name: point.load()() for name, point in plugins().items()}
    own: dict[str, Recogniser] = {pattern.name: Pattern(pattern.pattern) for pattern in safety.patterns}
    blocked: dict[str, Recogniser] = {BLOCKED: Blocked(phrases, key)} if phrases else {}
    return {**blocked, **own, **installed, **{name: built_in[name] for name in BUILT_IN}}


def digest(safety: SafetySettings, policy: SafetyPolicy, phrases: Mapping[str, Mapping[int, set[str]]]) -> str | None:
    """Return the identity of what a policy does to answers: answers that were filtered by another one are not
    reused."""
    if not policy.output:
        return None
    listed = sorted((first, length, sorted(all)) for first, by in phrases.items() for length, all in by.items())
    parts = [policy.output, safety.replacement, msgspec.to_builtins(safety.patterns), listed]
    return hashlib.blake2b(msgspec.msgpack.encode(parts, order="sorted"), digest_size=16).hexdigest()
