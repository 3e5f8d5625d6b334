"""Fetches a model of the catalogue in a process of its own, and follows how far it is."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

import msgspec

from gateway.config.model_store import ModelStoreSettings
from gateway.models.catalogue import CatalogueModel
from gateway.models.fetch import FetchReport
from gateway.processes.child import die_with


class FetchFailed(Exception):
    """A model cannot be fetched now; the message says why."""

    def __init__(self, message: str, *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable
        """Whether no source answers."""


async def fetch(model: CatalogueModel, settings: ModelStoreSettings, follow: Callable[[FetchReport], None]) -> None:
    """Have a model in the store. Cancelling it ends the process, and what has come is kept.

    Args:
        follow: is told each report.

    Raises:
        FetchFailed: it cannot be had.
    """
    command = [sys.executable, "-m", "gateway.models.fetch", model.name, "--store", str(settings.open().folder)]
    if settings.catalogue is not None:
        command += ["--catalogue", settings.catalogue]
    parent = os.getpid()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: die_with(parent),
    )
    assert process.stdout is not None
    last = FetchReport()
    try:
        async for line in process.stdout:
            last = msgspec.json.decode(line, type=FetchReport)
            follow(last)
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if status:
        raise FetchFailed(
            last.problem or f"fetching {model.name} ended with status {status} (see its message above)",
            unreachable=last.unreachable,
        )
