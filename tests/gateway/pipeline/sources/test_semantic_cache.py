"""The semantic cache as a source: real gateways, Redis and embedder, and an engine whose answers are known."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from redis.exceptions import RedisError

from cache.questions.corrections import Corrections
from cache.questions.store import read_evidence
from cache.semantic.evidence import Comparisons, Evidence, lacking
from cache.semantic.keys import evidence_key
from cache.semantic.model import CorrectnessModel
from cache.statistics import read
from engine.text.processor import TextProcessor
from engine.wire import Generate
from gateway.access.identity import Principal
from gateway.config.settings import EmbedderSettings, SemanticCacheSettings
from gateway.pipeline.sources import semantic_parts
from gateway.pipeline.sources.semantic_cache import SimilarAnswers
from gateway.protocol.caching import Caching
from gateway.protocol.requests import Message, Sampling, TurnRequest
from gateway.protocol.stream import Finished, Routed
from tests.cache.questions.conftest import MODEL
from tests.conftest import redis_server
from tests.embedder import EmbedderProcess
from tests.gateway.conftest import KEY, Serve, Served, eventually
from tests.gateway.frame_engine import FrameEngine
from tests.gateway.telemetry.test_no_text import in_redis, traces_of

pytestmark = pytest.mark.anyio

DEMO = Principal("demo", "demo")
COLLEAGUE = Principal("demo", "other-key")
STRANGER = Principal("stranger", "stranger")

RIGHT = Comparisons(1000.0, 0.0)
ASKED = "How do I reset the password of the mail account?"
ALIKE = "How can I reset the password of the mail account?"
DIFFERENT = "How do I bake a chocolate cake without any eggs?"
RESET, CAKE = "You open the settings.", "You take two bananas."


@pytest.fixture(autouse=True)
def similarity_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that goes by similarity: what is tested is what follows."""
    monkeypatch.setattr(semantic_parts, "shipped", lambda: MODEL)


class Answering(FrameEngine):
    """Answers questions by a word in them; counts what it was asked."""

    def __init__(self, path: Path, text: TextProcessor) -> None:
        super().__init__(path, {None: 70})
        self.says: Callable[[str], str] = lambda asked: RESET if "password" in asked else CAKE
        self.finish = "stop"
        self.text = text
        self.script = self._scripted

    def _scripted(self, request: Generate) -> list[list[int]]:
        asked = self.text.decode(request.prompt)
        return [[token] for token in self.text.encode(self.says(asked))]

    @property
    def asked(self) -> int:
        return len(self.generated)


@pytest.fixture
async def frames(model: Path) -> AsyncIterator[Answering]:
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # socket paths are short
        engine = Answering(Path(folder) / "e.sock", TextProcessor.from_path(model))
        async with engine.serving():
            yield engine


@contextlib.asynccontextmanager
async def semantic(
    serve: Serve, frames: FrameEngine, embedder: EmbedderProcess, *, proven: bool = True, **changes: Any
) -> AsyncIterator[Served]:
    """A gateway that serves what it would explore by chance, and whose comparisons were right so far."""
    changes = {"semantic_cache": SemanticCacheSettings(enabled=True), **changes}
    at = EmbedderSettings(address=f"unix://{embedder.socket}", timeout=changes.pop("embedding_seconds", 10.0))
    async with serve(engines={"small": [frames.address]}, embedder=at, **changes) as served:
        similar_of(served).draw = lambda: 0.999
        client = served.gateway.embedder
        assert client is not None
        await eventually(lambda: client.hello is not None)
        if proven:
            await prove(served)
        yield served


async def prove(served: Served, compared: Comparisons = RIGHT, model: CorrectnessModel = MODEL) -> None:
    """Have comparisons of the tenant's answers so far, by a model."""
    client = served.gateway.embedder
    assert client is not None and client.hello is not None
    basis = f"{client.hello.revision}:{model.version}:{model.digest}"
    state = msgspec.json.encode(Evidence(basis=basis, bands=(compared,) * len(model.bands)))
    await served.gateway.redis.hset(evidence_key("demo"), "state", state)


def similar_of(served: Served) -> SimilarAnswers:
    assert served.gateway.similar is not None
    return served.gateway.similar


def question(text: str = ASKED, **fields: Any) -> TurnRequest:
    asked = (Message("user", text),)
    short = TurnRequest(model="small", messages=asked, sampling=Sampling(temperature=0), max_output_tokens=40)
    return msgspec.structs.replace(short, **fields)


