"""The client of servers of other projects: keys, TLS, time limits, and answers that make no sense."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trustme
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from engine.client.engine_client import EngineClient
from engine.client.generation import EngineGone, EngineOverloaded, Generation, RequestFailed, RequestInvalid
from engine.text.processor import TextProcessor
from engine.tls import Certificate
from engine.wire import SamplingParams
from gateway.records.section import SettingsError
from gateway.upstreams import server
from gateway.upstreams.dialects import TOKEN_DIALECTS
from gateway.upstreams.http import HttpUpstream
from gateway.upstreams.pages import ServerAccess
from tests.clocks import LoopClock
from tests.gateway.conftest import EngineThread, eventually
from tests.gateway.upstreams.doubles import Sglang, Vllm, listening, started

pytestmark = pytest.mark.anyio

KEY = "sk-the-key"
PARAMS = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def text(model: Path) -> TextProcessor:
    return TextProcessor.from_path(model)


class Scripted:
    """A server of vLLM's or SGLang's dialect that sends what a test says."""

    def __init__(self) -> None:
        self.events: list[object] = []
        """What each answer says: an event, bytes, a pause in seconds, or what to wait for."""
        self.status = 200
        self.software = "scripted"
        self.key: str | None = None
        """Key that it wants."""
        self.keys: list[str] = []
        """Keys that came."""
        self.ports: set[int] = set()
        """Ports that its clients have asked for answers from."""
        self.models = {"data": [{"id": "m", "max_model_len": 4096}]}
        self.elsewhere: str | None = None
        """Address to which it sends its clients."""

    @property
    def app(self) -> Starlette:
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.about),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/generate", self.complete, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def health(self, request: Request) -> Response:
        self.keys.append(request.headers.get("authorization", ""))
        return Response(status_code=self.status, headers={"server": self.software})

    async def about(self, request: Request) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        return JSONResponse(self.models)

    async def complete(self, request: Request) -> Response:
        assert request.client is not None
        self.ports.add(request.client.port)
        self.keys.append(request.headers.get("authorization", ""))
        if self.elsewhere is not None:
            return RedirectResponse(self.elsewhere)

        async def events() -> AsyncIterator[bytes]:
            for event in self.events:
                if isinstance(event, float):
                    await asyncio.sleep(event)
                elif isinstance(event, asyncio.Event):
                    await event.wait()
                else:
                    yield event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n\n".encode()

        return StreamingResponse(events(), media_type="text/event-stream")


def chunk(*tokens: int, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": "", "token_ids": tokens, "finish_reason": finish}]}


@pytest.fixture
async def scripted() -> Scripted:
    return Scripted()


@asynccontextmanager
async def connected(
    scripted: Scripted, text: TextProcessor, access: ServerAccess | None = None
) -> AsyncIterator[HttpUpstream]:
    async with asyncio.timeout(30), listening(scripted.app) as address, client(address, text, access) as upstream:
        await upstream.wait_connected()
        yield upstream


@asynccontextmanager
async def client(
    address: str, text: TextProcessor, access: ServerAccess | None = None, dialect: str = "vllm"
) -> AsyncIterator[HttpUpstream]:
    access = access or ServerAccess(lambda: None)
    async with started(HttpUpstream(address, TOKEN_DIALECTS[dialect], text, access, silence=30.0)) as upstream:
        yield upstream


async def said(generation: Generation) -> list[int]:
    async with generation:
        return [token async for delta in generation for token in delta.token_ids]


async def test_the_key_goes_with_every_request_and_is_read_again_for_a_new_connection(
    scripted: Scripted, text: TextProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys = ["old", KEY]
    scripted.key = KEY
    scripted.events = [chunk(70), chunk(finish="length")]
    async with connected(scripted, text, ServerAccess(lambda: keys.pop(0) if len(keys) > 1 else KEY)) as upstream:
        assert await said(upstream.generate([5], PARAMS)) == [70]
    assert scripted.keys[0] == "Bearer old"
    assert set(scripted.keys[1:]) == {f"Bearer {KEY}"}
    assert "/v1/models answers 401" in caplog.text
    assert KEY not in caplog.text


async def test_a_key_that_cannot_be_read_keeps_it_away(text: TextProcessor, caplog: pytest.LogCaptureFixture) -> None:
    def missing() -> str:
        raise SettingsError("pools: m: api_key_file: it is gone")

    faults: list[None] = []
    upstream = HttpUpstream(
        "http://127.0.0.1:9", TOKEN_DIALECTS["vllm"], text, ServerAccess(missing), on_fault=lambda: faults.append(None)
    )
    await upstream.start()
    await eventually(lambda: "it is gone" in caplog.text)
    await upstream.aclose()
    assert not upstream.connected and not faults


async def test_it_follows_no_redirect(scripted: Scripted, text: TextProcessor) -> None:
    """Where requests go is the configuration's to say."""
    other = Scripted()
    async with listening(other.app) as elsewhere, connected(scripted, text) as upstream:
        scripted.elsewhere = f"{elsewhere}/v1/completions"
        with pytest.raises(RequestFailed, match="307"):
            await said(upstream.generate([5], PARAMS))
    assert other.keys == []


