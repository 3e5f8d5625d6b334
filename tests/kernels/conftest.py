"""One thread per test process: small tensors gain nothing from more, and pytest-xdist runs several processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels import library

torch.set_num_threads(1)

Body = tuple[library.Library, torch.device]
"""A library, and the device of its tensors."""


def load(name: str) -> library.Library:
    """Load a library for tensors of the CPU; skips the test where there is none."""
    if name in library.ISAS and name not in library.supported():
        pytest.skip(f"this CPU has no {name}")
    try:
        return library.load_cuda(name) if name == library.EMULATOR else library.load(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(params=library.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn, its library serving."""
    with library.using(load(request.param)):
        yield request.param


@pytest.fixture(params=[*library.ISAS, library.EMULATOR])
def built(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each library for tensors of the CPU in turn: those of the instruction sets, and the CUDA sources' emulator."""
    with library.using(load(request.param)):
        yield request.param


@pytest.fixture
def emulator() -> Iterator[library.Library]:
    """The emulator's library serving tensors of the CPU. Its threads advance in step until the test sets a seed."""
    loaded = load(library.EMULATOR)
    with library.using(loaded):
        yield loaded
    loaded.set_seed(0)


@pytest.fixture(params=[*library.ISAS, library.EMULATOR, *(["cuda"] if library.cuda else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device of each built library in turn, which serves there: for ops that have a body in all of them."""
    name: str = request.param
    if name == "cuda":
        yield torch.device("cuda")
    else:
        with library.using(load(name)):
            yield torch.device("cpu")


@pytest.fixture(params=[library.EMULATOR, *(["cuda"] if library.cuda else [])])
def body(request: pytest.FixtureRequest) -> Iterator[Body]:
    """The CUDA sources, under the emulator and on a device: for functions that the CPU's bodies do not have."""
    if request.param == "cuda":
        assert library.cuda is not None
        yield library.cuda, torch.device("cuda")
    else:
        yield request.getfixturevalue("emulator"), torch.device("cpu")
