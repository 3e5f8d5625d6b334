"""Which adapters a server has loaded, and which one goes."""

from __future__ import annotations

from gateway.upstreams.residency import AdapterResidency


def holding(*versions: str, most: int = 2) -> AdapterResidency:
    state = AdapterResidency(most)
    for version in versions:
        state.added(version)
    return state


def test_the_least_recently_used_one_goes() -> None:
    state = holding("a", "b")
    assert state.full and state.victim() == "a"
    state.begin("a")
    state.end("a")
    assert (state.victim(), state.loaded) == ("b", ("b", "a"))


def test_one_that_answers_use_stays() -> None:
    state = holding("a", "b")
    state.begin("a")
    state.begin("a")
    assert state.victim() == "b"
    state.begin("b")
    state.end("a")
    assert state.victim() is None
    state.end("a")
    assert state.victim() == "a"


def test_pinned_ones_go_last_and_for_requests_only() -> None:
    state = holding("a", "b")
    state.pin(["a"])
    assert state.victim() == "b"
    state.removed("b")
    assert (state.victim(), state.victim(pinned=False)) == ("a", None)


def test_what_the_server_lists_counts_and_others_go_first() -> None:
    state = holding("a", "b")
    state.listed(["b", "z"])
    assert (state.loaded, state.victim()) == (("z", "b"), "z")
    state.listed([])
    assert not state.full and state.victim() is None
