"""docs/adapters.md names everything that it should."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.adapters.config import _CHANGES_BASE, _REFUSED, MAX_RANK, AdapterConfig
from engine.adapters.format import MAX_WEIGHTS_BYTES
from engine.adapters.tensors import MAX_TENSORS
from gateway.cli.adapters import adapter
from gateway.cli.root import main
from gateway.processes.demo import ADAPTERS

PAGE = Path("docs/adapters.md").read_text("utf-8")
SUPPORTED, REFUSED = PAGE.split("## What is refused")


@pytest.mark.parametrize("command", adapter.commands)
def test_every_command_is_there(command: str) -> None:
    assert f"`roundhouse adapter {command}" in PAGE or f"`{command} NAME`" in PAGE


@pytest.mark.parametrize("key", [*_REFUSED, *_CHANGES_BASE])
def test_every_refused_key_is_there(key: str) -> None:
    assert f"`{key}`" in REFUSED


@pytest.mark.parametrize("key", sorted(set(AdapterConfig.__struct_fields__) - {"r"}))
def test_every_supported_key_is_there(key: str) -> None:
    assert key in SUPPORTED


def test_the_limits_are_the_codes() -> None:
    assert f"1 to {MAX_RANK}" in PAGE
    assert f"{MAX_WEIGHTS_BYTES // 1024**3} GiB of weights, {MAX_TENSORS:,} tensors" in PAGE


def test_the_examples_can_be_typed() -> None:
    """Every command of the examples exists, with its options; the demo's names are the demo's."""
    lines = [line for line in PAGE.splitlines() if line.startswith("roundhouse ")]
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0
    assert "--model pirate" in PAGE
    assert {"pirate", "json"} <= ADAPTERS.keys()
