"""Origin and Host checks."""

from __future__ import annotations

import pytest

from gateway.config.origin import host_allowed, origin_allowed


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "passes"),
    [
        (None, "chat.example", [], True),
        ("http://127.0.0.1:8080", "127.0.0.1:8080", [], True),
        ("https://Chat.Example", "chat.example", [], True),
        ("http://127.0.0.1:9999", "127.0.0.1:8080", [], False),
        ("http://evil.example", "chat.example", [], False),
        ("https://app.example", "chat.example", ["https://app.example"], True),
        ("https://app.example.evil", "chat.example", ["https://app.example"], False),
        ("null", "chat.example", [], False),
        ("", "", [], False),
        ("file://", "", [], False),
        ("https://anything", "chat.example", ["*"], True),
    ],
)
def test_only_own_and_listed_origins_pass(origin: str | None, host: str, allowed: list[str], passes: bool) -> None:
    assert origin_allowed(origin, host, allowed) is passes


@pytest.mark.parametrize(
    ("host", "listen", "passes"),
    [
        ("127.0.0.1:8080", "127.0.0.1", True),
        ("localhost:8080", "127.0.0.1", True),
        ("[::1]:8080", "::1", True),
        ("rebound.example:8080", "127.0.0.1", False),
        ("chat.example", "0.0.0.0", True),
        (None, "127.0.0.1", True),
    ],
)
def test_a_loopback_server_answers_to_loopback_names_only(host: str | None, listen: str, passes: bool) -> None:
    assert host_allowed(host, listen) is passes
