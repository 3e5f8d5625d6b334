"""The life of a turn, on a pipeline that does what each test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.access.identity import Principal
from gateway.config.settings import TurnSettings
from gateway.errors import ApiError, Conflict, NotFound, PreviousResponseNotFound, Unavailable
from gateway.protocol.requests import Message, TurnRequest
from gateway.protocol.stream import Finished, Routed, TextDelta, TokenUsage
from gateway.turns import Turn, Turns, TurnState, Viewer
from gateway.turns import turns as turns_module
from tests.clocks import LoopClock
from tests.gateway.conftest import eventually
from tests.gateway.turns.contexts import context

pytestmark = pytest.mark.anyio

ALICE, BOB = Principal("alice", "key"), Principal("bob", "key")
ROUTED = Routed(tier="small", model="m", replica="small-0", reason="requested", complexity=None)

Run = Callable[[Turn], Awaitable[None]]


class Script:
    """A pipeline made of a test's own function."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def run(self, turn: Turn) -> None:
        await self._run(turn)


def request(text: str = "hello", **fields: Any) -> TurnRequest:
    return TurnRequest(model="auto", messages=(Message("user", text),), **fields)


def turns(run: Run, **settings: Any) -> Turns:
    return Turns(Script(run), TurnSettings(**settings), context())


async def answer(turn: Turn) -> None:
    """A short answer."""
    for event in (ROUTED, TextDelta("hello "), TextDelta("world"), Finished("stop", TokenUsage(1, 0, 2))):
        turn.append(event)
        await asyncio.sleep(0)


async def until_cancelled(turn: Turn) -> None:
    """An answer that goes on until somebody cancels it."""
    stopped = asyncio.Event()
    turn.append(ROUTED)
    turn.append(TextDelta("begun"))
    turn.on_cancel(stopped.set)
    await stopped.wait()
    turn.append(Finished("cancelled", TokenUsage(1, 0, 1)))


async def text(viewer: Viewer) -> str:
    with viewer:
        return "".join([e.event.text async for e in viewer.entries() if isinstance(e.event, TextDelta)])


