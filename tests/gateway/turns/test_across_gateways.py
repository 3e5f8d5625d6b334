"""One turn, several gateways: real gateways on real sockets, one Redis, one engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from openai.types.responses import Response

from gateway.config.settings import ApiKeySettings, TenantSettings
from gateway.storage.presence import GATEWAYS_KEY, Presence
from gateway.turns.mailbox import Mailbox
from gateway.turns.messages import FollowTurn, GatewayMessage, TurnFrame
from gateway.turns.records import StoredTurn, TurnRecords
from tests.clocks import LoopClock
from tests.gateway.conftest import KEY, Serve, Served, eventually, receive, send, text_of, until_end
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.sockets import ask, assert_error, create

pytestmark = pytest.mark.anyio

LONG: dict[str, Any] = {"max_output_tokens": 400, "temperature": 1, "seed": 3, "ignore_eos": True}


@contextlib.asynccontextmanager
async def two(serve: Serve, **changes: Any) -> AsyncIterator[tuple[Served, Served]]:
    """Two gateways that know of each other."""
    async with serve(**changes) as one, serve(**changes) as other:
        for served, its_peer in ((one, other), (other, one)):
            await eventually(lambda s=served, p=its_peer: p.gateway.presence.id in s.gateway.presence.others)
        yield one, other


@pytest.fixture
async def frames() -> AsyncIterator[FrameEngine]:
    """An engine that answers when its gate is opened."""
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # socket paths are short
        async with FrameEngine(Path(folder) / "e.sock", {None: 70}).serving() as engine:
            yield engine


async def resume(served: Served, id: str, after: int = -1) -> list[dict[str, Any]]:
    async with served.connect() as socket:
        await send(socket, type="response.resume", response_id=id, starting_after=after)
        return await until_end(lambda: receive(socket))


async def follow(served: Served, id: str, frames: FrameEngine) -> list[dict[str, Any]]:
    """Follow a turn that is answered once its follower has seen that it runs."""
    async with served.connect() as socket:
        await send(socket, type="response.resume", response_id=id, starting_after=-1)
        begun = await receive(socket)
        frames.gate.set()
        return [begun, *await until_end(lambda: receive(socket))]


def lose_first(kind: type[GatewayMessage], monkeypatch: pytest.MonkeyPatch) -> list[GatewayMessage]:
    """Lose the first message of a kind that any gateway sends; the list holds it then."""
    lost: list[GatewayMessage] = []
    sends = Mailbox.send

    async def send_later(self: Mailbox, gateway: str, message: GatewayMessage) -> None:
        if isinstance(message, kind) and not lost:
            lost.append(message)
        else:
            await sends(self, gateway, message)

    monkeypatch.setattr(Mailbox, "send", send_later)
    return lost


async def _no_beat(self: Presence) -> None:
    """In place of `Presence.beat`, for gateways that are to stay where they are."""


async def started(socket: Any, **fields: Any) -> str:
    """Begin a turn; its id."""
    await create(socket, **fields)
    return str((await receive(socket))["response"]["id"])


class TestRunning:
    """A turn that another gateway runs."""

    async def test_is_followed_to_its_end_without_loss_or_doubling(self, serve: Serve) -> None:
        """Two viewers there share one mirror; all three see the same events."""
        async with two(serve) as (one, other):
            async with one.connect() as socket:
                id = await started(socket, **LONG)
                first = asyncio.create_task(resume(other, id))
                second = asyncio.create_task(resume(other, id, after=8))
                own = await until_end(lambda: receive(socket))
            followed, later = await first, await second
            assert text_of(followed) == text_of(own)
            assert followed[-1] == own[-1]
            assert all(event["sequence_number"] > 8 for event in later)
            assert text_of(followed).endswith(text_of(later))
            await one.settle()
            await other.settle()

    async def test_is_streamed_over_http_from_any_number_on(self, serve: Serve) -> None:
        """The client's `retrieve(..., stream=True, starting_after=N)`."""
        async with two(serve) as (one, other), one.connect() as socket:
            id = await started(socket, **LONG)
            asked = {"x-roundhouse-events": "true"}  # as the socket does, which numbers are to be compared with
            stream = await other.client.responses.retrieve(id, stream=True, starting_after=4, extra_headers=asked)
            followed = [event async for event in stream]
            own = await until_end(lambda: receive(socket))
            numbers = [event.sequence_number for event in followed]
            assert numbers == sorted(set(numbers)) and min(numbers) > 4
            assert followed[-1].sequence_number == own[-1]["sequence_number"]
            text = "".join(event.delta for event in followed if event.type == "response.output_text.delta")
            assert own[-1]["response"]["output"][0]["content"][0]["text"].endswith(text)

    @pytest.mark.parametrize("kind", [FollowTurn, TurnFrame])
    async def test_is_followed_though_a_message_is_lost(
        self, serve: Serve, frames: FrameEngine, monkeypatch: pytest.MonkeyPatch, kind: type[GatewayMessage]
    ) -> None:
        """The first that asks for the turn, or the first that shows it: long before whoever waits is told so."""
        lost = lose_first(kind, monkeypatch)
        frames.gate.clear()
        async with two(serve, engines={"small": [frames.address]}) as (one, other), one.connect() as socket:
            id = await started(socket, max_output_tokens=8)
            followed = await follow(other, id, frames)
            own = await until_end(lambda: receive(socket))
            assert lost and followed[-1] == own[-1]
            assert text_of(followed) == text_of(own)

    async def test_is_followed_by_a_gateway_that_has_just_begun(
        self, serve: Serve, frames: FrameEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before its first heartbeat has ended it knows of no other; the first that it asks is lost."""
        lost = lose_first(FollowTurn, monkeypatch)
        frames.gate.clear()
        engines = {"small": [frames.address]}
        async with serve(engines=engines) as one, one.connect() as socket:
            id = await started(socket, max_output_tokens=8)
            monkeypatch.setattr(Presence, "beat", _no_beat)
            async with serve(engines=engines) as other:
                followed = await follow(other, id, frames)
                own = await until_end(lambda: receive(socket))
            assert lost and followed[-1] == own[-1]

    async def test_can_be_cancelled_from_anywhere(self, serve: Serve, frames: FrameEngine) -> None:
        """By a socket, and by HTTP, which waits for the end."""
        frames.gate.clear()
        async with two(serve, engines={"small": [frames.address]}) as (one, other), one.connect() as socket:
            id = await started(socket)
            async with other.connect() as elsewhere:
                await send(elsewhere, type="response.cancel", response_id=id)
                ended = await until_end(lambda: receive(socket))
            assert ended[-1]["response"]["status"] == "cancelled"
            id = await started(socket)
            response = await other.client.responses.cancel(id)
            assert response.status == "cancelled"
            await until_end(lambda: receive(socket))

    async def test_viewers_elsewhere_keep_it_from_being_orphaned(
        self, serve: Serve, frames: FrameEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And when the last one there has left, its timer runs."""
        frames.gate.clear()
        settings = {"engines": {"small": [frames.address]}, "turns": {"orphan_timeout": 2.0}}
        clock = LoopClock()
        monkeypatch.setattr("gateway.turns.following.LINGER", 1.0)
        async with two(serve, **settings) as (one, other):
            async with other.connect() as elsewhere:
                async with one.connect() as socket:
                    id = await started(socket)
                    await send(elsewhere, type="response.resume", response_id=id)
                    await receive(elsewhere)
                turn = one.gateway.turns.get(id)
                assert turn is not None
                await eventually(lambda: turn.viewers == 1)
                await clock.advance(2.5)  # longer than an orphan lives
                assert not turn.cancelled
            await eventually(lambda: turn.viewers == 0)
            await clock.advance(2.5)
            await eventually(lambda: turn.finished)
            assert turn.cancelled
            await one.settle()
            await other.settle()

    async def test_is_not_stored_but_followed_if_the_client_wants_it_so(self, serve: Serve, redis_url: str) -> None:
        """`store: false`: other gateways show it while its own has it; Redis keeps nothing."""
        async with two(serve) as (one, other):
            async with one.connect() as socket:
                id = await started(socket, store=False, **LONG)
                followed, own = await asyncio.gather(resume(other, id), until_end(lambda: receive(socket)))
            assert text_of(followed) == text_of(own)
            await one.settle()
            with redis.Redis.from_url(redis_url) as client:
                assert not [key for key in client.scan_iter() if key.startswith(b"rh1:turn")]

    async def test_cannot_be_continued_or_deleted_yet(self, serve: Serve, frames: FrameEngine) -> None:
        """409 from every gateway."""
        frames.gate.clear()
        async with two(serve, engines={"small": [frames.address]}) as (one, other), one.connect() as socket:
            id = await started(socket)
            for served in (one, other):
                with pytest.raises(openai.ConflictError):
                    await served.client.responses.create(model="auto", input="on", previous_response_id=id)
                with pytest.raises(openai.ConflictError):
                    await served.client.responses.delete(id)


class TestStored:
    """A turn that has ended."""

    async def test_is_read_resumed_and_continued_from_anywhere(self, serve: Serve) -> None:
        """The same object, the same events; several turns may continue it."""
        async with two(serve) as (one, other):
            async with one.connect() as socket:
                events = await ask(socket, "hello", max_output_tokens=6, metadata={"k": "v"}, instructions="be brief")
            id = events[-1]["response"]["id"]
            read = await other.client.responses.with_raw_response.retrieve(id)
            Response.model_validate_json(read.http_response.content, strict=True)
            assert json.loads(read.http_response.content) == events[-1]["response"]
            assert (await resume(other, id))[-1] == events[-1]
            assert text_of(await resume(other, id)) == text_of(events)
            branches = [
                await served.client.responses.create(
                    model="auto", input=f"branch {index}", previous_response_id=id, max_output_tokens=2
                )
                for index, served in enumerate((one, other, other))
            ]
            assert len({branch.usage.input_tokens for branch in branches if branch.usage}) == 1
            assert {branch.previous_response_id for branch in branches} == {id}

    async def test_survives_a_restart(self, serve: Serve) -> None:
        """Of all gateways."""
        async with serve() as one:
            response = await one.client.responses.create(model="auto", input="hello", max_output_tokens=4)
        async with serve() as other:
            again = await other.client.responses.retrieve(response.id)
            assert again.output_text == response.output_text
            await other.client.responses.create(
                model="auto", input="on", previous_response_id=response.id, max_output_tokens=1
            )

    async def test_is_found_though_its_gateway_ends_meanwhile(
        self, serve: Serve, frames: FrameEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It stores the turn and withdraws just after somebody has looked, and found nothing yet."""
        reads, stack = TurnRecords.read, contextlib.AsyncExitStack()
        frames.gate.clear()
        engines = {"small": [frames.address]}
        async with serve(engines=engines) as other:
            one = await stack.enter_async_context(serve(engines=engines))
            async with one.connect() as socket:
                id = await started(socket, max_output_tokens=4)

                async def read(self: TurnRecords, tenant: str, id: str) -> StoredTurn:
                    found = await reads(self, tenant, id)
                    if not frames.gate.is_set():
                        frames.gate.set()
                        await until_end(lambda: receive(socket))
                        await stack.aclose()
                    return found

                monkeypatch.setattr(TurnRecords, "read", read)
                assert (await resume(other, id))[-1]["type"] == "response.incomplete"

    async def test_is_sealed_in_redis(self, serve: Serve, redis_url: str) -> None:
        """Neither question nor answer can be read there, while it runs or afterwards; every key ends by itself, but
        the list of gateways, which a full Redis must not forget."""
        secret = "the quick brown canary"
        async with two(serve, turns={"checkpoint_interval": 0.01}) as (one, other):
            async with one.connect() as socket:
                id = await started(socket, text=secret, **LONG)
                await asyncio.gather(resume(other, id), until_end(lambda: receive(socket)))
            await one.settle()
            with redis.Redis.from_url(redis_url) as client:
                kept = [key for key in client.scan_iter() if key.startswith((b"rh1:turn", b"rh1:gateway"))]
                assert any(key.startswith(b"rh1:turn:{demo}:" + id.encode()) for key in kept)
                for key in kept:
                    assert client.ttl(key) > 0 or key == GATEWAYS_KEY.encode()
                    assert secret.encode() not in (client.dump(key) or b"")

    async def test_is_deleted_everywhere(self, serve: Serve) -> None:
        """By whichever gateway; then nobody knows it, and deleting it again is a 404."""
        async with two(serve) as (one, other):
            response = await one.client.responses.create(model="auto", input="hello", max_output_tokens=2)
            await other.client.responses.delete(response.id)
            await eventually(lambda: one.gateway.turns.get(response.id) is None)
            for served in (one, other):
                with pytest.raises(openai.NotFoundError):
                    await served.client.responses.retrieve(response.id)
                with pytest.raises(openai.NotFoundError):
                    await served.client.responses.delete(response.id)
                with pytest.raises(openai.BadRequestError, match="not found"):
                    await served.client.responses.create(model="auto", input="x", previous_response_id=response.id)

    async def test_is_its_tenants_alone(self, serve: Serve, frames: FrameEngine) -> None:
        """For another tenant it does not exist, here or there, running or ended."""
        tenants = [
            TenantSettings(name=name, keys=[ApiKeySettings(id=name, sha256=hashlib.sha256(key.encode()).hexdigest())])
            for name, key in (("demo", KEY), ("other", "key-other"))
        ]
        async with two(serve, tenants=tenants, engines={"small": [frames.address]}) as (one, other):
            response = await one.client.responses.create(model="auto", input="hello", max_output_tokens=2)
            frames.gate.clear()
            async with one.connect() as socket:
                running = await started(socket, max_output_tokens=9)
                followed = asyncio.create_task(resume(other, running))
                await eventually(lambda: other.gateway.turns.shared["followed"] == 1)
                for served in (one, other):
                    async with served.client.with_options(api_key="key-other") as stranger:
                        for id in (response.id, running):
                            for call in (
                                stranger.responses.retrieve,
                                stranger.responses.delete,
                                stranger.responses.cancel,
                                stranger.responses.input_items.list,
                            ):
                                with pytest.raises(openai.NotFoundError):
                                    await call(id)
                    async with served.connect("key-other") as foreign:
                        await send(foreign, type="response.resume", response_id=running)
                        assert_error(await receive(foreign), 404, "response_not_found", "response_id")
                frames.gate.set()
                own = await until_end(lambda: receive(socket))
                assert text_of(await followed) == text_of(own) != ""

    async def test_oldest_go_first(self, serve: Serve) -> None:
        """A tenant has so many at most."""
        async with two(serve, turns={"max_stored_per_tenant": 2}) as (one, other):
            responses = []
            for index in range(3):
                responses.append(
                    await one.client.responses.create(model="auto", input=f"hello {index}", max_output_tokens=1)
                )
                await one.settle()
                one.gateway.turns.forget(responses[-1].id)
            with pytest.raises(openai.NotFoundError):
                await other.client.responses.retrieve(responses[0].id)
            assert await other.client.responses.retrieve(responses[2].id)
