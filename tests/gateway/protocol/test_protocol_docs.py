"""`docs/protocol.md` and `docs/errors.md` list exactly what the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import fields

import gateway
from gateway import errors
from gateway.protocol.codec import CODECS
from gateway.protocol.events import ClientEventType, CloseCode, ServerEventType
from gateway.protocol.response_create import _NEUTRAL, ResponseCreate

ROOT = Path(__file__).parents[3]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text("utf-8")
ERRORS = (ROOT / "docs" / "errors.md").read_text("utf-8")


def table(page: str, heading: str) -> list[list[str]]:
    """Rows of the first table under a heading, as cells."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page, flags=re.MULTILINE)[1]
    lines = re.split(r"^#", section, flags=re.MULTILINE)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


def names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_client_events() -> None:
    """What a client may send."""
    assert names([row[0] for row in table(PROTOCOL, "What a client sends")]) == list(ClientEventType)


def test_server_events() -> None:
    """What the server sends."""
    assert set(names([row[0] for row in table(PROTOCOL, "What the server sends")])) == set(ServerEventType)


def test_close_codes() -> None:
    """Why a connection is closed."""
    assert [int(row[0]) for row in table(PROTOCOL, "Why the server closes a connection")] == list(CloseCode)


def test_subprotocols() -> None:
    """How events are written."""
    listed = names([row[0] for row in table(PROTOCOL, "Connecting")])
    assert listed == [codec.subprotocol for codec in CODECS]


def test_parameters() -> None:
    """Of a response; the refused ones in the row that says so."""
    rows = table(PROTOCOL, "Parameters of a response")
    assert sorted(names([row[0] for row in rows])) == sorted(field.name for field in fields(ResponseCreate))
    (refused,) = (row for row in rows if "refused by name" in row[1])
    assert set(names(refused[:1])) == set(_NEUTRAL)


def test_error_codes() -> None:
    """Every code that the gateway can tell, with its status."""
    listed = {names(row[:1])[0]: int(row[1]) for row in table(ERRORS, "Errors")}
    used = dict(codes())
    assert listed == used


def codes() -> Iterator[tuple[str, int]]:
    """Codes and their status: of the classes in `gateway.errors`, and of `SomeError(..., code="...")` anywhere."""
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    errors_only = {name: value for name, value in classes.items() if issubclass(value, errors.ApiError)}
    for value in errors_only.values():
        yield value.code, value.status
    for file in Path(gateway.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in errors_only:
                for keyword in node.keywords:
                    if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                        yield keyword.value.value, errors_only[node.func.id].status