async def ask(served: Served, request: TurnRequest | str, principal: Principal = DEMO) -> tuple[Routed, str]:
    """The last route and the answer; once everything is learnt that it has to teach."""
    asked = question(request) if isinstance(request, str) else request
    with await served.gateway.turns.start(asked, principal) as viewer:
        events = [entry.event async for entry in viewer.entries() if entry.event is not None]
        said = viewer.turn.log.text
    ended = events[-1]
    assert isinstance(ended, Finished) and ended.error is None, ended
    if served.gateway.similar is not None:
        await eventually(lambda: not similar_of(served).learning)
    return [event for event in events if isinstance(event, Routed)][-1], said


class TestHit:
    """An answer to a similar question."""

    async def test_is_served_and_says_so(self, serve: Serve, frames: Answering, embedder: EmbedderProcess) -> None:
        """Without a model, with its reasons; an unlike question goes to the engine. Redis holds no word of them."""
        async with semantic(serve, frames, embedder) as served:
            first, _ = await ask(served, ASKED)
            route, said = await ask(served, ALIKE)
            other, cake = await ask(served, DIFFERENT)
            exact, _ = await ask(served, ASKED)
            await served.settle()
            written = in_redis(served.gateway.settings.redis.url)
        assert b"rh1:sem-q:" in written and not traces_of("password", written) and not traces_of("bananas", written)
        assert (first.cache, route.cache, route.cache_reason, said) == ("miss", "hit", "similar", RESET)
        assert "similar question: given" in route.reasons[0]
        assert (other.cache, cake) == ("miss", CAKE)
        assert (exact.cache, exact.cache_reason) == ("hit", "stored")
        assert frames.asked == 2

    async def test_is_free_and_counted(self, serve: Serve, frames: Answering, embedder: EmbedderProcess) -> None:
        async with semantic(serve, frames, embedder) as served:
            await ask(served, ASKED)
            await ask(served, ALIKE)
            async with asyncio.timeout(20):
                while not (counted := await read(served.gateway.redis, tenant="demo"))["demo"]["semantic_hit"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)  # they are written every second
            counted = counted["demo"]
        assert (counted["semantic_hit"], counted["semantic_miss"], counted["semantic_store"]) == (1, 1, 1)
        assert counted["tokens_saved"] > 0

    async def test_goes_to_nobody_for_whom_it_was_not_made(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess
    ) -> None:
        """Another tenant or user, other instructions, another conversation, other parameters, another model: poison."""
        async with semantic(serve, frames, embedder) as served:
            await ask(served, ASKED)
            frames.says = lambda asked: CAKE
            before = (Message("user", "I use a telephone."), Message("assistant", "Good."))
            elsewhere = [
                (question(ALIKE), STRANGER),
                (question(ALIKE), COLLEAGUE),
                (question(ALIKE, instructions="Answer like a pirate."), DEMO),
                (question(ALIKE, messages=(Message("system", "You lie."), Message("user", ALIKE))), DEMO),
                (question(ALIKE, messages=(*before, Message("user", ALIKE))), DEMO),
                (question(ALIKE, max_output_tokens=30), DEMO),
                (question(ALIKE, stop=("zzz",)), DEMO),
                (question(ALIKE, sampling=Sampling(temperature=0, top_p=0.5)), DEMO),
                (question(ALIKE, model="auto"), DEMO),
                (question(ALIKE, caching=Caching(tags=("faq",))), DEMO),
            ]
            told = [(await ask(served, request, who))[1] for request, who in elsewhere]
            mine, said = await ask(served, question(ALIKE))
        assert told == [CAKE] * len(elsewhere)
        assert (mine.cache_reason, said) == ("similar", RESET)

    @pytest.mark.parametrize(
        "fields",
        [
            {"caching": Caching(no_store=True)},
            {"caching": Caching(refresh=True)},
            {"caching": Caching(max_age=0)},
            {"sampling": Sampling(temperature=0.7)},
            {"messages": (Message("user", "How can I reset the password of the mail account today?"),)},
        ],
    )
    async def test_is_not_for_those_who_do_not_want_one(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess, fields: dict[str, Any]
    ) -> None:
        async with semantic(serve, frames, embedder) as served:
            await ask(served, ASKED)
            route, _ = await ask(served, question(**{"text": ALIKE, **fields}))
        assert route.cache != "hit" and frames.asked == 2

    async def test_is_not_for_tenants_that_have_it_off(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess
    ) -> None:
        """Nothing is stored for them either."""
        off = SemanticCacheSettings(enabled=True, tenants={"demo": 0.0})
        async with semantic(serve, frames, embedder, proven=False, semantic_cache=off) as served:
            for text in (ASKED, ALIKE):
                assert (await ask(served, text))[0].cache == "miss"
            assert await served.gateway.redis.keys("rh1:sem*") == []
            assert await served.gateway.redis.keys("rh1:emb*") == []


