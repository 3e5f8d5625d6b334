"""What may be looked up and what may be stored."""

from __future__ import annotations

import msgspec
import pytest

from cache.policy import Answer, Bypass, Question, may_look_up, may_store

WHOLE = Answer(finished=True, fallback=False, size=100)


def test_a_deterministic_request_may_be_looked_up() -> None:
    assert may_look_up(Question(deterministic=True)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deterministic": False}, Bypass.RANDOM),
        ({"no_store": True}, Bypass.NO_STORE),
        ({"logprobs": True}, Bypass.LOGPROBS),
        ({"generate": False}, Bypass.WARM_UP),
        ({"outputs": True}, Bypass.TOOLS),
    ],
)
def test_each_obstacle_has_its_name(change: dict[str, bool], reason: Bypass) -> None:
    assert may_look_up(msgspec.structs.replace(Question(deterministic=True), **change)) is reason


def test_a_cache_that_is_switched_off_is_not_asked() -> None:
    assert may_look_up(Question(deterministic=True), enabled=False) is Bypass.DISABLED


def test_a_whole_answer_may_be_stored() -> None:
    assert may_store(WHOLE, max_bytes=100) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"finished": False}, Bypass.UNFINISHED),
        ({"calls": True}, Bypass.TOOLS),
        ({"valid": False}, Bypass.INVALID),
        ({"fallback": True}, Bypass.FALLBACK),
        ({"size": 101}, Bypass.TOO_LARGE),
    ],
)
def test_answers_that_a_fresh_run_might_better_are_not_stored(change: dict[str, object], reason: Bypass) -> None:
    assert may_store(msgspec.structs.replace(WHOLE, **change), max_bytes=100) is reason
