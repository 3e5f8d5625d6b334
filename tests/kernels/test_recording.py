"""A replayed pass gives, bit for bit, what running it again gives; a pass that cannot be replayed says so."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

import kernels
from kernels import library

_HIDDEN, _INNER, _VOCABULARY = 96, 80, 50


class _Net:
    """What a model does with a token: look it up, normalise, multiply, gate, add."""

    def __init__(self, quantize: kernels.Quantization | None) -> None:
        generator = torch.Generator().manual_seed(0)

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).bfloat16()

        self._table, self._norm = weight(_VOCABULARY, _HIDDEN), weight(_HIDDEN)
        self._up = kernels.pack_weight(weight(2 * _INNER, _HIDDEN), quantize)
        self._down = kernels.pack_weight(weight(_HIDDEN, _INNER), quantize)

    def layer(self, x: torch.Tensor, *, twice: bool) -> torch.Tensor:
        for _ in range(2 if twice else 1):
            x = kernels.rms_norm(self._down(kernels.silu_and_mul(self._up(x))), self._norm, 1e-5)
        return x

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        residual = kernels.embedding(tokens, self._table)
        x = kernels.rms_norm(residual.view(-1, 4, _HIDDEN // 4), self._norm.view(4, -1), 1e-5).view(-1, _HIDDEN)
        x = self._down(kernels.silu_and_mul(self._up(x)))
        return kernels.add_rms_norm(x, residual, self._norm, 1e-5)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("quantize", [None, "int8", "w8a16", "int4"])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_replays_are_what_running_again_gives(quantize: kernels.Quantization | None, rows: int) -> None:
    net, inputs = _Net(quantize), torch.arange(rows)
    with kernels.record() as recording:
        out = net(inputs)
    assert recording.whole
    assert torch.equal(out, net(inputs))
    for shift in (7, 21):
        inputs.copy_((torch.arange(rows) * 3 + shift) % _VOCABULARY)
        expected = net(inputs)
        out.fill_(float("nan"))
        recording.replay()
        assert torch.equal(out, expected)


@pytest.mark.usefixtures("isa")
def test_a_recording_keeps_its_memory_and_says_how_much() -> None:
    """Nobody else gets the memory of what lies between, and a workspace that grows leaves the old one to it."""
    net, inputs = _Net(None), torch.arange(3)
    with kernels.record() as recording:
        out = net(inputs)
    expected = out.clone()
    assert recording.memory.nbytes >= 2 * 3 * (3 * _HIDDEN + 3 * _INNER)
    kernels.pack_weight(torch.randn(16, 4096).bfloat16())(torch.randn(500, 4096).bfloat16())
    taken = [torch.full((3, size), float("nan"), dtype=torch.bfloat16) for size in (_HIDDEN, _INNER, 2 * _INNER) * 50]
    recording.replay()
    assert torch.equal(out, expected)
    assert all(each.isnan().all() for each in taken)


@pytest.mark.usefixtures("isa")
def test_parts_take_the_memory_of_the_part_before_the_last_one_again() -> None:
    """So that it does not grow with their number; a part that allocates something else gets memory of its own."""
    net, inputs = _Net(None), torch.arange(3)

    def run(parts: int, other: int | None, recording: kernels.Recording | None = None) -> torch.Tensor:
        x = kernels.embedding(inputs, net._table)
        for part in range(parts):
            if recording is not None:
                recording.next_part()
            x = net.layer(x, twice=part == other)
        return x

    sizes = []
    for parts, other in ((2, None), (12, None), (12, 5)):
        with kernels.record() as recording:
            out = run(parts, other, recording)
        sizes.append(recording.memory.nbytes)
        assert torch.equal(out, run(parts, other))
        inputs.copy_(torch.arange(3) + parts)
        expected = run(parts, other)
        out.fill_(float("nan"))
        recording.replay()
        assert torch.equal(out, expected)
    assert sizes[0] == sizes[1] < sizes[2] < 2 * sizes[0]


@pytest.mark.usefixtures("isa")
def test_checks_are_made_again() -> None:
    net, inputs = _Net(None), torch.arange(3)
    with kernels.record() as recording:
        net(inputs)
    inputs[1] = _VOCABULARY
    with pytest.raises(IndexError):
        recording.replay()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(
    "more",
    [
        lambda x: x + 1,
        lambda x: x.mul_(2),
        lambda x: x.t().contiguous(),
        lambda x: x[0, 0].item(),
        lambda x: x.float(),
        lambda x: x.new_zeros(3),
    ],
)
def test_what_torch_computes_is_not_whole(more: Callable[[torch.Tensor], object]) -> None:
    net, inputs = _Net(None), torch.arange(3)
    with kernels.record() as recording:
        more(net(inputs))
    assert not recording.whole
    with pytest.raises(RuntimeError, match="more than a recording holds"):
        recording.replay()


@pytest.mark.usefixtures("isa")
def test_other_threads_are_not_recorded() -> None:
    net, inputs, other = _Net(None), torch.arange(3), torch.arange(4)
    with kernels.record() as recording:
        out = net(inputs)
        thread = threading.Thread(target=lambda: results.append(net(other)))
        results: list[torch.Tensor] = []
        thread.start()
        thread.join()
    results[0].fill_(0)
    recording.replay()
    assert not results[0].any()
    assert torch.equal(out, net(inputs))


@pytest.mark.skipif(library.cpu is None, reason="the libraries are not built")
def test_recording_brings_in_no_compiler() -> None:
    """Whose import would hold up the step that is recorded, for a second."""
    code = (
        "import sys, torch, kernels\n"
        "x, weight = torch.ones(1, 8), torch.ones(8)\n"
        "with kernels.record() as recording: kernels.rms_norm(x, weight, 1e-5)\n"
        "print(recording.whole, *(name for name in ('torch._dynamo', 'sympy') if name in sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["True"]


@pytest.mark.usefixtures("isa")
def test_the_library_serves_as_before_afterwards() -> None:
    before = library.cpu
    with pytest.raises(ZeroDivisionError), kernels.record():
        assert library.cpu is not before
        raise ZeroDivisionError
    assert library.cpu is before


@pytest.mark.usefixtures("isa")
def test_a_recording_serves_its_library_and_number_of_threads_only() -> None:
    net = _Net(None)
    with kernels.record() as recording:
        net(torch.arange(3))
    assert recording.serves
    with library.using(None):
        assert not recording.serves
        assert not kernels.can_record(torch.device("cpu"))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert not recording.serves
    finally:
        torch.set_num_threads(threads)
    assert recording.serves