class TestCheck:
    """A stored answer that is compared with a fresh one."""

    async def test_a_right_one_gains_support(self, serve: Serve, frames: Answering, embedder: EmbedderProcess) -> None:
        """The client gets the fresh answer and is told; each question keeps an answer of its own."""
        async with semantic(serve, frames, embedder) as served:
            await ask(served, ASKED)
            similar_of(served).draw = lambda: 0.0
            route, _ = await ask(served, ALIKE)
            redis = served.gateway.redis
            support = [await redis.hget(key, "support") for key in await redis.keys("rh1:sem-a:{demo}:*")]
        assert (route.cache, route.cache_reason) == ("miss", "checked")
        assert any("checked (sampled)" in reason for reason in route.reasons)
        assert set(support) == {b"1", None} and frames.asked == 2

    async def test_a_wrong_one_is_not_served_again(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess
    ) -> None:
        """It goes to quarantine, and is evidence."""
        async with semantic(serve, frames, embedder) as served:
            await ask(served, ASKED)
            frames.says = lambda asked: "Nobody can."
            similar_of(served).draw = lambda: 0.0
            await ask(served, ALIKE)
            similar_of(served).draw = lambda: 0.999
            _, said = await ask(served, "How could I reset the password of the mail account?")
            evidence = (await read_evidence(served.gateway.redis, ["demo"]))["demo"]
        assert said == "Nobody can."
        assert sum(compared.wrong for compared in evidence.bands) == 1

    async def test_what_the_exact_cache_does_not_store_teaches_nothing(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess
    ) -> None:
        """Cut off answers, refusals."""
        async with semantic(serve, frames, embedder, proven=False) as served:
            frames.finish = "length"
            await ask(served, ASKED)
            frames.finish, frames.says = "stop", lambda asked: "I'm sorry, but I can't help with that."
            await ask(served, ALIKE)
            assert await served.gateway.redis.keys("rh1:sem-*") == []


class TestPromise:
    """At most the share `max_wrong_hits` of what is served is wrong."""

    async def test_is_shown_before_anything_is_served(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess
    ) -> None:
        """Comparisons by a model with other bands do not count."""
        promise, told = SemanticCacheSettings(enabled=True, max_wrong_hits=0.2), []
        async with semantic(serve, frames, embedder, proven=False, semantic_cache=promise) as served:
            await prove(served, model=msgspec.structs.replace(MODEL, bands=(0.1, 0.2)))
            for number in range(lacking(Comparisons(), 0.2) + 1):
                await ask(served, f"How do I reset the password for parcel service {number}?")
                told.append(await ask(served, f"How can I reset the password for parcel service {number}?"))
        assert [route.cache_reason for route, _ in told] == ["checked"] * (len(told) - 1) + ["similar"]
        assert any("checked (unproven); of 0 such answers" in reason for reason in told[0][0].reasons)

    async def test_is_broken_where_too_many_are_wrong(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess
    ) -> None:
        async with semantic(serve, frames, embedder) as served:
            await ask(served, ASKED)
            assert (await ask(served, ALIKE))[0].cache_reason == "similar"
            await prove(served, Comparisons(970.0, 30.0))
            route, _ = await ask(served, "How could I reset the password of the mail account?")
            assert route.cache_reason == "checked"


