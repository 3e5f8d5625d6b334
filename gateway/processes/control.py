"""The Unix socket through which local processes control `serve`; access is the data folder's file permissions.

A unix socket that only its owner can open; one JSON object in, one out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from gateway.config.configuration import Configuration
from gateway.config.settings import RedisSettings, Settings, SettingsError, file_of
from gateway.errors import ApiError
from gateway.storage.connect import socket_path

CommandName = Literal["reload", "link"]
"""Read the configuration again; make an address to sign in with as operator."""

PATIENCE = 5.0
"""Seconds within which a command must arrive."""
MAX_COMMAND = 1024
"""Longest command in bytes."""


class Command(Struct, frozen=True, forbid_unknown_fields=True):
    """A command to the running gateway."""

    command: CommandName


class CommandResult(Struct, frozen=True):
    """The result of a command."""

    changed: list[str] = []
    error: str | None = None
    address: str | None = None
    """A one-time address, if one was asked for."""
    tenants: bool = True
    """Whether anybody may send requests, as far as is known."""


def data_folder(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return `redis.data`, also of a configuration that cannot be used."""
    found = environ.get("ROUNDHOUSE_REDIS_DATA")
    if found is None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            found = tomllib.loads(file_of(path, environ).read_text("utf-8"))["redis"]["data"]
    return found if isinstance(found, str) else RedisSettings().data


def path(data: str) -> Path:
    """Return the path of the socket of the gateway with this data folder."""
    return socket_path(Settings(redis=RedisSettings(data=data)), "control")


@contextlib.asynccontextmanager
async def listening(
    at: Path, answer: Callable[[bytes], Awaitable[CommandResult]], limit: int = MAX_COMMAND
) -> AsyncIterator[None]:
    """Answer commands that come to a socket while the body runs. Args: limit: longest command in bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(PATIENCE):
                line = await reader.readuntil(b"\n")
            writer.write(msgspec.json.encode(await answer(line)) + b"\n")
            await writer.drain()
        writer.close()

    with private_socket(at) as bound:
        async with await asyncio.start_unix_server(serve, sock=bound, limit=limit):
            yield


@contextlib.contextmanager
def private_socket(at: Path) -> Iterator[socket.socket]:
    """Bind a Unix socket that only its owner can open, while the body runs."""
    at.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        bound.setblocking(False)
        bound.bind(str(at))
        os.chmod(at, 0o600)  # nobody is let in before it listens
        try:
            yield bound
        finally:
            at.unlink(missing_ok=True)


async def obey(line: bytes, configuration: Configuration, link: Callable[[], Awaitable[str]]) -> CommandResult:
    """Carry out a command to the running gateway. Args: link: makes an address to sign in with as operator."""
    try:
        match msgspec.json.decode(line, type=Command).command:
            case "reload":
                return CommandResult(changed=await configuration.reload())
            case "link":
                return CommandResult(address=await link())
    except msgspec.DecodeError as error:
        return CommandResult(error=f"no command: {error}")
    except (SettingsError, ApiError) as error:
        return CommandResult(error=str(error))


def ask(data: str, command: CommandName, timeout: float = 60.0) -> CommandResult:
    """Send a command to the gateway with this data folder, and return its result.

    Raises:
        OSError: none runs there, or it does not answer.
    """
    return send(path(data), msgspec.json.encode(Command(command)), timeout)


def unanswered(data: str, error: OSError) -> str:
    """A sentence for a command that nobody has answered."""
    return f"no gateway answers at {path(data)} ({error.strerror or error}); is it running?"


def send(at: Path, line: bytes, timeout: float = 60.0) -> CommandResult:
    """Send a command to a socket, and return its result.

    Raises:
        OSError: nobody answers there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        client.connect(str(at))
        client.sendall(line + b"\n")
        with client.makefile("rb") as file:
            answer = file.readline()
    if not answer:
        raise ConnectionResetError("the gateway has gone")
    return msgspec.json.decode(answer, type=CommandResult)
