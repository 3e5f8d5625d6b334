"""One thread per test process: small tensors gain nothing from more, and pytest-xdist runs several processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels import library

torch.set_num_threads(1)


@pytest.fixture(params=library.ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set in turn, its library serving."""
    name: str = request.param
    if name not in library.supported():
        pytest.skip(f"this CPU has no {name}")
    if not (library.FOLDER / f"libroundhouse_cpu_{name}.so").exists():
        pytest.skip("the libraries are not built: install a C++ compiler, then run `python -m kernels.build`")
    with library.using(library.load(name)):
        yield name
