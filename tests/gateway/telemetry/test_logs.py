"""Structured logs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway.config.settings import LogSettings
from gateway.telemetry.logs import bind, configure


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = False


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_holds_message_bound_facts_and_extra_facts() -> None:
    stream = io.StringIO()
    configure(LogSettings(format="json"), stream)
    with bind(turn="resp_1"):
        logging.getLogger("roundhouse.test").info("routed", extra={"tier": "small"})
    logging.getLogger("roundhouse.test").info("later")
    first, second = lines(stream)
    assert (first["message"], first["turn"], first["tier"], first["level"]) == ("routed", "resp_1", "small", "info")
    assert "turn" not in second


def test_facts_bound_in_one_task_stay_out_of_another() -> None:
    stream = io.StringIO()
    configure(LogSettings(), stream)

    async def task(name: str) -> None:
        with bind(turn=name):
            await asyncio.sleep(0)
            logging.getLogger("roundhouse.test").info("line", extra={"expected": name})

    async def both() -> None:
        await asyncio.gather(task("a"), task("b"))

    asyncio.run(both())
    assert all(line["turn"] == line["expected"] for line in lines(stream))


def test_an_exception_and_odd_values_still_make_one_json_line() -> None:
    stream = io.StringIO()
    configure(LogSettings(), stream)
    try:
        raise ValueError("broken\nin two lines")
    except ValueError:
        logging.getLogger("roundhouse.test").exception("failed", extra={"odd": object()})
    [line] = lines(stream)
    assert "broken" in str(line["exception"])


def test_what_a_library_adds_to_all_records_is_no_fact() -> None:
    stream = io.StringIO()
    configure(LogSettings(format="json"), stream)
    logging.getLogger("roundhouse.test").info("line", extra={"_added": 1})
    [line] = lines(stream)
    assert "_added" not in line


def test_the_console_form_is_one_readable_line() -> None:
    stream = io.StringIO()
    configure(LogSettings(format="console"), stream)
    logging.getLogger("roundhouse.test").warning("engine gone", extra={"replica": "small-0"})
    assert stream.getvalue().rstrip().endswith("warning engine gone  replica=small-0")


@pytest.mark.parametrize("terminal", [True, False])
def test_people_at_a_terminal_get_text_and_machines_get_json(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    configure(LogSettings(), stream)
    logging.getLogger("roundhouse.test").info("ready")
    assert stream.getvalue().startswith("{") is not terminal
    assert "ready" in stream.getvalue()


def test_less_severe_lines_than_configured_are_not_shown() -> None:
    stream = io.StringIO()
    configure(LogSettings(level="warning"), stream)
    logging.getLogger("roundhouse.test").info("quiet")
    assert stream.getvalue() == ""
