"""Runs the safety hooks of a turn: on what a client sends before anything is spent, on an answer before it is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final

from gateway.access.identity import Principal
from gateway.access.identity.secret import derive
from gateway.config.safety import BUILT_IN, SafetyPolicy, SafetySettings, read_phrases
from gateway.errors import ContentBlocked, RateLimited, unsupported_parameter
from gateway.protocol.requests import TurnRequest
from gateway.safety.anomaly import PERIOD, Anomalies
from gateway.safety.answer import AnswerFilter
from gateway.safety.hook import Finding, Hook, Rules, digest, recognisers
from gateway.safety.presidio import Presidio
from gateway.safety.reading import TextKind, visited
from gateway.safety.stream import StreamFilter
from gateway.safety.violations import Violation, Violations
from gateway.telemetry.metrics.process import Metrics
from gateway.turns import Turn

PHRASES: Final = "blocked phrases"
"""Purpose for which the key of the phrases' digests is derived."""
LONG_TEXT: Final = 10_000
"""Length in characters from which input is checked in a thread, so that the event loop goes on."""


class Guard:
    """Applies the rules of one configuration, for all tenants."""

    def __init__(
        self, safety: SafetySettings, secret: bytes, violations: Violations, metrics: Metrics, anomalies: Anomalies
    ) -> None:
        """Reads the list of blocked phrases.

        Args:
            secret: the installation's.
            anomalies: the habits of keys, which outlive a configuration.

        Raises:
            SettingsError: the list cannot be read, or Presidio is wanted and not installed.
        """
        phrases = read_phrases(safety)
        known = recognisers(safety, phrases, derive(secret, PHRASES))
        self._key = derive(secret, "safety findings")
        self._safety = safety
        self._violations = violations
        self._metrics = metrics
        self._anomalies = anomalies
        policies: dict[str | None, SafetyPolicy] = {None: safety}
        policies.update(safety.tenants)
        self._rules = {name: Rules(policy, known, safety.replacement, self._key) for name, policy in policies.items()}
        every = SafetyPolicy(input=dict.fromkeys(BUILT_IN, "flag"))
        self._built_in = Rules(every, known, safety.replacement, self._key)
        self._digests = {name: digest(safety, policy, phrases) for name, policy in policies.items()}
        self._presidio = Presidio(safety, self._rules[None].digest) if safety.presidio else None
        acting = any(rules.checks_input or rules.checks_output for rules in self._rules.values())
        self.active = acting or self._presidio is not None or safety.anomalies != "off"
        """Whether there is any rule."""

    def digest(self, tenant: str) -> str | None:
        """Digest of the rules for a tenant's answers; None: there are none."""
        return self._digests[self._name(tenant)]

    @property
    def slow(self) -> bool:
        """Whether checking even a short text takes long."""
        return self._presidio is not None

    async def admit(self, turn: Turn) -> None:
        """Check what a client sends; redacted text is never seen again.

        Raises:
            ContentBlocked: a rule forbids it.
            RateLimited: it is out of all proportion to what the key has sent before.
            InvalidRequest: it asks for what cannot be filtered.
        """
        request, tenant = turn.request, turn.principal.tenant
        self._check_proportions(turn)
        rules = self._rules[self._name(tenant)]
        if rules.changes_output and (request.sampling.logprobs, request.sampling.prompt_logprobs) != (None, None):
            raise unsupported_parameter(
                "logprobs", "not available while answers are filtered, as they hold the text of tokens; leave it out"
            )
        hooks: list[Hook] = [rules] if rules.checks_input else []
        if self._presidio is not None:
            hooks.append(self._presidio)
        if not hooks:
            return
        if isinstance(request.prompt, tuple):
            raise unsupported_parameter("prompt", "token ids cannot be checked by the rules of this server; send text")
        # What came before was checked when it came.
        if self._presidio is not None or _size(request) >= LONG_TEXT:
            asked, found = await asyncio.to_thread(_check, hooks, turn)
        else:
            asked, found = _check(hooks, turn)
        turn.sensitive |= bool(found)
        for finding, _ in found:
            self._told(turn, finding)
        for finding, path in found:
            if finding.action == "block":
                raise ContentBlocked(
                    f"{path}: it holds what this server does not accept ({finding.rule}); leave it out", param=path
                )
        if any(finding.action == "redact" for finding, _ in found):
            turn.rewrite(asked)

    def open(self, turn: Turn) -> AnswerFilter | None:
        """Return the filter of a turn's answer; None if it passes as it is."""
        rules = self._rules[self._name(turn.principal.tenant)]
        if not rules.checks_output or not turn.request.generate:
            return None

        def told(finding: Finding) -> None:
            turn.sensitive = True
            answer.replaced |= finding.action == "redact"
            self._told(turn, finding)

        def stream(json: bool) -> StreamFilter:
            filter = rules.open_stream(turn.principal, told, json=json)
            assert filter is not None  # as there are rules for answers
            return filter

        answer = AnswerFilter(stream, turn.request.format)
        return answer

    def is_personal(self, texts: Iterable[str], principal: Principal) -> bool:
        """Whether the built-in rules find personal data, whatever the configuration does about it. What is long counts
        as personal without a look, which would take too long.
        """
        texts = list(texts)
        if sum(map(len, texts)) >= LONG_TEXT:
            return True
        return any(self._built_in.check_input(text, TextKind.PROSE, principal).findings for text in texts)

    @property
    def hold_seconds(self) -> float:
        return self._safety.hold_seconds

    def _name(self, tenant: str) -> str | None:
        return tenant if tenant in self._rules else None

    def _check_proportions(self, turn: Turn) -> None:
        if self._safety.anomalies == "off":
            return
        size = _size(turn.request)
        principal = turn.principal
        kinds = self._anomalies.observe(f"{principal.tenant}/{principal.key}", size, monotonic())
        for kind in kinds:
            # No text: the digest says whose it is.
            digest = self._rules[None].digest(f"{principal.tenant}/{principal.key}")
            self._told(turn, Finding(f"anomalous_{kind}", self._safety.anomalies, "input", digest))
        if kinds and self._safety.anomalies == "block":
            raise RateLimited(
                f"this request's {' and '.join(kinds)} is far above what this key usually sends; slow down",
                retry_after=PERIOD,
                code="anomalous_request",
            )

    def _told(self, turn: Turn, finding: Finding) -> None:
        self._metrics.turns.safety_finding(finding.rule, finding.action, finding.direction)
        self._violations.add(Violation(finding, turn.principal.tenant, turn.principal.key, turn.id))


def _size(request: TurnRequest) -> int:
    """Number of characters that are checked, approximately."""
    prompt = len(request.prompt) if isinstance(request.prompt, str) else 0
    return request.extent + prompt + sum(message.size for message in request.messages)


def _check(hooks: Sequence[Hook], turn: Turn) -> tuple[TurnRequest, list[tuple[Finding, str]]]:
    """Return what is left of the request, and what was found in which field."""
    found: list[tuple[Finding, str]] = []
    clean: set[tuple[str, TextKind]] = set()  # schemas say the same words over and over

    def visit(text: str, kind: TextKind, path: str) -> str:
        if (text, kind) in clean:
            return text
        before, asked = len(found), text
        for hook in hooks:
            verdict = hook.check_input(text, kind, turn.principal)
            found.extend((finding, path) for finding in verdict.findings)
            text = verdict.text
        if len(found) == before:
            clean.add((asked, kind))
        return text

    return visited(turn.request, visit), found
