"""Random bytes on the real socket: nothing crashes, nothing is left behind, and the next client is served.

Unlike `tests/fuzz`, which feeds the decoders, this speaks to a listening gateway with a real engine behind it: openings
cut or bent, frames of every kind, whole, in fragments and malformed, between messages that work, in both codecs.

    FUZZ_SEED=7 FUZZ_EXAMPLES=5000 pytest -s tests/gateway/ws/test_socket_fuzz.py
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from uvicorn.protocols.utils import ClientDisconnected
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from tests.gateway.conftest import KEY, EngineThread, Serve, Served, eventually, text_of
from tests.gateway.sockets import ask
from tests.gateway.ws.test_clients import raw_connection

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("FUZZ_SEED", "0"))
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "200"))
MAX_MESSAGE = 4096
ENDED = b"response.incomplete"
Codec = Literal["roundhouse.json", "roundhouse.msgpack"]


Leave = Literal["abort", "close", "half-close", "answered"]
"""The last one asks for a turn at the end, and waits until one has ended or the server has closed."""


class Talk(NamedTuple):
    """What one client sends, and how it leaves."""

    opening: bytes
    patient: bool
    """Whether it waits for an answer to its opening before it goes on."""
    frames: list[bytes]
    piece: int
    """Bytes in one write."""
    leave: Leave


def opening(codec: Codec | None, more: str = "") -> bytes:
    offer = f"Sec-WebSocket-Protocol: {codec}\r\n" if codec else ""
    return (
        "GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{offer}{more}"
        f"Authorization: Bearer {KEY}\r\n\r\n"
    ).encode()


def frame(opcode: int, payload: bytes, *, fin: bool = True, bits: int = 0, masked: bool = True) -> bytes:
    """Whatever it says, allowed or not."""
    size = len(payload)
    mask = 0x80 if masked else 0
    if size < 126:
        head = struct.pack("!BB", fin << 7 | bits << 4 | opcode, mask | size)
    else:
        head = struct.pack("!BBH", fin << 7 | bits << 4 | opcode, mask | 126, size)
    return head + (bytes(4) if masked else b"") + payload  # a mask of zeros


def encoded(event: Any, codec: Codec | None) -> tuple[Opcode, bytes]:
    if codec == "roundhouse.msgpack":
        return Opcode.BINARY, msgspec.msgpack.encode(event)
    return Opcode.TEXT, json.dumps(event).encode()


ids = st.sampled_from(["resp_unknown", "resp_" + 48 * "0", "", "x" * 200])
lanes = st.sampled_from([{}, {}, {"stream_id": "a"}, {"stream_id": "b"}, {"stream_id": ""}, {"stream_id": 1}])
creations = st.builds(
    lambda text, more, lane: {"type": "response.create", "input": text, "max_output_tokens": 2, **more, **lane},
    st.text(max_size=20),
    st.sampled_from([{}, {}, {"store": False}, {"generate": False}, {"temperature": "hot"}, {"idempotency_key": "k"}]),
    lanes,
)
cancels = st.builds(lambda id, lane: {"type": "response.cancel", "response_id": id, **lane}, ids, lanes)
resumes = st.builds(
    lambda id, after: {"type": "response.resume", "response_id": id, "starting_after": after},
    ids,
    st.sampled_from([-1, 0, 2**63 - 1, -5]),
)
anything = st.recursive(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5), st.lists, max_leaves=5)
events = st.one_of(creations, creations, creations, cancels, resumes, anything)
controls = st.builds(
    frame,
    st.sampled_from([Opcode.PING, Opcode.PONG]),
    st.binary(max_size=125),
)


@st.composite
def messages(draw: st.DrawFn, codec: Codec | None) -> bytes:
    """An event, as it is, bent, or garbage; in fragments with control frames between them."""
    event = draw(events)
    opcode, payload = encoded(event, codec)
    match draw(st.integers(0, 9)):
        case 0:
            at = draw(st.integers(0, len(payload)))
            payload = payload[:at] + draw(st.binary(max_size=8)) + payload[at + draw(st.integers(0, 8)) :]
        case 1:
            payload = draw(st.binary(max_size=60))
        case 2:
            opcode = Opcode.TEXT if opcode is Opcode.BINARY else Opcode.BINARY
    cuts = sorted(draw(st.lists(st.integers(0, len(payload)), max_size=4)))
    parts = [payload[start:end] for start, end in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
    sent = b""
    for number, part in enumerate(parts):
        sent += frame(Opcode.CONT if number else opcode, part, fin=number == len(parts) - 1)
        if number < len(parts) - 1:
            sent += draw(st.just(b"") | controls)
    return sent


wild = st.one_of(
    controls,
    st.binary(max_size=40),
    st.builds(
        frame,
        st.integers(0, 15),
        st.binary(max_size=200),
        fin=st.booleans(),
        bits=st.integers(0, 7),
        masked=st.booleans(),
    ),
    st.builds(frame, st.just(Opcode.CLOSE), st.binary(max_size=125)),
    st.just(frame(Opcode.TEXT, b'{"type": "' + b"x" * MAX_MESSAGE)),
    st.builds(lambda size: b"\x82" + struct.pack("!BQ", 0xFF, size), st.integers(0, 2**64 - 1)),
    st.just(frame(Opcode.TEXT, b"", fin=False) + 500 * frame(Opcode.CONT, b"", fin=False)),
)


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    codec: Codec | None = draw(st.sampled_from(["roundhouse.json", "roundhouse.msgpack", None]))
    head, patient = opening(codec), True
    match draw(st.integers(0, 9)):
        case 0:
            head, patient = head[: draw(st.integers(0, len(head)))], False
        case 1:
            at = draw(st.integers(0, len(head)))
            head = head[:at] + draw(st.binary(max_size=8)) + head[at + draw(st.integers(0, 8)) :]
            patient = False
        case 2:
            head, patient = draw(st.binary(max_size=100)), False
        case 3:
            patient = False
        case 4:
            head = opening(codec, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=99\r\n")
    # A wild frame mostly ends the connection: what comes before it decides how far a client gets.
    sent = draw(st.lists(messages(codec), min_size=1, max_size=6))
    tame = patient and draw(st.booleans())
    if not tame:
        sent += [*draw(st.lists(wild, min_size=1, max_size=2)), *draw(st.lists(messages(codec), max_size=2))]
    leave: Leave = "answered" if tame else draw(st.sampled_from(["abort", "close", "half-close"]))
    if leave == "answered":
        sent.append(frame(*encoded({"type": "response.create", "input": "hello", "max_output_tokens": 2}, codec)))
    return Talk(head, patient, sent, draw(st.sampled_from([1 << 20, 100, 7])), leave)


async def test_whatever_comes_over_the_socket_the_next_client_is_served(
    serve: Serve, engine: EngineThread, caplog: pytest.LogCaptureFixture
) -> None:
    """After every client, no connection, turn, task, reservation or block of KV is held for it."""
    print(f"FUZZ_SEED={SEED}")
    loop = asyncio.get_running_loop()
    turns = {"orphan_timeout": 0.05, "default_max_output_tokens": 4}
    async with serve(server={"max_message_bytes": MAX_MESSAGE}, turns=turns) as served:
        async with served.connect() as client:
            answer = text_of(await ask(client, temperature=0, max_output_tokens=2, roundhouse={"cache": "no-store"}))
        await nothing_left(served)
        tasks = len(asyncio.all_tasks())

        async def afterwards() -> None:
            await nothing_left(served)
            # This one is a task too.
            await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 1, lambda: list(asyncio.all_tasks()))

        @seed(SEED)
        @settings(max_examples=EXAMPLES, database=None, derandomize=False, suppress_health_check=list(HealthCheck))
        @given(talks())
        def run(talk: Talk) -> None:
            heard = converse(served.port, talk)
            reached.update(check(heard, packed=b"roundhouse.msgpack" in talk.opening))
            asyncio.run_coroutine_threadsafe(afterwards(), loop).result(60)

        reached: Counter[str] = Counter()
        await asyncio.to_thread(run)
        print(dict(reached))
        for codec in ("json", "msgpack"):
            assert reached[f"{codec} response.incomplete"] > 0, reached  # it gets past the door
        assert sum(reached[f"{codec} response.incomplete"] for codec in ("json", "msgpack")) >= EXAMPLES // 50, reached
        async with served.connect() as client:
            again = text_of(await ask(client, temperature=0, max_output_tokens=2, roundhouse={"cache": "no-store"}))
        await nothing_left(served)
    assert again == answer
    await eventually(lambda: engine.core.idle)
    engine.core.check_integrity()
    load = engine.core.load()
    assert load.free_blocks + load.cached_blocks == load.total_blocks
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_text_that_is_not_utf_8_before_a_frame_that_closes_is_the_clients_fault(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """All in one read: the connection is closing when the text is looked at."""
    async with serve() as served:
        for text in (frame(Opcode.TEXT, b"\xff"), frame(Opcode.TEXT, b"", fin=False) + frame(Opcode.CONT, b"\xff")):
            for more in (b"", text, frame(Opcode.CLOSE, b""), frame(Opcode.CONT, b"")):
                reader, writer = await raw_connection(served)
                writer.write(text + more)
                async with asyncio.timeout(20):
                    closed = await reader.read()
                assert closed[0] == 0x80 | Opcode.CLOSE
                writer.transport.abort()
        await nothing_left(served)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_what_is_sent_after_a_frame_that_closed_is_for_nobody(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """A turn may still be writing when the protocol has closed already: the client has left, nothing is broken."""
    async with serve() as served:
        reader, writer = await raw_connection(served)
        await eventually(lambda: served.gateway.connections.open == 1)
        protocol: Any = next(iter(served.server.server_state.connections))
        writer.write(frame(Opcode.TEXT, b"{}", masked=False))
        await eventually(lambda: bool(protocol.close_sent))
        for message in ({"type": "websocket.send", "text": "x"}, {"type": "websocket.close", "code": 1000}):
            with pytest.raises(ClientDisconnected):
                await protocol.send(message)
        await reader.read()
        writer.transport.abort()
        await nothing_left(served)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_message_in_a_million_fragments_is_held_in_one_piece(serve: Serve) -> None:
    """Each would cost a multiple of its size, and empty ones would never come to an end."""
    async with serve() as served:
        reader, writer = await raw_connection(served)
        await eventually(lambda: served.gateway.connections.open == 1)
        protocol: Any = next(iter(served.server.server_state.connections))
        writer.write(frame(Opcode.TEXT, b"{", fin=False))
        writer.write(10_000 * (frame(Opcode.CONT, b"", fin=False) + frame(Opcode.CONT, b" ", fin=False)))
        await eventually(lambda: sum(map(len, protocol.frames)) == 10_001)
        assert len(protocol.frames) == 1
        writer.write(frame(Opcode.CONT, b"}"))
        assert (await reader.readexactly(2))[0] == 0x80 | Opcode.TEXT
        assert b"Missing required parameter" in await reader.read(65_536)
        writer.transport.abort()
        await served.settle()


async def nothing_left(served: Served) -> None:
    await served.settle()
    state = served.server.server_state
    await eventually(lambda: not state.connections and not state.tasks, lambda: (state.connections, state.tasks))


def converse(port: int, talk: Talk) -> bytes:
    """Say it all; what came back."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            for said in (talk.opening, b"".join(talk.frames)):
                for start in range(0, len(said), talk.piece):
                    connection.sendall(said[start : start + talk.piece])
                if talk.patient and not heard:
                    while b"\r\n\r\n" not in heard and (chunk := connection.recv(65_536)):
                        heard += chunk
            match talk.leave:
                case "abort":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                case "answered":
                    while ENDED not in heard and (chunk := connection.recv(65_536)):
                        heard += chunk
                case "half-close":
                    connection.shutdown(socket.SHUT_WR)
                    while chunk := connection.recv(65_536):  # a server that does not close runs into the time limit
                        heard += chunk
        except TimeoutError:
            raise  # neither answered nor closed
        except OSError:
            pass  # the server has closed already
    return heard


