"""Runs the largest steps that an engine can meet before it says that it is ready.

What a step needs for the first time (threads, workspaces, caches of prepared work) is there then, and what it needs of
memory has been had once: an engine that cannot hold its largest batch fails at its start, with what to lower, and not
under load. All layers need the same memory, one after the other, so that one of them is enough to find out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from engine.kv import blocks_of
from engine.plan import Row
from engine.request import Request
from engine.runner import ModelRunner
from engine.scheduling.config import SchedulerConfig
from engine.wire import SamplingParams

_CGROUP = Path("/sys/fs/cgroup")
_LARGEST = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.1, logprobs=1)
"""What needs the most memory of all that a request may ask of the sampler."""


class NotEnoughMemory(Exception):
    """The engine cannot hold what it is to hold; the message says what to lower."""


def warm_up(runner: ModelRunner, config: SchedulerConfig, *, draft_tokens: int = 0) -> None:
    """Run the largest steps once, in the thread that is to run all others, while no request is there yet.

    Args:
        draft_tokens: most tokens that are drafted per request and step.

    Raises:
        NotEnoughMemory: see there.
    """
    on_host = runner.info.device == "cpu"
    available = available_bytes() if on_host else None
    before = _resident_bytes()
    try:
        for rows, layers in (
            (_prompts(runner.info.context, config, draft_tokens), 1),
            (_decodes(runner.info.context, config.max_running), 1),
            (_decodes(1, 1), None),
        ):
            runner.rehearse(rows, layers=layers)
            for row in rows:
                runner.release(row.request)
    except (MemoryError, RuntimeError) as error:  # numpy's, and torch's on the host and on a GPU
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise NotEnoughMemory(
            f"there is not enough memory for a step of {config.step_tokens} tokens and {config.max_running} requests "
            f"({str(error).splitlines()[0]}); lower --step-tokens, --max-running or --kv-tokens"
        ) from error
    if available is not None:
        check_room(available + runner.kv_bytes_taken, runner.kv_bytes, _peak_bytes() - before)


def check_room(available: int, kv_bytes: int, step_bytes: int) -> None:
    """Whether the KV cache, which the system gives us as it is filled, fits beside the largest step. In bytes.

    Raises:
        NotEnoughMemory: it does not.
    """
    if kv_bytes + step_bytes > available:
        raise NotEnoughMemory(
            f"the KV cache ({_mib(kv_bytes)}) and the largest step ({_mib(step_bytes)}) do not fit into the memory "
            f"that is left ({_mib(available)}); lower --kv-tokens, --step-tokens or --max-running"
        )


def available_bytes() -> int | None:
    """Memory that this process can still get: of the machine, and of its control group (version 2); None: unknown."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        most = (_CGROUP / "memory.max").read_text().strip()
        if most != "max":
            statistics = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
            used = int((_CGROUP / "memory.current").read_text()) - int(statistics.get("inactive_file", 0))
            found.append(int(most) - used)
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def _prompts(context: int, config: SchedulerConfig, draft_tokens: int) -> list[Row]:
    """As many requests and tokens as a step may have; all sample, and draft as far as there are tokens for it."""
    left = config.step_tokens
    rows = []
    for number in range(config.max_running, 0, -1):
        drafted = max(min(draft_tokens, left // number - 1, context - 2), 0)
        count = max(min(left - (number - 1) * (1 + drafted) - drafted, context - 1 - drafted), 1)
        rows.append(_row(number, 0, count, draft=(0,) * drafted))
        left -= rows[-1].tokens
    return rows


def _decodes(context: int, requests: int) -> list[Row]:
    """Requests that are as long as they can be."""
    return [_row(number, context - 1, 1) for number in range(requests)]


def _row(number: int, start: int, count: int, draft: Sequence[int] = ()) -> Row:
    """All requests have the same blocks: what they write there means nothing."""
    request = Request(f"warm-up {number}", [0] * (start + count), _LARGEST, arrival=0.0)
    request.block_table = list(range(blocks_of(start + count + len(draft))))
    return Row(request, start, count, sample=True, draft=tuple(draft))


def _resident_bytes() -> int:
    """Memory that this process has now; from here on its most is measured."""
    with contextlib.suppress(OSError):  # then the most that loading took counts too
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak_bytes() -> int:
    """Most memory that this process has had since then."""
    return _status("VmHWM")


def _status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
