"""The clients of a run, what they ask, and what the answers are when nothing is broken."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from tests.chaos.cases import Case, Whole, cases, typed
from tests.chaos.clients import Client, SocketClient, StreamClient, TerminalClient
from tests.chaos.installation import Installation

_SORTS = ("socket", "stream", "socket", "socket with events", "stream", "socket with events", "socket", "terminal")
"""What clients are, one after the other."""
_OTHER_TENANTS = {1: "narrow", 2: "poor", 5: "narrow", 6: "poor"}
"""Of each eight clients, those that are not the tenant `demo`'s."""
_MOST_TERMINALS = 3
_WITHOUT_BUDGET = 5.0
"""Most seconds until a client asks again whose budget is spent."""


class Load:
    """So many clients, each of which asks one question after another until it is told to stop."""

    def __init__(self, installation: Installation, clients: int, seed: int, *, thinking: float) -> None:
        """Args: thinking: most seconds between two turns of a client."""
        self._random = random.Random(f"{seed}/load")
        self._thinking = thinking
        urls = [gateway.url for gateway in installation.gateways]
        self.clients = [self._client(number, urls, seed) for number in range(clients)]
        self._stopping = False

    def _client(self, number: int, urls: Sequence[str], seed: int) -> Client:
        sort = _SORTS[number % len(_SORTS)]
        name = f"{sort} {number}"
        common = (name, _OTHER_TENANTS.get(number % len(_SORTS), "demo"), urls, f"{seed}/{name}")
        if sort == "terminal" and number < _MOST_TERMINALS * len(_SORTS):
            return TerminalClient(*common)
        return StreamClient(*common) if sort == "stream" else SocketClient(*common, events="events" in sort)

    @property
    def turns(self) -> int:
        """Number of turns that have ended."""
        return sum(turn.ended is not None for client in self.clients for turn in client.turns)

    async def run(self) -> None:
        """Ask until `stop` has been called and every turn has ended."""
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(self._ask(client))

    def stop(self) -> None:
        """Let no client begin another turn."""
        self._stopping = True

    async def _ask(self, client: Client) -> None:
        asked = typed() if isinstance(client, TerminalClient) else cases()
        if isinstance(client, SocketClient):
            asked = [case for case in asked if not case.chat]
        try:
            while not self._stopping:
                turn = await client.turn(self._random.choice(asked))
                most = _WITHOUT_BUDGET if turn.failure == "insufficient_quota" else self._thinking
                await asyncio.sleep(self._random.uniform(0, most))
        finally:
            await client.aclose()


async def undisturbed(installation: Installation) -> dict[str, Whole]:
    """Ask everything once while nothing is broken; return the answers by name of the request."""
    return {case.name: await _whole(installation, case) for case in (*cases(), *typed())}


async def _whole(installation: Installation, case: Case) -> Whole:
    body = {**case.body, "roundhouse": {"cache": "no-store"}}
    body.pop("stream_options", None)
    status, _, document = await installation.ask(0, body, case.path)
    assert status == 200, (case.name, document)
    return _chatted(document) if case.chat else _responded(document)


def _responded(response: dict[str, Any]) -> Whole:
    [item] = response["output"]
    ending = response["status"]
    if response["incomplete_details"]:
        ending += f": {response['incomplete_details']['reason']}"
    usage = response["usage"]
    return Whole(item["content"][0]["text"], ending, usage["input_tokens"], usage["output_tokens"])


def _chatted(completion: dict[str, Any]) -> Whole:
    [choice] = completion["choices"]
    usage = completion["usage"]
    return Whole(
        choice["message"]["content"], choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]
    )
