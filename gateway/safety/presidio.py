"""Microsoft Presidio as a hook: names, places and whatever else its models know, in what clients send.

Optional: `pip install presidio-analyzer` and one of spaCy's models. Answers are not given to it, because a model that
reads sentences cannot say of a half one what may still come.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from typing import Any

from gateway.access.identity.principal import Principal
from gateway.config.safety import SafetySettings
from gateway.protocol.nesting import MAX_LEVELS, json_depth
from gateway.records.section import SettingsError
from gateway.safety.hook import Finding, HookVerdict, Told
from gateway.safety.reading import TextKind
from gateway.safety.stream import StreamFilter


class Presidio:
    """Redacts entities from what clients send."""

    def __init__(self, safety: SafetySettings, digest: Callable[[str], str]) -> None:
        """
        Raises:
            SettingsError: Presidio or its model is not installed.
        """
        try:
            analyzer: Any = importlib.import_module("presidio_analyzer")
        except ImportError:
            raise SettingsError(
                "safety.presidio: Presidio is not installed; run: pip install presidio-analyzer, and install a model "
                "of spaCy for the language"
            ) from None
        model, language = safety.presidio_model, safety.presidio_language
        # Presidio would download it by pip, and end the process where it cannot.
        if importlib.util.find_spec(model) is None:
            raise SettingsError(
                f"safety.presidio_model: {model} is not installed; run: python -m spacy download {model}"
            )
        models = {"nlp_engine_name": "spacy", "models": [{"lang_code": language, "model_name": model}]}
        engines: Any = importlib.import_module("presidio_analyzer.nlp_engine")
        engine = engines.NlpEngineProvider(nlp_configuration=models).create_engine()
        self._analyzer = analyzer.AnalyzerEngine(nlp_engine=engine, supported_languages=[language])
        self._entities = list(safety.presidio)
        self._language = language
        self._replacement = safety.replacement
        self._digest = digest

    def check_input(self, text: str, kind: TextKind, principal: Principal) -> HookVerdict:
        """Names and ids are no sentences: they pass."""
        findings: list[Finding] = []
        if kind is TextKind.PROSE:
            text = self._redacted(text, findings)
        elif kind is TextKind.JSON:
            text = self._document(text, findings)
        return HookVerdict(text, tuple(findings))

    def open_stream(self, principal: Principal, told: Told, *, json: bool) -> StreamFilter | None:
        return None

    def _document(self, text: str, findings: list[Finding]) -> str:
        """JSON, unless it was cut off."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return self._redacted(text, findings)
        if json_depth(value) > MAX_LEVELS:
            return self._redacted(text, findings)

        def redacted(value: Any) -> Any:
            if isinstance(value, str):
                return self._redacted(value, findings)
            if isinstance(value, list):
                return [redacted(item) for item in value]
            if isinstance(value, dict):
                return {redacted(key): redacted(item) for key, item in value.items()}
            return value

        out = redacted(value)
        return json.dumps(out, ensure_ascii=False) if findings else text

    def _redacted(self, text: str, findings: list[Finding]) -> str:
        if not text:
            return text
        found = self._analyzer.analyze(text=text, entities=self._entities, language=self._language)
        out, at = "", 0
        for entity in sorted(found, key=lambda entity: (entity.start, -entity.end)):
            if entity.start < at:  # within the one before
                continue
            rule = entity.entity_type.lower()
            findings.append(Finding(rule, "redact", "input", self._digest(text[entity.start : entity.end])))
            out += text[at : entity.start] + self._replacement.replace("{rule}", rule)
            at = entity.end
        return out + text[at:]
