"""What an idle WebSocket costs a gateway in memory, beside a bare Starlette WebSocket in the same run.

    python -m bench.idle_sockets                    5,000 sockets; results in bench/results/idle-sockets.md
    python -m bench.idle_sockets --sockets 500

A real gateway process with a real Redis, and clients in another process. Counted is the resident memory that the
gateway has gained: once all sockets are open, and once each has had one answer, which it may still continue and which
is kept for those who resume. Buffers in the kernel are not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.gateway import GatewayStage, conditions, console
from bench.gateway_report import SUBJECTS, GatewaySubject
from bench.load import LoadPlan, SocketClient
from bench.report import options, publish, table
from bench.servers import ROOT

LIMIT_MB = 150.0
"""Most megabytes that 5,000 idle sockets may take."""
SETTLE_SECONDS = 3.0
_MB = 1_000_000


class SocketRow(msgspec.Struct, frozen=True):
    """One subject, in megabytes."""

    subject: str
    sockets: int
    before: float
    """Megabytes resident without a socket."""
    opened: float
    """Megabytes gained once all sockets are open."""
    answered: float | None
    """Megabytes gained once each socket has had an answer; None if the subject gives none."""


def measure(stage: GatewayStage, subject: GatewaySubject, sockets: int) -> SocketRow:
    """Open the sockets, have each answered once, and return what the process has gained."""
    with stage.run(subject) as (port, [pid]):
        with clients(subject, port, 1) as one:  # what is made once is not a socket's
            tell(one, "ask" if subject.name.startswith("roundhouse") else "rest")
        before = resident(pid)
        with clients(subject, port, sockets) as many:
            opened = resident(pid) - before
            answered = None
            if subject.name.startswith("roundhouse"):
                tell(many, "ask")
                answered = resident(pid) - before
    return SocketRow(subject.name, sockets, before / _MB, opened / _MB, answered and answered / _MB)


def resident(pid: int) -> int:
    """Return the resident bytes of a process, once they stop changing."""
    time.sleep(SETTLE_SECONDS)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def clients(subject: GatewaySubject, port: int, sockets: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds so many sockets open until the block ends."""
    command = [sys.executable, "-m", "bench.idle_sockets", "--hold", str(sockets), str(port), subject.path]
    started = subprocess.Popen(
        [*command, *subject.headers], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        said = started.stdout.readline() if started.stdout else ""
        if said != "done\n":
            raise RuntimeError(f"clients of {subject.name}: {said.strip() or 'ended'}")
        yield started
    finally:
        if started.stdin:
            started.stdin.close()
        started.wait(60)


def tell(holder: subprocess.Popen[str], word: str) -> None:
    """Give the clients an order and wait until it is carried out."""
    assert holder.stdin
    assert holder.stdout
    holder.stdin.write(word + "\n")
    holder.stdin.flush()
    if holder.stdout.readline() != "done\n":
        raise RuntimeError(f"clients: {word} failed")


async def hold(sockets: int, plan: LoadPlan) -> None:
    """Run the clients' process: open the sockets, and obey standard input until it ends."""
    opened = [SocketClient(plan) for _ in range(sockets)]
    for each in opened:
        await each.open()
    print("done", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip() == "ask":
            for each in opened:
                await each.turn(secrets.token_hex(8))
        print("done", flush=True)
    for each in opened:
        each.close()


def markdown(rows: Sequence[SocketRow]) -> list[str]:
    """Return the table in Markdown."""
    lines = []
    for row in rows:
        answered = "" if row.answered is None else f"{row.answered:.1f}"
        per_answered = "" if row.answered is None else f"{1000 * row.answered / row.sockets:.1f}"
        lines.append(
            f"{row.subject} | {row.sockets:,} | {row.before:.1f} | {row.opened:.1f} | "
            f"{1000 * row.opened / row.sockets:.1f} | {answered} | {per_answered}"
        )
    return table(
        "subject | idle sockets | process before (MB) | gained, opened (MB) | KB per socket | "
        "gained, each answered once (MB) | KB per socket",
        lines,
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sockets", type=int, default=5000)
    parser.add_argument("--hold", nargs="+", help=argparse.SUPPRESS)
    arguments, headers = parser.parse_known_args()
    if arguments.hold:
        sockets, port, path, *more = arguments.hold
        plan = LoadPlan("responses", port=int(port), path=path, headers=[*more, *headers], model="small", store=False)
        asyncio.run(hold(int(sockets), plan))
        return
    os.environ["ROUNDHOUSE_SERVER_MAX_CONNECTIONS"] = str(arguments.sockets + 10)
    os.environ["ROUNDHOUSE_SERVER_MAX_CONNECTIONS_PER_TENANT"] = str(arguments.sockets + 10)
    os.environ["ROUNDHOUSE_SERVER_FIRST_MESSAGE_TIMEOUT"] = "600"
    rows = []
    with tempfile.TemporaryDirectory(prefix="rh-idle-") as folder, contextlib.ExitStack() as stack:
        stage = GatewayStage(Path(folder), stack)
        for name in ("starlette, socket", "roundhouse, socket"):
            console.print(f"{name} ...")
            rows.append(measure(stage, SUBJECTS[name], arguments.sockets))
    ours = rows[-1]
    most = ours.opened * 5000 / ours.sockets
    lines = [
        "# Memory of idle sockets",
        "",
        conditions(),
        f"- 5,000 idle sockets: {most:.0f} MB of {LIMIT_MB:.0f} MB that they may take",
        "",
        *markdown(rows),
        "",
    ]
    publish(arguments.output / "idle-sockets", "\n".join(lines), rows)


if __name__ == "__main__":
    main()
