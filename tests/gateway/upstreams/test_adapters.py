"""Adapters at servers that load them while they run: by version, ahead, within a limit; doubles of vLLM and SGLang."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from engine.client.engine_client import EngineClient
from engine.client.generation import Generation, RequestInvalid
from engine.text.processor import TextProcessor
from engine.wire import SamplingParams
from gateway.upstreams.adapters import AdapterAccess
from gateway.upstreams.dialects import TOKEN_DIALECTS
from gateway.upstreams.http import HttpUpstream
from gateway.upstreams.pages import ServerAccess
from tests.gateway.conftest import EngineThread, eventually
from tests.gateway.upstreams.doubles import Double, Sglang, Vllm, listening, started

pytestmark = pytest.mark.anyio

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
FOLDER = AdapterAccess("/registry/", most=2)
Server = tuple[Double, str]


@pytest.fixture(scope="module")
def text(model: object) -> TextProcessor:
    return TextProcessor.from_path(str(model))


@pytest.fixture(params=[Vllm, Sglang])
async def server(request: pytest.FixtureRequest, engine: EngineThread) -> AsyncIterator[Server]:
    async with AsyncExitStack() as stack:
        inner = await stack.enter_async_context(EngineClient(engine.address))
        await inner.wait_connected()
        double = request.param(inner)
        yield double, await stack.enter_async_context(listening(double.app))


@asynccontextmanager
async def connected(server: Server, text: TextProcessor, access: AdapterAccess = FOLDER) -> AsyncIterator[HttpUpstream]:
    double, address = server
    dialect = TOKEN_DIALECTS["vllm" if isinstance(double, Vllm) else "sglang"]
    async with started(HttpUpstream(address, dialect, text, ServerAccess(lambda: None), adapters=access)) as client:
        await client.wait_connected()
        yield client


def ask(client: HttpUpstream, version: str | None, tokens: int = 4) -> Generation:
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return client.generate([5, 6, 7], sampling, adapter=version)


async def collect(generation: Generation) -> int:
    async with generation:
        return sum([len(delta.token_ids) async for delta in generation])


async def test_a_version_is_loaded_once_and_named_by_itself(server: Server, text: TextProcessor) -> None:
    async with connected(server, text) as client:
        for version in (A, None, A):
            assert await collect(ask(client, version)) == 4
        double = server[0]
        assert double.adapters == {A: f"/registry/objects/{A}"}
        assert double.commands == [("load", A)]
        assert double.served == [A, None, A]
        client.retry()
        await eventually(lambda: client.load is not None and client.load.adapters == (A,))
        assert client.load is not None
        assert (client.load.adapter_loads, client.load.adapter_evictions) == (1, 0)


async def test_for_one_too_many_the_least_recently_used_goes(server: Server, text: TextProcessor) -> None:
    async with connected(server, text) as client:
        for version in (A, B, A, C):
            await collect(ask(client, version))
        assert server[0].adapters.keys() == {A, C}
        assert server[0].commands == [("load", A), ("load", B), ("unload", B), ("load", C)]


async def test_one_that_answers_use_is_not_unloaded(server: Server, text: TextProcessor) -> None:
    async with connected(server, text) as client, ask(client, A, 3000) as long, ask(client, B, 3000) as other:
        await anext(aiter(long))
        await anext(aiter(other))
        waiting = ask(client, C)
        await eventually(lambda: client.live == 3)
        assert server[0].adapters.keys() == {A, B}
        other.cancel()
        assert await collect(waiting) == 4
        assert server[0].adapters.keys() == {A, C}
        long.cancel()


async def test_announced_and_pinned_ones_are_loaded_ahead(server: Server, text: TextProcessor) -> None:
    """Pinned ones again after a restart, and what one announces does not drive them out."""
    double = server[0]
    async with connected(server, text) as client:
        client.announce(A)
        await eventually(lambda: A in double.adapters)
        client.pin([B])
        await eventually(lambda: B in double.adapters)
        await collect(ask(client, C))
        assert double.adapters.keys() == {B, C}
    double.adapters.clear()
    async with connected(server, text) as client:
        client.pin([B])
        await eventually(lambda: B in double.adapters)
    assert double.served == [C]


async def test_one_that_others_have_unloaded_is_loaded_again(server: Server, text: TextProcessor) -> None:
    async with connected(server, text) as client:
        await collect(ask(client, A))
        server[0].adapters.clear()
        assert await collect(ask(client, A)) == 4
        assert server[0].commands == [("load", A), ("load", A)]


async def test_those_that_are_there_at_the_start_are_known(server: Server, text: TextProcessor) -> None:
    """Also without a folder: the server may have been started with them."""
    server[0].adapters[A] = "/elsewhere"
    for access in (FOLDER, AdapterAccess()):
        async with connected(server, text, access) as client:
            assert await collect(ask(client, A)) == 4
    assert server[0].commands == []


async def test_one_that_cannot_be_loaded_is_refused_and_the_log_says_what_to_do(
    server: Server, text: TextProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    server[0].lacking = "registry"
    async with connected(server, text) as client:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                with pytest.raises(RequestInvalid, match="adapter: the model's server cannot load it") as refused:
                    await collect(ask(client, A))
                assert refused.value.field == "adapter"
        assert await collect(ask(client, None)) == 4
    told = [record.getMessage() for record in caplog.records if "does not load the adapter" in record.getMessage()]
    assert len(told) == 1 and "--enable-lora" in told[0] and f"/registry/objects/{A}" in told[0]


async def test_without_a_folder_the_refusal_names_the_setting(server: Server, text: TextProcessor) -> None:
    async with connected(server, text, AdapterAccess()) as client:
        with pytest.raises(RequestInvalid, match="set adapter_folder"):
            ask(client, A)
        with pytest.raises(RequestInvalid, match="not a version"):
            ask(client, "my-adapter")
