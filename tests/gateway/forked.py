"""Processes forked from one that has imported what they need: a gateway's imports take nearly a processor second.

Each runs `python -m MODULE` in an environment of its own, and ends as any other process does.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

GATEWAY = ("gateway.cli.root", "gateway.processes.supervisor", "gateway.app", "gateway.server")
"""What `roundhouse serve` imports."""


class ForkedProcess:
    """A running process, with the part of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int, ended: int) -> None:
        """Args: ended: pipe that gets the exit status when the process has ended."""
        self.pid = pid
        self._ended = ended
        self._returncode: int | None = None

    @property
    def returncode(self) -> int | None:
        if self._returncode is None:
            with contextlib.suppress(BlockingIOError):
                self._returncode = int(os.read(self._ended, 20) or -signal.SIGKILL)
                os.close(self._ended)
        return self._returncode

    async def wait(self) -> int:
        while self.returncode is None:
            await anyio.wait_readable(self._ended)
        assert self._returncode is not None
        return self._returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)


class ForkServer:
    """The process that others are forked from. When it hears that the tests have ended it kills them."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), *modules]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], **quiet)
        atexit.register(self._close)

    def fork(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> ForkedProcess:
        """Run a module. Args: log: file that what it prints is appended to."""
        ended, ending = os.pipe()
        os.set_blocking(ended, False)
        try:
            with log.open("ab") as file:
                request = json.dumps([module, [*arguments], {**environment}]).encode()
                socket.send_fds(self._control, [request], [file.fileno(), ending])
            return ForkedProcess(int(self._control.recv(20)), ended)
        finally:
            os.close(ending)

    def _close(self) -> None:
        self._control.close()
        self._process.wait()


@functools.cache
def fork_server(modules: Sequence[str] = GATEWAY) -> ForkServer:
    """The one of this process of tests."""
    return ForkServer(modules)


def _serve(control: socket.socket) -> tuple[str, list[str]]:
    """Fork, and report what ends. It returns in a forked process, with the module and arguments that are to run."""
    running: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    # No larger than the largest message of such a socket.
                    request, found, _, _ = socket.recv_fds(control, 200_000, 2)
                    if not request:
                        for pid, _ in running.values():
                            os.kill(pid, signal.SIGKILL)
                        sys.exit()
                    log, ending = array.array("i", found)
                    pid = os.fork()
                    if pid == 0:
                        os.close(ending)
                        for handle, (_, other) in running.items():
                            os.close(handle)
                            os.close(other)
                        control.close()
                        return _become(json.loads(request), log)
                    os.close(log)
                    running[handle := os.pidfd_open(pid)] = pid, ending
                    selector.register(handle, selectors.EVENT_READ)
                    control.send(str(pid).encode())
                else:
                    handle = key.fd
                    pid, ending = running.pop(handle)
                    selector.unregister(handle)
                    os.close(handle)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                        os.write(ending, str(status).encode())
                    os.close(ending)


def _become(request: tuple[str, list[str], dict[str, str]], log: int) -> tuple[str, list[str]]:
    module, arguments, environment = request
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return module, arguments


def main() -> None:
    # Ctrl-C is for the tests, which then close the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    module, sys.argv[1:] = _serve(control)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
