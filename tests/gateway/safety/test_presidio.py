"""Presidio as a hook, with a stand-in for its models."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config.safety import SafetySettings
from gateway.safety.presidio import Presidio
from gateway.safety.reading import TextKind


def test_presidio_reads_prose_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings and keys of replayed calls too, which stay JSON; names and ids are no sentences."""

    class Analyzer:
        def __init__(self, **_: Any) -> None:
            pass

        def analyze(self, *, text: str, **_: Any) -> list[Any]:
            starts = [found.start() for found in re.finditer("Rome", text)]
            return [SimpleNamespace(start=start, end=start + 4, entity_type="LOCATION") for start in starts]

    engines = SimpleNamespace(NlpEngineProvider=lambda **_: SimpleNamespace(create_engine=lambda: None))
    monkeypatch.setitem(sys.modules, "presidio_analyzer", cast(Any, SimpleNamespace(AnalyzerEngine=Analyzer)))
    monkeypatch.setitem(sys.modules, "presidio_analyzer.nlp_engine", cast(Any, engines))
    presidio = Presidio(SafetySettings(presidio=["LOCATION"], presidio_model="json"), str)

    def checked(text: str, kind: TextKind) -> str:
        return presidio.check_input(text, kind, cast(Any, None)).text

    assert checked("to Rome", TextKind.PROSE) == "to [location]"
    assert json.loads(checked('{"Rome": ["\\u0052ome", 1]}', TextKind.JSON)) == {"[location]": ["[location]", 1]}
    assert checked('{"cut": "off in Rome', TextKind.JSON) == '{"cut": "off in [location]'
    assert checked('{"a":1}', TextKind.JSON) == '{"a":1}'
    assert checked("Rome", TextKind.FIXED) == checked("Rome", TextKind.ID) == "Rome"
