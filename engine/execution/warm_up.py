"""Runs the largest steps that an engine can meet before it says that it is ready.

Each resource that a step needs for the first time (threads, workspaces, caches of prepared work) is there then, and its
memory has been used once: an engine that cannot hold its largest batch fails at its start, with what to lower, and not
under load. All layers need the same memory, one after the other, so that one of them is enough to find out. What is
taken up only as the engine runs (KV, adapters and prefixes on the host, recorded steps) is added to that.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from engine.adapters.residency import BASE_ONLY, ResidencyConfig
from engine.cache.blocks import BLOCK_SIZE, blocks_of
from engine.execution.runner import ModelRunner
from engine.plan import Row
from engine.request import Request
from engine.scheduling.config import SchedulerConfig
from engine.validation import MAX_LOGPROBS
from engine.wire import SamplingParams

_CGROUP = Path("/sys/fs/cgroup")
_LARGEST = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.1)
"""Sampling parameters that need the most memory, but for log-probabilities."""


class NotEnoughMemory(Exception):
    """The engine does not fit into memory; the message says what to lower."""


def warm_up(
    runners: Sequence[ModelRunner],
    config: SchedulerConfig,
    *,
    draft_tokens: int = 0,
    residency: ResidencyConfig = BASE_ONLY,
    kv_host_bytes: int = 0,
) -> float:
    """Run the largest steps once, in the thread that is to run all others, while no request is there yet.

    Returns the seconds that a step of all `step_tokens` is expected to take, rather too many: nothing was warm.

    Args:
        runners: the model that requests name, then those that draft for it. Their KV caches are zeros.
        draft_tokens: most tokens that are drafted per request and step.
        residency: bounds of what adapters may take.
        kv_host_bytes: memory for prefixes that the KV cache has no room for.

    Raises:
        NotEnoughMemory: the engine does not fit; the message says what to lower.
    """
    available = available_bytes()
    before = _resident_bytes()
    try:
        seconds = sum(_run_largest_steps(runner, config, draft_tokens, residency.share) for runner in runners)
    except (MemoryError, RuntimeError) as error:  # numpy's, and torch's on the host and on a GPU
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise NotEnoughMemory(
            f"there is not enough memory for a step of {config.step_tokens} tokens and {config.max_running} requests "
            f"({str(error).splitlines()[0]}); lower --step-tokens, --max-running or --kv-tokens"
        ) from error
    if available is not None:
        on_host = [runner for runner in runners if runner.info.device == "cpu"]
        needed = {
            "the KV cache": sum(runner.kv_bytes for runner in on_host),
            "the largest step": _peak_bytes() - before,
            "recorded steps": sum(runner.recorded_bytes for runner in on_host),
            # Pinned memory beside a GPU was allocated already.
            "prefixes in host memory": kv_host_bytes if on_host else 0,
            "adapters in host memory": 0 if runners[0].bank is None else residency.host_bytes,
        }
        check_room(available + sum(runner.kv_bytes_taken for runner in on_host), needed)
    _give_back()
    return seconds


_OPTIONS = {
    "the KV cache": "--kv-tokens",
    "the largest step": "--step-tokens or --max-running",
    "prefixes in host memory": "--kv-host-bytes",
    "adapters in host memory": "--adapter-host-bytes",
}
"""Option that makes each of these smaller."""


def check_room(available: int, needed: Mapping[str, int]) -> None:
    """Check that memory which the system gives only on use fits into what is available. In bytes, by purpose.

    Raises:
        NotEnoughMemory: it does not fit.
    """
    if sum(needed.values()) > available:
        parts = ", ".join(f"{name} ({_mib(size)})" for name, size in needed.items() if size)
        options = ", ".join(_OPTIONS[name] for name, size in needed.items() if size and name in _OPTIONS)
        raise NotEnoughMemory(f"{parts} do not fit into the memory that is left ({_mib(available)}); lower {options}")


def available_bytes() -> int | None:
    """Return the memory that machine and control group (version 2) still allow this process; None: unknown."""
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


def _run_largest_steps(runner: ModelRunner, config: SchedulerConfig, draft_tokens: int, share: float) -> float:
    """Run the largest steps of one runner. Adapters come first: they lie in KV blocks, which are still zeros then.

    Returns the seconds of prompts of all `step_tokens` in as many layers as there are.
    """
    context = runner.info.context
    tops = min(MAX_LOGPROBS, runner.info.vocabulary)
    if runner.bank is not None:
        lent = int(runner.blocks * share)
        left = min(context, (runner.blocks - lent) * BLOCK_SIZE)
        with runner.bank.standing_in(range(runner.blocks - lent, runner.blocks), config.max_running) as names:
            if names:  # none if nothing fits into a small cache
                _run(runner, _prompts(left, config, draft_tokens, tops, names), 1)
                _run(runner, _decodes(left, config.max_running, tops, names), 1, sample=False)
    begun = time.monotonic()
    _run(runner, _prompts(context, config, draft_tokens, tops), 1)
    seconds = (time.monotonic() - begun) * runner.config.layers
    _run(runner, _decodes(context, config.max_running, tops), 1, sample=False)  # no fewer tokens were sampled above
    _run(runner, _decodes(1, 1, tops), None)
    return seconds


def _run(runner: ModelRunner, rows: Sequence[Row], layers: int | None, *, sample: bool = True) -> None:
    runner.dry_run(rows, layers=layers, sample=sample)
    for row in rows:
        runner.release(row.request)


def _prompts(
    context: int, config: SchedulerConfig, draft_tokens: int, tops: int, adapters: Sequence[str] = ()
) -> list[Row]:
    """Make as many requests and tokens as a step may have; all sample, and draft as far as there are tokens for it.

    The longest one asks for the log-probabilities of its prompt too.
    """
    left = config.step_tokens
    rows: list[Row] = []
    for number in range(config.max_running, 0, -1):
        drafted = max(min(draft_tokens, left // number - 1, context - 2), 0)
        count = max(min(left - (number - 1) * (1 + drafted) - drafted, context - 1 - drafted), 1)
        sampling = msgspec.structs.replace(_LARGEST, logprobs=tops, prompt_logprobs=None if rows else tops)
        rows.append(_row(number, 0, count, (0,) * drafted, sampling, adapters))
        left -= rows[-1].tokens
    return rows


def _decodes(context: int, requests: int, tops: int, adapters: Sequence[str] = ()) -> list[Row]:
    """Make requests that are as long as they can be."""
    sampling = msgspec.structs.replace(_LARGEST, logprobs=tops)
    return [_row(number, context - 1, 1, (), sampling, adapters) for number in range(requests)]


def _row(
    number: int, start: int, count: int, draft: tuple[int, ...], sampling: SamplingParams, adapters: Sequence[str]
) -> Row:
    """Make a row. All requests have the same blocks, whose content means nothing; adapters are used in turn."""
    adapter = adapters[number % len(adapters)] if adapters else None
    request = Request(f"warm-up {number}", [0] * (start + count), sampling, arrival=0.0, adapter=adapter)
    request.block_table = list(range(blocks_of(start + count + len(draft))))
    return Row(request, start, count, sample=True, draft=draft)


def _give_back() -> None:
    """Return to the system what was freed: malloc would keep it, and many engines never run such a step again."""
    with contextlib.suppress(AttributeError):  # other C libraries than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int:
    """Return the memory that this process has now; its peak is measured from here on."""
    with contextlib.suppress(OSError):  # then the most that loading took counts too
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak_bytes() -> int:
    """Return the most memory that this process has had since then."""
    return _status("VmHWM")


def _status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