def check(heard: bytes, *, packed: bool) -> Iterator[str]:
    """What was heard, in words: an HTTP response and well-formed frames, none of which says that the server failed."""
    head, _, rest = heard.partition(b"\r\n\r\n")
    status = head[9:12].decode()
    yield f"HTTP {status}"
    assert not status.startswith("5"), heard
    if status != "101":
        return
    packed = packed and b"roundhouse.msgpack" in head
    for each in frames_of(rest):
        assert each.fin
        match each.opcode:
            case Opcode.CLOSE:
                assert each.data[:2] != (1011).to_bytes(2), heard  # internal error
                yield f"close {int.from_bytes(each.data[:2])}"
            case Opcode.TEXT | Opcode.BINARY:
                assert (each.opcode is Opcode.BINARY) == packed
                event = msgspec.msgpack.decode(each.data) if packed else json.loads(each.data)
                assert event["type"] != "error" or event["status"] < 500, event
                code = f" {event['error']['code']}" if event["type"] == "error" else ""
                yield f"{'msgpack' if packed else 'json'} {event['type']}{code}"
            case other:
                assert other is Opcode.PONG
                yield "pong"


def frames_of(data: bytes) -> Generator[Frame]:
    """All whole frames, read by the library that browsers' peers are tested with."""
    reader = StreamReader()
    reader.feed_data(data)
    while True:
        parsing = Frame.parse(reader.read_exact, mask=False)
        try:
            next(parsing)
        except StopIteration as done:
            yield done.value
        else:
            return
