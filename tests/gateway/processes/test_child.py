"""Supervised children: real processes, restarted, stopped in order, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.processes import child as child_module
from gateway.processes.child import Child, ChildFailed

pytestmark = pytest.mark.anyio

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_a_child_that_dies_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_FIRST_BACKOFF", 0.01)
    child = Child("sleeper", SLEEP)
    task = asyncio.create_task(child.run())
    await until(lambda: child.pid)
    first = child.pid
    assert first
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.pid and child.pid != first)
    assert child.restarts == 1
    await child.stop()
    await task
    assert child.pid is None


async def test_a_child_that_cannot_run_as_configured_is_not_started_again() -> None:
    child = Child("picky", [sys.executable, "-c", "raise SystemExit(2)"])
    with pytest.raises(ChildFailed, match="picky"):
        await child.run()
    assert child.restarts == 0


async def test_a_child_is_started_again_only_if_somebody_wants_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_FIRST_BACKOFF", 0.01)
    child, wanted = Child("brief", [sys.executable, "-c", "raise SystemExit(7)"]), [True, False]
    with pytest.raises(ChildFailed, match="brief ended with status 7"):
        await child.run(again=lambda: wanted.pop(0))
    assert child.restarts == 1


async def test_what_a_child_prints_is_heard_line_by_line() -> None:
    lines: list[bytes] = []
    talks = "import time; print('ready', flush=True); print('steady', flush=True); time.sleep(600)"
    child = Child("talker", [sys.executable, "-c", talks], heard=lines.append)
    task = asyncio.create_task(child.run())
    await until(lambda: len(lines) == 2)
    assert lines == [b"ready\n", b"steady\n"]
    await child.stop()
    await task


async def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(ChildFailed, match="ghost"):
        await Child("ghost", ["/nonexistent/program"]).run()


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = Child("stubborn", [sys.executable, "-c", stubborn], grace=0.2)
    task = asyncio.create_task(child.run())
    await until(lambda: child.pid)
    pid = child.pid
    assert pid
    await child.stop()
    await task
    assert not alive(pid)


async def test_a_child_that_is_told_to_end_while_it_is_started_ends() -> None:
    child = Child("sleeper", SLEEP)
    task = asyncio.create_task(child.run())
    await asyncio.sleep(0)
    assert child.pid is None
    await child.stop()
    await asyncio.wait_for(task, 10)
    assert child.pid is None


async def test_cancelling_the_task_stops_the_child() -> None:
    child = Child("sleeper", SLEEP)
    task = asyncio.create_task(child.run())
    await until(lambda: child.pid)
    pid = child.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pid
    assert not alive(pid)


async def test_the_environment_reaches_the_child(tmp_path: Path) -> None:
    file = tmp_path / "seen"
    script = f"import os; open({str(file)!r}, 'w').write(os.environ['COLOUR']); raise SystemExit(2)"
    with pytest.raises(ChildFailed):
        await Child("painter", [sys.executable, "-c", script], {"COLOUR": "green"}).run()
    assert file.read_text() == "green"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = textwrap.dedent(f"""
        import asyncio, sys
        from gateway.processes.child import Child

        async def main():
            child = Child("sleeper", {SLEEP!r})
            await child.run(lambda: open({str(file)!r}, "w").write(f"{{child.pid}}\\n"))

        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", program]) as supervisor:
        deadline = time.monotonic() + 20
        while not (file.exists() and file.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pid = int(file.read_text())
        assert alive(pid)
        supervisor.kill()
        supervisor.wait()
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
