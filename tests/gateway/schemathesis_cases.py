"""Runs Schemathesis' cases for one operation. Its plugin for pytest would make those of all operations in each process
that collects tests, which takes many seconds; it is imported here only, where a test wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.amounts import DEEP, examples

MOST = None if DEEP else 30
"""About so many of the cases that cover an operation's schema are tried: those of large bodies are hundreds."""
_SETTINGS = settings(
    max_examples=examples(4),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def loaded(document: dict[str, Any], **config: Any) -> OpenApiSchema:
    """Load a description. Args: config: of Schemathesis."""
    load_all_checks()
    # A slow machine is no failure.
    config = {"request-timeout": 120, **config}
    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(config))


def run_cases(
    schema: OpenApiSchema, operation: str, check: Callable[[schemathesis.Case, requests.Session], None]
) -> None:
    """Call `check` with each case for the operation of this id: examples, what covers its schema, and random ones."""
    with requests.Session() as session:
        session.trust_env = False  # it would look for proxies at every request

        @_SETTINGS
        def test(case: schemathesis.Case) -> None:
            check(case, session)

        found = schema.find_operation_by_id(operation)
        built: Any = build_operation_test(
            config=schema.config, operation=found, test_func=test, given_kwargs={}, feedback=NO_FEEDBACK
        )
        explicit = getattr(built, "hypothesis_explicit_examples", [])
        if MOST is not None and len(explicit) > MOST:
            built.hypothesis_explicit_examples = explicit[:: -(-len(explicit) // MOST)]
        built()
