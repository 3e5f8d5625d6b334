"""Passes that are recorded once and run again without Python: what a CUDA graph is, for the CPU.

While a pass is recorded it runs as always, and every call of a built library is noted with its tensors. To replay is
to make the same calls with the same tensors: whoever does it has written new numbers into those that the pass read, and
finds what it gives in those that it gave. Python, allocation and views between the calls of a small model's step take
about as long as its calls.

torch documents `TorchDispatchMode` but has no public module for it: `tests/test_internals.py` fails when it moves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import library

_ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided")
_Place = tuple[int, int]
"""Part of a pass, and number of the allocation in it."""


class RecordingMemory:
    """Memory for what passes allocate, which their recordings share: what one of them gives is there until another is
    replayed."""

    def __init__(self, most_bytes: int = sys.maxsize) -> None:
        """`most_bytes`: a pass that needs more is not whole."""
        self._most_bytes = most_bytes
        self.blocks: dict[_Place, torch.Tensor] = {}
        """Bytes for each allocation of a pass."""

    @property
    def nbytes(self) -> int:
        """Bytes that later recordings share; older ones may keep as much again."""
        return sum(block.nbytes for block in self.blocks.values())

    def take(self, place: _Place, fresh: torch.Tensor) -> torch.Tensor | None:
        """Return the memory at a place as a tensor like this one; None if there may not be so much."""
        block = self.blocks.get(place)
        if block is None or block.nbytes < fresh.nbytes:
            # Powers of two: all that a block has grown from, which older recordings keep, is no more than itself.
            size = 1 << max(0, fresh.nbytes - 1).bit_length()
            if self.nbytes + size - (0 if block is None else block.nbytes) > self._most_bytes:
                return None
            block = self.blocks[place] = torch.empty(size, dtype=torch.uint8)
        return block[: fresh.nbytes].view(fresh.dtype).view(fresh.shape)


class Recording:
    """The calls of one pass, in the order in which they were made; it keeps their tensors."""

    def __init__(self, body: library.Library, memory: RecordingMemory) -> None:
        self.whole = True
        """Whether the pass was nothing but calls of the library and views, so that replaying does all that it did."""
        self.memory = memory
        self._before = dict(memory.blocks)
        self._taken: dict[_Place, torch.Tensor] = {}
        self._calls: list[tuple[Any, tuple[Any, ...]]] = []
        self._part = -1
        self._allocated = 0
        """Number of allocations in this part of the pass."""
        self._body = body
        self._threads = torch.get_num_threads()
        self._functions: Any = None
        self._arguments: Any = None

    def note(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self._calls.append((function, arguments))

    def next_part(self) -> None:
        """Begin a part that reads nothing of what the part before the last one allocated: it takes that memory again.

        A layer reads what the layer before it gave, and nothing older. Memory then does not grow with the layers, and
        stays in caches.
        """
        self._part, self._allocated = self._part + 1, 0

    def allocated(self, fresh: torch.Tensor) -> torch.Tensor:
        """Note an allocation -> the tensor that the pass shall use."""
        place = self._part if self._part < 0 else self._part % 2, self._allocated
        self._allocated += 1
        found = self._taken.get(place)
        if found is not None and (found.shape, found.dtype) == (fresh.shape, fresh.dtype):
            return found
        taken = self.memory.take(place, fresh)
        if taken is None:
            self.whole = False
            return fresh
        self._taken[place] = taken
        return taken

    def end(self) -> None:
        """End the pass: bring its calls into the form in which they are replayed."""
        import tvm_ffi

        if self.whole:
            self._functions = tvm_ffi.convert([function for function, _ in self._calls])
            # In the library's own form, which keeps a tensor's memory as long as the recording.
            tensors = {
                id(each): each for _, arguments in self._calls for each in arguments if isinstance(each, torch.Tensor)
            }
            held = {key: tvm_ffi.from_dlpack(tensor) for key, tensor in tensors.items()}
            self._arguments = tvm_ffi.convert(
                [[held.get(id(each), each) for each in arguments] for _, arguments in self._calls]
            )
        else:
            self.memory.blocks = self._before
        self._before = {}
        self._calls.clear()
        self._taken.clear()

    @property
    def serves(self) -> bool:
        """Whether the pass would still be run by the same library and number of threads."""
        return library.cpu is self._body and torch.get_num_threads() == self._threads

    def replay(self) -> None:
        """Make all calls again.

        Raises:
            RuntimeError: the recording is not whole.
        """
        if self._functions is None:
            raise RuntimeError("this pass did more than a recording holds; run it again instead")
        self._body.replay(self._functions, self._arguments)


class _Recorder(library.Library):
    """Stands in for a library and notes the calls of one thread; one per library, so that caches may keep it."""

    def __init__(self, body: library.Library) -> None:
        self.isa = body.isa
        self._body = body
        self._module = body._module
        self.recording: Recording | None = None
        self.thread = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._body, name)

        def call(*arguments: Any) -> Any:
            # What takes no tensors only tells how much memory others need.
            if (
                self.recording is not None
                and threading.get_ident() == self.thread
                and any(isinstance(each, torch.Tensor) for each in arguments)
            ):
                self.recording.note(function, arguments)
            return function(*arguments)

        setattr(self, name, call)
        return call


@cache
def _recorder(body: library.Library) -> _Recorder:
    return _Recorder(body)


class _Watch(TorchDispatchMode):
    """Watches calls of torch itself: a recording is whole only if these are allocations and views."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here. Otherwise the first pass that is watched imports all of torch's compiler: a second.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.name().partition(".")[0] in _ALLOCATIONS:
            return self._recording.allocated(result)
        if not func.is_view:
            self._recording.whole = False
        return result


def can_record(device: torch.device) -> bool:
    """Whether passes on this device can be recorded."""
    return device.type == "cpu" and library.cpu is not None and library.cpu.has("replay")


@contextmanager
def record(memory: RecordingMemory | None = None) -> Iterator[Recording]:
    """Record what the calling thread does on the CPU; other threads run as always. One thread at a time.

    `memory` is that of the pass; None: its own.

    Only what a pass reads from tensors can change between replays. A number that it takes to Python (`tolist`, numpy)
    stays as it was.
    """
    body = library.cpu
    if body is None:
        raise RuntimeError("there is no built library to record")
    recorder, recording = _recorder(body), Recording(body, memory or RecordingMemory())
    recorder.recording, recorder.thread = recording, threading.get_ident()
    try:
        with library.using(recorder), _Watch(recording):
            yield recording
    finally:
        recorder.recording = None
    recording.end()
