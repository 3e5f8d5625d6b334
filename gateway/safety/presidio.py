"""Microsoft Presidio as a hook: names, places and whatever else its models know, in what clients send.

Optional: `pip install presidio-analyzer` and one of spaCy's models. Answers are not given to it, because a model that
reads sentences cannot say of a half one what may still come.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.identity.principal import Principal
from gateway.protocol.requests import Message
from gateway.safety.hook import Finding, Told, Verdict
from gateway.safety.settings import Safety
from gateway.safety.stream import StreamFilter
from gateway.section import SettingsError


class Presidio:
    """Redacts entities from messages."""

    def __init__(self, safety: Safety, digest: Callable[[str], str]) -> None:
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

    def check_input(self, messages: Sequence[Message], principal: Principal) -> Verdict:
        findings: list[Finding] = []
        checked = tuple(replace(message, content=self._redacted(message.content, findings)) for message in messages)
        return Verdict(checked, tuple(findings))

    def open_stream(self, principal: Principal, told: Told, *, json: bool) -> StreamFilter | None:
        return None

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