async def test_answers_use_connections_again(scripted: Scripted, text: TextProcessor) -> None:
    """Each is read to the end of its reply, though it ends before."""
    scripted.events = [chunk(70), chunk(71, finish="length"), b"data: [DONE]\n\n"]
    async with connected(scripted, text) as upstream:
        for _ in range(5):
            assert await said(upstream.generate([5], PARAMS)) == [70, 71]
            await eventually(lambda: not upstream._ending)
    assert len(scripted.ports) < 5


async def test_a_reply_without_an_end_costs_its_answer_nothing(
    scripted: Scripted, text: TextProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LINGER", 0.05)
    scripted.events = [chunk(70, finish="length"), b"data: [DONE]\n\n", 60.0]
    async with connected(scripted, text) as upstream:
        assert await said(upstream.generate([5], PARAMS)) == [70]
        await eventually(lambda: not upstream._ending)
        assert upstream.connected


async def test_a_request_that_does_not_begin_in_time_is_overload(scripted: Scripted, text: TextProcessor) -> None:
    scripted.events = [60.0]
    async with connected(scripted, text) as upstream:
        with pytest.raises(EngineOverloaded) as late:
            await said(upstream.generate([5], PARAMS, queue_timeout=0.1))
        assert not late.value.started
        assert upstream.connected and upstream.live == 0


async def test_an_answer_that_stops_amidst_is_lost(
    scripted: Scripted, text: TextProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_PAUSE", 0.1)
    scripted.events = [chunk(70), 60.0]
    async with connected(scripted, text) as upstream:
        generation = upstream.generate([5], PARAMS)
        assert (await anext(generation)).token_ids == [70]
        with pytest.raises(EngineGone) as lost:
            await anext(generation)
        assert lost.value.started


async def test_its_own_time_limit_ends_an_answer_with_what_it_has(scripted: Scripted, text: TextProcessor) -> None:
    scripted.events = [chunk(70), 60.0]
    async with connected(scripted, text) as upstream:
        generation = upstream.generate([5], PARAMS, timeout=10.0)
        tokens = [*(await anext(generation)).token_ids]
        await LoopClock().advance(10.0)
        assert tokens + await said(generation) == [70]
        assert generation.result.finish_reason == "timeout"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"data: {]\n\n",
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": [{"token_ids": ["70"]}]}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"data: " + b"x" * 2_000_000 + b"\n\n",
        b"data: \xff\n\n",
        b"",
    ],
    ids=["no JSON", "no event", "no token", "nested", "too large", "no text", "no end"],
)
async def test_an_answer_that_makes_no_sense_costs_itself_only(
    scripted: Scripted, text: TextProcessor, nonsense: bytes
) -> None:
    async with connected(scripted, text) as upstream:
        scripted.events = [chunk(70), nonsense]
        generation = upstream.generate([5], PARAMS)
        with pytest.raises(EngineGone):
            await said(generation)
        scripted.events = [chunk(70), chunk(71, finish="length"), b"data: [DONE]\n\n"]
        assert await said(upstream.generate([5], PARAMS)) == [70, 71]
        assert upstream.connected


async def test_a_token_that_the_tokenizer_does_not_know_adds_no_text(scripted: Scripted, text: TextProcessor) -> None:
    scripted.events = [chunk(70), chunk(10_000_000), chunk(finish="length")]
    async with connected(scripted, text) as upstream:
        async with upstream.generate([5], PARAMS, text=text) as generation:
            answer = "".join([delta.text async for delta in generation])
        assert answer == text.decode([70])


@pytest.mark.parametrize(
    ("code", "failure"), [(400, RequestInvalid), (429, EngineOverloaded), (503, EngineOverloaded), (500, RequestFailed)]
)
async def test_an_error_amidst_an_answer_is_told(
    scripted: Scripted, text: TextProcessor, code: int, failure: type[RequestFailed]
) -> None:
    taken = asyncio.Event()
    scripted.events = [chunk(70), taken, {"error": {"message": "no more", "code": code}}]
    async with connected(scripted, text) as upstream:
        generation = upstream.generate([5], PARAMS)
        await anext(generation)
        taken.set()
        with pytest.raises(failure) as told:
            await anext(generation)
        assert told.value.started


async def test_why_sglang_aborts_is_told(scripted: Scripted, text: TextProcessor) -> None:
    abort = {"type": "abort", "message": "The input is too long", "status_code": 400}
    scripted.events = [{"output_ids": [], "meta_info": {"finish_reason": abort}}]
    async with listening(scripted.app) as address, client(address, text, dialect="sglang") as upstream:
        await upstream.wait_connected()
        with pytest.raises(RequestInvalid, match="The input is too long"):
            await said(upstream.generate([5], PARAMS))


