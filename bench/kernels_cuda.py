"""Times calls on a CUDA device, for `bench.kernels`: recorded in a CUDA graph and replayed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

_WARM_UP = 3
_REPLAYS = 7
"""Number of replays, of which the fastest counts."""


@torch.inference_mode()
def replayed_time(calls: Sequence[Callable[[], object]], seconds: float) -> float:
    """Return the seconds of a call, the calls taking turns; a graph of them takes about `seconds`."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is set up at a first call cannot be recorded
        for call in itertools.chain(calls, itertools.repeat(calls[0], _WARM_UP)):
            call()
    torch.cuda.synchronize()
    one = _replayed(calls[:1])
    count = max(len(calls), min(1000, math.ceil(seconds / one)))
    return _replayed([call for _, call in zip(range(count), itertools.cycle(calls), strict=False)]) / count


def _replayed(calls: Sequence[Callable[[], object]]) -> float:
    """Return the seconds of all calls together, from a CUDA graph: the fastest of a few replays."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for _ in range(_REPLAYS):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return min(times)
