"""Turns through a pipeline, without a client."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.access.identity import Principal
from gateway.errors import ApiError
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message, Sampling, TurnRequest
from gateway.protocol.stream import Routed, TextDelta
from tests.gateway.conftest import Served

DEMO = Principal("demo", "demo")
OTHER = Principal("other", "other")


def request(text: str = "hello", **fields: Any) -> TurnRequest:
    defaults: dict[str, Any] = {
        "model": "auto",
        "messages": (Message("user", text),),
        "sampling": Sampling(ignore_eos=True),
        "max_output_tokens": 4,
    }
    return TurnRequest(**{**defaults, **fields})


async def run(served: Served, asked: TurnRequest, principal: Principal = DEMO) -> list[Any]:
    """Return the neutral events of one turn."""
    with await served.gateway.turns.start(asked, principal) as viewer:
        return [entry.event async for entry in viewer.entries() if entry.event is not None]


def routes(events: list[Any]) -> list[Routed]:
    return [event for event in events if isinstance(event, Routed)]


def text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def stopping(served: Served, **changes: Any) -> TurnRequest:
    """Return a request whose greedy answer soon ends by itself: its stop string is in the answer."""
    fields: dict[str, Any] = {"sampling": Sampling(temperature=0), "max_output_tokens": 50, **changes}
    whole = text(await run(served, request(**{**fields, "max_output_tokens": 12, "caching": Caching(no_store=True)})))
    return request(**{"stop": (whole[2:4],), **fields})


async def code_of(served: Served, asked: TurnRequest) -> str:
    with pytest.raises(ApiError) as caught:
        await run(served, asked)
    return caught.value.code
