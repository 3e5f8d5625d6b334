"""What the console calls fields of the admin API and their values: a catalogue has all of them, and no other."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from cache.policy import Bypass, Reject
from cache.semantic.decision import ExplorationReason
from cache.semantic.eligibility import Ineligible
from cache.semantic.entry import EntryState
from cache.semantic.guards import Rejection
from engine.wire import ServiceClass
from gateway.admin.alerts import Level
from gateway.admin.endpoints.adapters import AdapterChange
from gateway.admin.endpoints.own_quotas import OwnQuotas
from gateway.billing.entry import Outcome
from gateway.config.settings import TIERS
from gateway.pipeline.routing.decisions import FeedbackReason, Signal
from gateway.protocol.stream import CacheOutcome
from gateway.records.directory import (
    Key,
    PoolControl,
    Price,
    Record,
    ReplicaControl,
    Route,
    Shadow,
    Target,
    Tenant,
    User,
)
from gateway.records.quota import Mode, Quota
from router.health import Circuit
from tests.gateway.http.test_languages import LANGUAGES, ROOT, read

CHANGED = (
    Tenant,
    User,
    Key,
    Price,
    Route,
    Target,
    Shadow,
    ReplicaControl,
    PoolControl,
    Quota,
    AdapterChange,
    OwnQuotas,
)
"""What changes are made of, before they are made and in the audit log."""
NOTED = {"model", "prompt", "source", "replace", "tag"}
"""Fields of entries of the audit log that are no change of a record."""
VALUES = (
    Level,
    Mode,
    Outcome,
    Signal,
    FeedbackReason,
    CacheOutcome,
    ServiceClass,
    get_type_hints(Tenant)["unknown_parameters"],
)
REASONS: tuple[type[enum.StrEnum], ...] = (Bypass, Reject, Ineligible, Rejection, ExplorationReason, EntryState)
COMPARED = {"right", "wrong"}
"""What a fresh answer shows of a stored one."""
GIVEN_UP = {"error", "given_up"}
"""Why a pair of answers was not judged, beside reasons of its own."""
LIMITED = {"adapter", "key", "model", "user"}
"""Whose limits there are, beside a tenant's."""


def fields(kind: type[Any]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind)} - {
        field.name for field in msgspec.structs.fields(Record)
    }


def found_in(pattern: str, *files: Path) -> set[str]:
    return {name for file in files for name in re.findall(pattern, file.read_text("utf-8"))}


def shown() -> set[str]:
    """Names that the console shows in words."""
    names = {name for kind in CHANGED for name in fields(kind)} | NOTED | COMPARED | LIMITED | set(TIERS)
    names |= {name for values in VALUES for name in get_args(values)}
    names |= {str(each.value) for reasons in (*REASONS, Circuit) for each in reasons}
    names |= found_in(r"reason = '(\w+)'", ROOT / "cache" / "look_up.lua") | {"stored"}
    names |= found_in(r'_NotJudged\("(\w+)"\)', ROOT / "gateway" / "pipeline" / "routing" / "judge.py") | GIVEN_UP
    figures = found_in(r'PlanFigure\(\s*"(\w+)"', *(ROOT / "scale" / "planning").glob("*.py"))
    return names | {name for name in figures if not name.startswith("simulated")}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_has_all_names(language: str) -> None:
    there, wanted = read(language, "names")["names"].keys(), shown()
    assert (wanted - there, there - wanted) == (set(), set()), "missing, and unused"
