"""Load on whichever cell clients are sent to, and a record of what was acknowledged and when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from time import monotonic

import httpx2
from msgspec import Struct

from deploy.recovery.cell import CellFailed, LocalCell

_CHANGE_SECONDS = 0.2
_RETRY_SECONDS = 0.1


class Acknowledged(Struct, frozen=True):
    """Something that a cell has confirmed, and which it should therefore not forget."""

    at: float
    """Seconds on the monotonic clock."""
    cell: LocalCell
    name: str = ""


class Traffic:
    """Clients that ask one question after the other, and an operator that makes one tenant after the other."""

    def __init__(self, cell: LocalCell, key: str) -> None:
        """Args: key: that of the tenant whose clients these are."""
        self.cell = cell
        """Where they are sent now, as a name in DNS would."""
        self.turns: list[Acknowledged] = []
        self.changes: list[Acknowledged] = []
        self.failures = 0
        """Attempts of clients that got no answer."""
        self._key = key
        self._numbers = itertools.count()
        self._ending = False

    @contextlib.asynccontextmanager
    async def running(self, clients: int) -> AsyncIterator[None]:
        """Have so many clients ask while the block runs; what runs at its end is answered."""
        async with httpx2.AsyncClient(verify=False, timeout=30) as http, asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(self._ask_on(http))
            tasks.create_task(self._change_on())
            try:
                yield
            finally:
                self._ending = True

    async def answered(self, cell: LocalCell) -> float:
        """Wait for the first answer of a cell; return when it came."""
        while not (of_cell := [turn.at for turn in self.turns if turn.cell is cell]):  # noqa: ASYNC110  once a run
            await asyncio.sleep(0.01)
        return of_cell[0]

    async def _ask_on(self, http: httpx2.AsyncClient) -> None:
        while not self._ending:
            cell = self.cell
            status, _ = await ask(http, cell, self._key, f"Question {next(self._numbers)}: who are you?")
            if status == 200:
                self.turns.append(Acknowledged(monotonic(), cell))
            else:
                self.failures += 1
                await asyncio.sleep(_RETRY_SECONDS)

    async def _change_on(self) -> None:
        while not self._ending:
            cell, name = self.cell, f"customer-{next(self._numbers)}"
            with contextlib.suppress(CellFailed, httpx2.HTTPError):
                await cell.admin("POST", "/tenants", {"name": name})
                self.changes.append(Acknowledged(monotonic(), cell, name))
            await asyncio.sleep(_CHANGE_SECONDS)


async def ask(
    http: httpx2.AsyncClient, cell: LocalCell, key: str, question: str, *, model: str = "small"
) -> tuple[int, str]:
    """Return the status of a turn, and its text or error code; status 0 where nobody answers."""
    body = {
        "model": model,
        "input": question,
        "max_output_tokens": 16,
        "temperature": 0,
        "roundhouse": {"cache": "no-store"},
    }
    try:
        answer = await http.post(f"{cell.url}/v1/responses", json=body, headers={"authorization": f"Bearer {key}"})
    except httpx2.HTTPError as error:
        return 0, str(error)
    document = answer.json()
    if answer.status_code != 200:
        return answer.status_code, document["error"]["code"]
    texts = [part["text"] for item in document["output"] for part in item.get("content", [])]
    return 200, "".join(texts)
