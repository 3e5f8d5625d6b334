"""HTTP connections against a server that sends exactly these bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load.connections.address import Address
from load.connections.http import EventStream, HttpConnection, RequestRefused

pytestmark = pytest.mark.anyio
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def sending(*parts: bytes, close: bool = False) -> AsyncIterator[tuple[Address, list[bytes]]]:
    """A server that answers each request with these parts; gives its address and the requests."""
    heads: list[bytes] = []
    serving = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                for line in head.split(b"\r\n"):
                    if line.startswith(b"Content-Length: "):
                        heads[-1] += await reader.readexactly(int(line.split()[1]))
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.001)
                if close:
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1], False, "/v1"), heads
        await asyncio.wait_for(asyncio.gather(*serving), 10)


async def received(address: Address, times: int = 1) -> list[bytes]:
    connection = await HttpConnection.open(address, {"Authorization": "Bearer k"})
    parts: list[bytes] = []
    try:
        for _ in range(times):
            await connection.request("POST", "/chat/completions", b"{}", lambda data, _: parts.append(data))
    finally:
        connection.abort()
    return parts


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_body_in_chunks_comes_without_their_frames(size: int) -> None:
    answer = CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    parts = [answer[at : at + size] for at in range(0, len(answer), size)]
    async with sending(*parts) as (address, heads):
        assert b"".join(await received(address, times=2)) == b"hello world" * 2
    assert heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer k\r\n" in heads[0] and heads[0].endswith(b"\r\n\r\n{}")


async def test_one_connection_is_used_again_as_long_as_the_server_allows_it() -> None:
    async with sending(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (address, _):
        connection = await HttpConnection.open(address, {})
        await connection.request("GET", "/models", None, lambda *_: None)
        assert connection.usable
        connection.abort()
    async with sending(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok") as (address, _):
        connection = await HttpConnection.open(address, {})
        await connection.request("GET", "/models", None, lambda *_: None)
        assert not connection.usable


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with sending(b"HTTP/1.0 200 OK\r\n\r\n", b"to the end", close=True) as (address, _):
        assert b"".join(await received(address)) == b"to the end"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "too many", "code": "rate_limited"}}', "429 rate_limited: too many"),
        (b'{"error": {"message": "too many", "type": "limit"}}', "429 limit: too many"),
        (b'{"error": "too many"}', "429 too many"),
        (b"go away", "429 go away"),
        (b"", "429"),
    ],
)
async def test_a_refusal_says_what_the_server_said(body: bytes, says: str) -> None:
    head = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with sending(head + body) as (address, _):
        with pytest.raises(RequestRefused) as refused:
            await received(address)
    assert (refused.value.status, str(refused.value)) == (429, says)


@pytest.mark.parametrize(
    "answer", [CHUNKED + b"5\r\nhel", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel", b"", b"HTT"]
)
async def test_an_answer_that_breaks_off_is_a_lost_connection(answer: bytes) -> None:
    async with sending(answer, close=True) as (address, _):
        with pytest.raises(ConnectionError):
            await received(address)


async def test_what_is_no_http_is_a_lost_connection() -> None:
    async with sending(b"SSH-2.0-OpenSSH_9.2\r\n") as (address, _):
        with pytest.raises(ConnectionError, match="speaks no HTTP"):
            await received(address)


async def test_a_connection_that_is_cut_ends_its_request() -> None:
    async with sending(CHUNKED + b"5\r\nhello\r\n") as (address, _):
        connection = await HttpConnection.open(address, {})
        with pytest.raises(ConnectionError):
            await connection.request("POST", "/responses", b"{}", lambda *_: connection.abort())
        assert not connection.usable
        with pytest.raises(ConnectionError):
            await connection.request("POST", "/responses", b"{}", lambda *_: None)


@given(
    st.lists(
        st.sampled_from([b"data: one\n\n", b"event: x\r\ndata:two\r\n\r\n", b": ping\n\n", b"data: a\ndata: b\n\n"])
    ),
    st.lists(st.integers(0, 200)),
)
def test_events_are_the_same_however_the_bytes_come(events: list[bytes], cuts: Sequence[int]) -> None:
    whole = b"".join(events)
    places = sorted({0, len(whole), *(min(each, len(whole)) for each in cuts)})
    stream = EventStream()
    found = [event for begin, end in pairwise(places) for event in stream.feed(whole[begin:end])]
    names = {b"data: one\n\n": b"one", b"event: x\r\ndata:two\r\n\r\n": b"two", b"data: a\ndata: b\n\n": b"a\nb"}
    assert found == [names[each] for each in events if each in names]


@pytest.mark.parametrize(
    ("url", "parsed", "shown"),
    [
        ("http://127.0.0.1:8080", Address("127.0.0.1", 8080, False, "/v1"), "http://127.0.0.1:8080/v1"),
        ("localhost:9", Address("localhost", 9, False, "/v1"), "http://localhost:9/v1"),
        ("https://a.example/api/v2/", Address("a.example", 443, True, "/api/v2"), "https://a.example/api/v2"),
        ("http://[::1]:80/", Address("::1", 80, False, "/v1"), "http://[::1]/v1"),
    ],
)
def test_an_address_is_read_with_its_defaults(url: str, parsed: Address, shown: str) -> None:
    assert Address.parse(url) == parsed
    assert str(parsed) == shown


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a?x=1", "http://a:port", "http://me:word@a"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|[Pp]ort"):
        Address.parse(url)