async def test_a_server_that_is_not_healthy_gets_no_requests(scripted: Scripted, text: TextProcessor) -> None:
    scripted.status = 503
    async with listening(scripted.app) as address, client(address, text) as upstream:
        await eventually(lambda: len(scripted.keys) > 1)
        assert not upstream.connected
        for scripted.status, connected in ((200, True), (429, True), (500, False)):  # 429: it is there, only busy
            asked = len(scripted.keys) + 1
            await eventually(lambda: len(scripted.keys) > asked and upstream.connected == connected)  # noqa: B023
        assert upstream.load is None and upstream.info is not None


@pytest.mark.parametrize(
    "models", [[{"id": "m" * 2_000_000, "max_model_len": 4096}], []], ids=["without end", "nothing"]
)
async def test_a_server_that_does_not_describe_its_model_is_not_used(
    scripted: Scripted, text: TextProcessor, models: list[dict[str, object]]
) -> None:
    scripted.models, faults = {"data": models}, list[None]()
    async with listening(scripted.app) as address:
        dialect, access = TOKEN_DIALECTS["vllm"], ServerAccess(lambda: None)
        async with started(
            HttpUpstream(address, dialect, text, access, on_fault=lambda: faults.append(None))
        ) as upstream:
            await eventually(lambda: len(scripted.keys) > 1)
            assert not upstream.connected and not faults


async def test_what_its_metrics_say_is_its_load(engine: EngineThread, text: TextProcessor) -> None:
    async with EngineClient(engine.address) as behind, AsyncExitStack() as stack:
        await behind.wait_connected()
        address = await stack.enter_async_context(listening(Vllm(behind).app))
        upstream = await stack.enter_async_context(client(address, text))
        await upstream.wait_connected()
        assert upstream.load is not None and upstream.info is not None
        assert (upstream.load.running, upstream.load.waiting) == (0, 3)
        assert (upstream.info.name, upstream.info.context) == ("org/tiny", 4096)


async def test_another_model_has_another_revision(scripted: Scripted, text: TextProcessor) -> None:
    """Which is a part of the keys of cached answers."""
    revisions = set()
    for name in ("m", "n", "m"):
        scripted.models = {"data": [{"id": name, "max_model_len": 4096}]}
        async with connected(scripted, text) as upstream:
            assert upstream.info is not None
            revisions.add(upstream.info.revision)
    assert len(revisions) == 2


async def test_tenants_have_salts_of_their_own(engine: EngineThread, text: TextProcessor) -> None:
    async with EngineClient(engine.address) as behind, AsyncExitStack() as stack:
        await behind.wait_connected()
        double = Vllm(behind)
        upstream = await stack.enter_async_context(client(await stack.enter_async_context(listening(double.app)), text))
        await upstream.wait_connected()
        for salt in (b"\x01", b"\x02"):
            await said(upstream.generate([5, 6], PARAMS, salt=salt))
        assert double.salts == {"01", "02"}


async def test_events_with_new_tokens_only_give_the_same_answer(engine: EngineThread, text: TextProcessor) -> None:
    """As SGLang sends them if it is started so."""
    answers = []
    for incremental in (False, True):
        async with EngineClient(engine.address) as behind, AsyncExitStack() as stack:
            await behind.wait_connected()
            double = Sglang(behind)
            double.incremental = incremental
            address = await stack.enter_async_context(listening(double.app))
            upstream = HttpUpstream(address, TOKEN_DIALECTS["sglang"], text, ServerAccess(lambda: None))
            await upstream.start()
            stack.push_async_callback(upstream.aclose)
            await upstream.wait_connected()
            scored = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, logprobs=1)
            answers.append(await said(upstream.generate([5, 6], scored)))
    assert answers[0] == answers[1] and len(answers[0]) == 8


class Secured:
    """A server with a certificate for 127.0.0.1 or another name."""

    def __init__(self, folder: Path, name: str) -> None:
        authority = trustme.CA()
        self.certificate = Certificate(str(folder / "ca.pem"))
        authority.cert_pem.write_to_path(self.certificate.authority)
        self._chain = folder / "server.pem"
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(self._chain))

    @asynccontextmanager
    async def serving(self, app: Starlette) -> AsyncIterator[str]:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ssl_certfile=self._chain))
        task = asyncio.create_task(server.serve())
        await eventually(lambda: server.started)
        try:
            yield f"https://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def test_tls_trusts_the_configured_authority_and_name(
    scripted: Scripted, text: TextProcessor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "roundhouse.engines")
    secured = Secured(tmp_path, "models.internal")
    async with secured.serving(scripted.app) as address:
        trusting = ServerAccess(lambda: KEY, secured.certificate, "models.internal")
        async with client(address, text, trusting) as upstream:
            await upstream.wait_connected()
        scripted.keys.clear()
        for wrong in (ServerAccess(lambda: KEY), ServerAccess(lambda: KEY, secured.certificate)):
            caplog.clear()
            async with client(address, text, wrong) as upstream:
                await eventually(lambda: "cannot be used" in caplog.text)
                assert not upstream.connected
        assert scripted.keys == []  # nobody has seen the key
