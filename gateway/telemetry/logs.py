"""Structured logs on standard error: one JSON object a line, or readable text.

Modules log through the standard library: `logging.getLogger("roundhouse.<part>")`, facts in `extra={...}`. What belongs
to a request or turn is bound once (`bind`) and appears in every line of its task. Facts are words, numbers and ids,
never prompt or answer text.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TextIO

import msgspec

from gateway.config.settings import LogSettings

_context: ContextVar[Mapping[str, Any]] = ContextVar("roundhouse_log_context", default=MappingProxyType({}))

_process: dict[str, Any] = {}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextlib.contextmanager
def bind(**facts: Any) -> Iterator[None]:
    """Add facts (request id, turn id, tenant) to every line logged inside."""
    token = _context.set({**_context.get(), **facts})
    try:
        yield
    finally:
        _context.reset(token)


def bind_task(**facts: Any) -> None:
    """Add facts to every line that this task logs from now on."""
    _context.set({**_context.get(), **facts})


def identify(**facts: Any) -> None:
    """Add facts (the gateway's id) to every JSON line of this process."""
    _process.update(facts)


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send the logs of this process to `stream` (standard error) in the configured form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    readable = handler.stream.isatty() if settings.format == "auto" else settings.format == "console"
    handler.setFormatter(ConsoleFormatter() if readable else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    # Access logs hold addresses of pages and clients, and every turn has a line of its own.
    logging.getLogger("uvicorn.access").disabled = True
    for chatty in ("uvicorn.error", "websockets", "httpx2"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, bound and extra facts, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_process,
            **_facts(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class ConsoleFormatter(logging.Formatter):
    """Readable text for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{name}={value}" for name, value in _facts(record).items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():<7} {record.getMessage()}" + (f"  {facts}" if facts else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    # A name with an underscore is a library's own: Ray, once loaded, adds one to each record of the process.
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD and name[0] != "_"}
    return {**_context.get(), **extra}


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