class TestStart:
    """From request to the first entry."""

    async def test_a_started_turn_is_watched_from_its_first_entry(self) -> None:
        """There is no moment in which it has no viewer."""
        served = turns(answer)
        viewer = await served.start(request(), ALICE)
        assert viewer.turn.viewers == 1
        assert await text(viewer) == "hello world"
        await eventually(lambda: served.running == 0)
        assert (served.viewers, served.retained) == (0, 1)
        await served.aclose()

    async def test_a_refused_turn_raises_and_leaves_nothing(self) -> None:
        """The pipeline raised before it routed."""

        async def refuse(turn: Turn) -> None:
            raise Unavailable("no engine")

        served = turns(refuse)
        with pytest.raises(Unavailable, match="no engine"):
            await served.start(request(), ALICE)
        await eventually(lambda: served.running == 0)
        assert (served.viewers, served.retained) == (0, 0)

    @pytest.mark.parametrize("routed", [False, True])
    async def test_a_fault_of_ours_ends_the_turn_and_not_the_process(
        self, routed: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged, and the client is told without details."""

        async def fail(turn: Turn) -> None:
            if routed:
                turn.append(ROUTED)
            raise ZeroDivisionError("secret detail")

        served = turns(fail)
        if routed:
            viewer = await served.start(request(), ALICE)
            assert await text(viewer) == ""
            error = viewer.turn.log.finished.error
        else:
            with pytest.raises(ApiError) as caught:
                await served.start(request(), ALICE)
            error = caught.value
        assert error is not None and error.code == "internal_error" and "secret" not in error.message
        assert "secret detail" in caplog.text
        await served.aclose()

    async def test_a_caller_that_gives_up_while_it_is_admitted_leaves_an_orphan(self) -> None:
        """Which is cancelled as any other."""
        gate = asyncio.Event()

        async def slow(turn: Turn) -> None:
            await gate.wait()
            await until_cancelled(turn)

        served = turns(slow, orphan_timeout=0.01)
        start = asyncio.create_task(served.start(request(), ALICE))
        await eventually(lambda: served.running == 1)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        gate.set()
        await eventually(lambda: served.running == 0)
        assert served.viewers == 0
        await served.aclose()


class TestCancel:
    """Ending early."""

    async def test_cancel_reaches_the_pipeline(self) -> None:
        """The turn keeps its text."""
        served = turns(until_cancelled)
        viewer = await served.start(request(), ALICE)
        viewer.turn.cancel()
        viewer.turn.cancel()
        assert await text(viewer) == "begun"
        assert viewer.turn.log.finished == Finished("cancelled", TokenUsage(1, 0, 1))
        viewer.turn.cancel()
        await served.aclose()

    async def test_cancelling_before_the_pipeline_listens_is_not_forgotten(self) -> None:
        """It stops at its first opportunity."""
        gate = asyncio.Event()

        async def late(turn: Turn) -> None:
            turn.append(ROUTED)
            await gate.wait()
            await until_cancelled_from_here(turn)

        async def until_cancelled_from_here(turn: Turn) -> None:
            stopped = asyncio.Event()
            turn.on_cancel(stopped.set)
            await stopped.wait()
            turn.append(Finished("cancelled", TokenUsage()))

        served = turns(late)
        viewer = await served.start(request(), ALICE)
        viewer.turn.cancel()
        gate.set()
        assert await text(viewer) == ""
        await served.aclose()

    async def test_an_orphan_is_cancelled_and_a_new_viewer_saves_it(self) -> None:
        """The timer runs only while nobody watches."""
        clock = LoopClock()
        served = turns(until_cancelled, orphan_timeout=100)
        viewer = await served.start(request(), ALICE)
        turn = viewer.turn
        viewer.close()
        await clock.advance(99)
        viewer = turn.watch()
        await clock.advance(1000)
        assert not turn.cancelled
        viewer.close()
        await clock.advance(99)
        assert not turn.cancelled
        await clock.advance(1)
        assert turn.cancelled
        await eventually(lambda: turn.finished)
        await served.aclose()

    async def test_some_turns_end_with_their_viewer(self) -> None:
        """`orphan_timeout=0`, for protocols that cannot resume."""
        served = turns(until_cancelled, orphan_timeout=1000)
        viewer = await served.start(request(), ALICE, orphan_timeout=0)
        viewer.close()
        await eventually(lambda: viewer.turn.finished)
        await served.aclose()


class TestRetention:
    """What is kept of finished turns, and for whom."""

    async def test_a_turn_is_its_tenants_only(self) -> None:
        """Others do not learn that it exists."""
        served = turns(answer)
        viewer = await served.start(request(), ALICE)
        await text(viewer)
        assert await served.find(viewer.turn.id, ALICE) is viewer.turn
        with pytest.raises(NotFound):
            await served.find(viewer.turn.id, BOB)
        await served.aclose()

    async def test_time_ends_it(self) -> None:
        """Unstored ones sooner: kept just long enough for a cut connection."""
        served = turns(answer, retention=1000, orphan_timeout=0.01)
        stored = await served.start(request(), ALICE)
        unstored = await served.start(request(store=False), ALICE)
        await text(stored), await text(unstored)
        await eventually(lambda: served.retained == 1)
        assert await served.find(stored.turn.id, ALICE)
        await served.aclose()
        assert served.retained == 0

    async def test_count_ends_it(self) -> None:
        """The oldest go first."""
        served = turns(answer, max_retained=2)
        viewers = [await served.start(request(), ALICE) for _ in range(3)]
        for viewer in viewers:
            await text(viewer)
        await eventually(lambda: served.running == 0)
        assert served.retained == 2
        with pytest.raises(NotFound):
            await served.find(viewers[0].turn.id, ALICE)
        await served.aclose()

    async def test_size_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Many long conversations do not fill the memory."""
        monkeypatch.setattr(turns_module, "MAX_RETAINED_CHARACTERS", 2500)
        served = turns(answer)
        for _ in range(3):
            await text(await served.start(request("x" * 1000), ALICE))
        await eventually(lambda: served.running == 0)
        assert served.retained == 2
        await served.aclose()


class TestHistory:
    """`previous_response_id`."""

    async def test_a_turn_continues_the_whole_conversation(self) -> None:
        """Instructions are not inherited."""
        served = turns(answer)
        first = await served.start(request("one", instructions="be brief"), ALICE)
        await text(first)
        second = await served.start(request("two", previous_response_id=first.turn.id), ALICE)
        await text(second)
        third = await served.start(request("three", previous_response_id=second.turn.id), ALICE)
        assert [(message.role, message.content) for message in third.turn.conversation] == [
            ("user", "one"),
            ("assistant", "hello world"),
            ("user", "two"),
            ("assistant", "hello world"),
            ("user", "three"),
        ]
        await text(third)
        await served.aclose()

    async def test_what_cannot_be_continued_says_why(self) -> None:
        """Unknown, another tenant's, running, failed."""

        async def fail(turn: Turn) -> None:
            turn.append(ROUTED)
            turn.append(Finished("error", TokenUsage(), Unavailable("no")))

        for run, principal, expected in (
            (answer, BOB, PreviousResponseNotFound),
            (until_cancelled, ALICE, Conflict),
            (fail, ALICE, PreviousResponseNotFound),
        ):
            served = turns(run)
            viewer = await served.start(request(), ALICE)
            await eventually(lambda v=viewer, r=run: v.turn.finished or r is until_cancelled)  # type: ignore[misc]
            with pytest.raises(expected) as caught:
                await served.start(request(previous_response_id=viewer.turn.id), principal)
            assert caught.value.param == "previous_response_id"
            with pytest.raises(PreviousResponseNotFound):
                await served.start(request(previous_response_id="resp_unknown"), ALICE)
            viewer.close()
            await served.aclose()

    async def test_a_connection_may_continue_its_own_forgotten_turns(self) -> None:
        """It hands them over with the request."""
        served = turns(answer, orphan_timeout=0.001)
        first = await served.start(request(store=False), ALICE)
        await text(first)
        await eventually(lambda: served.running == served.retained == 0)
        more = request("more", previous_response_id=first.turn.id)
        with pytest.raises(PreviousResponseNotFound):
            await served.start(more, ALICE)
        second = await served.start(more, ALICE, own={first.turn.id: first.turn})
        assert len(second.turn.conversation) == 3
        await text(second)
        await served.aclose()


class TestDrain:
    """Shutting down."""

    async def test_running_turns_may_end_and_new_ones_are_refused(self) -> None:
        """With an error that tells the client to connect anew."""
        gate = asyncio.Event()

        async def slow(turn: Turn) -> None:
            turn.append(ROUTED)
            await gate.wait()
            turn.append(Finished("stop", TokenUsage()))

        served = turns(slow)
        viewer = await served.start(request(), ALICE)
        draining = asyncio.create_task(served.drain(grace=10))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as caught:
            await served.start(request(), ALICE)
        assert caught.value.code == "draining"
        gate.set()
        await draining
        assert viewer.turn.log.finished == Finished("stop", TokenUsage())
        viewer.close()
        await served.aclose()

    async def test_turns_that_take_too_long_are_cancelled(self) -> None:
        """They keep their text."""
        served = turns(until_cancelled)
        viewer = await served.start(request(), ALICE)
        await served.drain(grace=0.01)
        await eventually(lambda: viewer.turn.finished)
        viewer.close()
        await served.aclose()

    async def test_closing_ends_even_a_pipeline_that_does_not_listen(self) -> None:
        """Its turn fails."""

        async def deaf(turn: Turn) -> None:
            turn.append(ROUTED)
            await asyncio.Event().wait()

        served = turns(deaf)
        viewer = await served.start(request(), ALICE)
        await served.aclose()
        assert viewer.turn.log.finished is not None
        assert viewer.turn.log.finished.reason == "error"
        assert served.running == 0


async def test_a_viewer_that_is_behind_gets_one_delta_per_window() -> None:
    """While it keeps up, every delta comes alone."""
    served = turns(until_cancelled)
    viewer = await served.start(request(), ALICE)
    turn = viewer.turn
    got: list[str] = []

    async def read() -> None:
        async for batch in viewer.batches(coalesce=0.02):
            got.extend(entry.event.text for entry in batch if isinstance(entry.event, TextDelta))

    reading = asyncio.create_task(read())
    await eventually(lambda: got == ["begun"])
    for letter in "ab":
        turn.append(TextDelta(letter))
        await eventually(lambda letter=letter: got[-1] == letter)
    for letter in "cdef":
        turn.append(TextDelta(letter))
    await eventually(lambda: got[-1] == "cdef")
    turn.cancel()
    await reading
    viewer.close()
    await served.aclose()


def test_illegal_transitions_raise() -> None:
    """A turn that was not routed has no text, one that has ended does not end again."""

    async def check() -> None:
        turn = Turn("resp_1", ALICE, request(), (), 1.0)
        with pytest.raises(RuntimeError, match="before it was routed"):
            turn.append(TextDelta("x"))
        turn.append(ROUTED)
        with pytest.raises(RuntimeError, match="illegal transition"):
            turn.refuse(Unavailable("late"))
        turn.append(Finished("stop", TokenUsage()))
        assert turn.state is TurnState.FINISHED
        with pytest.raises(RuntimeError, match="illegal transition"):
            turn.append(Finished("stop", TokenUsage()))

    asyncio.run(check())
