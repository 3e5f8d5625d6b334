"""What may be looked up and what may be stored."""

from __future__ import annotations

import msgspec
import pytest

from cache.policy import AnswerTraits, Bypass, Reject, RequestTraits, Scope, may_look_up, may_store, scope_of

WHOLE = AnswerTraits(finished=True, fallback=False, size=100)


def test_a_deterministic_request_may_be_looked_up() -> None:
    assert may_look_up(RequestTraits(deterministic=True)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deterministic": False}, Bypass.RANDOM),
        ({"no_store": True}, Bypass.NO_STORE),
        ({"logprobs": True}, Bypass.LOGPROBS),
        ({"generate": False}, Bypass.WARM_UP),
        ({"several": True}, Bypass.SEVERAL),
        ({"outputs": True}, Bypass.TOOLS),
        ({"chance": True}, Bypass.CHANCE),
        ({"time": True}, Bypass.TIME),
        ({"trial": True}, Bypass.TRIAL),
    ],
)
def test_each_obstacle_has_its_name(change: dict[str, bool], reason: Bypass) -> None:
    assert may_look_up(msgspec.structs.replace(RequestTraits(deterministic=True), **change)) is reason


def test_a_cache_that_is_switched_off_is_not_asked() -> None:
    assert may_look_up(RequestTraits(deterministic=True), enabled=False) is Bypass.DISABLED


def test_a_whole_answer_may_be_stored() -> None:
    assert may_store(WHOLE, max_bytes=100) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"finished": False}, Reject.UNFINISHED),
        ({"finished": False, "blocked": True}, Reject.BLOCKED),
        ({"calls": True}, Reject.TOOLS),
        ({"valid": False}, Reject.INVALID),
        ({"refusal": True}, Reject.REFUSAL),
        ({"fallback": True}, Reject.FALLBACK),
        ({"canary": True}, Reject.CANARY),
        ({"personal": True, "scope": Scope.TENANT}, Reject.PERSONAL),
        ({"size": 101}, Reject.TOO_LARGE),
    ],
)
def test_answers_that_a_fresh_run_might_better_are_not_stored(change: dict[str, object], reason: Reject) -> None:
    assert may_store(msgspec.structs.replace(WHOLE, **change), max_bytes=100) is reason


def test_what_is_personal_may_be_stored_for_its_user() -> None:
    assert may_store(msgspec.structs.replace(WHOLE, personal=True), max_bytes=100) is None


@pytest.mark.parametrize(("configured", "personal"), [(Scope.USER, False), (Scope.USER, True), (Scope.TENANT, True)])
def test_nothing_is_shared_that_is_personal_or_not_configured_so(configured: Scope, personal: bool) -> None:
    assert scope_of(configured, personal=personal) is Scope.USER


def test_a_tenant_may_share_what_is_not_personal() -> None:
    assert scope_of(Scope.TENANT, personal=False) is Scope.TENANT
