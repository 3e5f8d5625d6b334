"""`roundhouse chat` and a connection that does not hold."""

from __future__ import annotations

import asyncio

import pytest

from gateway.cli import chat
from gateway.cli.chat import Chat, ChatError
from tests.gateway.conftest import KEY, Serve, Served

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back at once."""
    monkeypatch.setattr(chat, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(chat, "LONGEST_PAUSE", 0.01)


def conversation(served: Served) -> Chat:
    return Chat(f"ws://127.0.0.1:{served.port}/v1/responses", KEY, "small")


def cut(served: Served) -> None:
    """Break all connections without a word."""
    for protocol in list(served.server.server_state.connections):
        protocol.transport.abort()


async def test_an_answer_goes_on_after_its_connection_was_cut(serve: Serve) -> None:
    """However often; it is the stored one, and the next question continues it."""
    async with serve(turns={"default_max_output_tokens": 200}) as served:
        talk = conversation(served)
        written: list[str] = []

        def write(text: str) -> None:
            written.append(text)
            cut(served)

        await talk.ask("hello", write)
        assert len(written) > 1  # on a busy machine most of the answer may come in one piece
        assert talk._previous is not None
        stored = await served.client.responses.retrieve(talk._previous)
        assert "".join(written) == stored.output_text
        first = talk._previous
        cut(served)
        await talk.ask("again", lambda text: None)
        assert talk._previous is not None
        assert (await served.client.responses.retrieve(talk._previous)).previous_response_id == first
        await talk.close()
        await served.settle()


async def test_a_question_whose_answer_was_cut_before_it_began_is_asked_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again under its key."""
    async with serve() as served:
        talk = conversation(served)
        await talk.open()
        started = served.gateway.turns.start
        starts = 0

        async def start(*args: object, **options: object) -> object:
            nonlocal starts
            starts += 1
            if starts == 1:
                asyncio.get_running_loop().call_soon(cut, served)
                await started(*args, **options)  # type: ignore[arg-type]
                await asyncio.sleep(60)
            return await started(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(served.gateway.turns, "start", start)
        await talk.ask("hello", lambda text: None)
        assert starts == 2
        assert served.gateway.turns.retained == 1
        await talk.close()


async def test_a_server_that_stays_away_is_an_error(serve: Serve) -> None:
    """After a number of attempts."""
    async with serve() as served:
        talk = conversation(served)
        await talk.open()
    with pytest.raises(ChatError, match="does not come back"):
        await talk.ask("hello", lambda text: None)