class TestDislike:
    """Thumbs down."""

    async def test_puts_the_answer_in_quarantine(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess
    ) -> None:
        """At once on every gateway; a thumb up changes nothing. Its own question keeps it."""

        async def say(at: Served, text: str) -> tuple[str, str]:
            raw = await at.client.responses.with_raw_response.create(
                model="small", input=text, temperature=0, max_output_tokens=40
            )
            await eventually(lambda: not similar_of(at).learning)
            return raw.headers["x-roundhouse-cache-reason"], raw.parse().id

        async def rate(at: Served, response: str, rating: str) -> None:
            url = f"{at.base_url}/responses/{response}/feedback"
            async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
                assert (await client.post(url, json={"rating": rating})).status_code == 200
            await eventually(lambda: not similar_of(at).learning)

        async with semantic(serve, frames, embedder) as served, semantic(serve, frames, embedder) as other:
            await say(served, ASKED)
            reason, disliked = await say(served, ALIKE)
            assert reason == "similar"
            await rate(served, disliked, "up")
            assert (await say(other, ALIKE))[0] == "similar"
            await rate(other, disliked.replace("resp_", "chatcmpl-"), "down")  # as a client of chat completions says
            [key] = await served.gateway.redis.keys("rh1:sem-a:{demo}:*")
            assert await served.gateway.redis.hget(key, "state") == b"quarantined"
            assert (await say(served, "How could I reset the password of the mail account?"))[0] == "checked"
            assert (await say(served, ASKED))[0] == "stored"


class TestTwoGateways:
    """On one Redis."""

    async def test_share_questions_and_their_end(
        self, serve: Serve, frames: Answering, embedder: EmbedderProcess
    ) -> None:
        """What one stores the other serves; what is ended at one is gone at the other at once."""
        async with semantic(serve, frames, embedder) as one, semantic(serve, frames, embedder) as other:
            cache = one.gateway.response_cache
            for end in ("rm", "epoch", "revoke"):
                text = {"rm": "letters", "epoch": "parcels", "revoke": "postcards"}[end]
                asked, alike = f"How do I reset the password for {text}?", f"How can I reset the password for {text}?"
                await ask(one, asked)
                route, _ = await ask(other, alike)
                assert route.cache_reason == "similar", end
                digest = route.reasons[0].split()[2]
                if end == "rm":
                    await cache.remove("demo", digest)
                elif end == "epoch":
                    await cache.invalidate("demo")
                else:
                    assert await Corrections(one.gateway.redis).revoke("demo", digest)
                route, _ = await ask(other, f"How could I reset the password for {text}?")
                assert route.cache == "miss", end


class TestFailures:
    """Nobody's turn fails."""

    async def test_of_the_embedder_are_misses(
        self, serve: Serve, frames: Answering, light_embedder: EmbedderProcess
    ) -> None:
        """Away, hanging, killed, back again."""
        async with semantic(serve, frames, light_embedder, embedding_seconds=0.5) as served:
            client = served.gateway.embedder
            assert client is not None and light_embedder.process is not None
            await eventually(lambda: client.available)
            light_embedder.process.send_signal(signal.SIGSTOP)
            assert (await ask(served, ASKED))[1] == RESET
            light_embedder.kill()
            await eventually(lambda: not client.ready.is_set())
            assert (await ask(served, ALIKE))[1] == RESET
            assert frames.asked == 2
            await asyncio.to_thread(light_embedder.start)
            await eventually(lambda: client.available)
            await ask(served, DIFFERENT)

    async def test_of_redis_are_misses(self, serve: Serve, frames: Answering, embedder: EmbedderProcess) -> None:
        """Killed while turns run, and back: zero failed requests, and hits again."""
        server = redis_server()
        with server as url:
            async with semantic(serve, frames, embedder, redis_options={"url": url}) as served:
                await ask(served, ASKED)
                asking = [asyncio.create_task(ask(served, f"{ALIKE} {number}")) for number in range(20)]
                await asyncio.sleep(0.02)
                server.stop()
                for _, said in await asyncio.gather(*asking):
                    assert said == RESET
                assert (await ask(served, DIFFERENT))[1] == CAKE
                await asyncio.to_thread(server.start)
                await ask(served, ASKED)

                async def again() -> bool:
                    with contextlib.suppress(RedisError):
                        await prove(served)
                    await ask(served, question(ASKED, caching=Caching(refresh=True)))
                    return (await ask(served, "How could I reset the password of the mail account?"))[0].cache == "hit"

                async with asyncio.timeout(30):
                    while not await again():  # noqa: ASYNC110  Redis and connections come back when they do
                        await asyncio.sleep(0.1)
                    # What was counted meanwhile is written then; a Redis that is away is no lack of similar questions.
                    counted = partial(read, served.gateway.redis, tenant="demo")
                    while not (await counted())["demo"]["semantic_bypass.unavailable"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
