"""Which failure of an engine a server's refusal is."""

from __future__ import annotations

from email.utils import formatdate
from time import time

import pytest

from engine.client.generation import EngineOverloaded, RequestFailed, RequestInvalid
from gateway.upstreams.dialect import UpstreamError
from gateway.upstreams.refusal import refusal, server_failure

ADDRESS = "http://10.0.0.7:8000"


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"code": 400, "message": "too\\nlong", "type": "invalid_request_error"}}',
        b'{"object": "error", "message": "too long", "code": 400}',
        b'{"error": "too long"}',
    ],
)
def test_a_request_that_it_can_never_serve(status: int, body: bytes) -> None:
    error = refusal(status, {}, body, ADDRESS)
    assert isinstance(error, RequestInvalid)
    assert str(error).endswith("too long")
    assert ADDRESS not in str(error)  # clients read it


def test_a_long_message_is_cut() -> None:
    assert len(str(refusal(400, {}, b'{"error": "%s"}' % (b"x" * 10_000), ADDRESS))) < 500


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": 5}', b"\xff", b"[" * 100_000])
def test_a_body_that_cannot_be_read_says_nothing(body: bytes) -> None:
    assert "does not say why" in str(refusal(400, {}, body, ADDRESS))


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("soon", None), ("inf", None)])
def test_a_server_that_is_too_busy(status: int, header: str, seconds: float | None) -> None:
    error = refusal(status, {"retry-after": header}, b"", ADDRESS)
    assert isinstance(error, EngineOverloaded)
    assert error.retry_after == seconds


def test_the_time_to_come_back_may_be_a_date() -> None:
    error = refusal(429, {"retry-after": formatdate(time() + 60, usegmt=True)}, b"", ADDRESS)
    assert isinstance(error, EngineOverloaded)
    assert error.retry_after == pytest.approx(60, abs=5)


@pytest.mark.parametrize("status", [0, 302, 401, 403, 404, 500, 502])
def test_other_failures_are_the_server_s_own(status: int) -> None:
    """Its breaker counts them, and another server is asked."""
    said = UpstreamError("cannot parse: Dear Ann", status)
    for error in (server_failure(said, ADDRESS, started=True), refusal(status, {}, b'{"error": "Dear Ann"}', ADDRESS)):
        assert type(error) is RequestFailed
        assert ADDRESS in str(error)
        assert "Ann" not in str(error)  # the log has it
