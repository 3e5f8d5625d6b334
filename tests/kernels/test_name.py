"""transformers looks for Hugging Face's hub client under the name of our package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
from transformers.utils import is_kernels_available

import kernels


def test_transformers_does_not_take_our_package_for_the_hub_client() -> None:
    try:
        version("kernels")
    except PackageNotFoundError:
        assert hasattr(kernels, "paged_attention")
        assert not is_kernels_available()
    else:
        pytest.skip("the hub client itself is installed")
