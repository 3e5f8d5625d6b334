"""The embedder as its clients meet it: the real process and model, and models that fail or hang."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from cache.embedding.client import FAILURES, EmbedderClient, EmbedRefused
from cache.embedding.model import ModelError, SentenceModel, check, directory_of
from cache.embedding.server import EmbedderServer
from cache.embedding.wire import MAX_CHARACTERS, MAX_FRAME, EmbedderInfo, EmbedRequest, read
from tests.embedder import EmbedderProcess

pytestmark = pytest.mark.anyio

QUESTIONS = [
    "How do I reset my password?",
    "Wie spät ist es?",
    "x",
    "東京の天気は?",
    "What is " + "very " * 100 + "long?",
]


@contextlib.asynccontextmanager
async def connected(path: Path) -> AsyncIterator[EmbedderClient]:
    client = EmbedderClient(path)
    await client.start()
    try:
        async with asyncio.timeout(30):
            await client.ready.wait()
        yield client
    finally:
        await client.aclose()


async def refusal(
    client: EmbedderClient, texts: Sequence[str], seconds: float = 30, *, urgent: bool = True
) -> EmbedRefused:
    with pytest.raises(EmbedRefused) as refused:
        await client.embed(texts, seconds=seconds, urgent=urgent)
    return refused.value


class TestProcess:
    """`python -m cache.embedder`."""

    async def test_its_vectors_are_those_of_sentence_transformers(self, embedder: EmbedderProcess) -> None:
        """However they are batched."""
        sentence_transformers = pytest.importorskip("sentence_transformers")
        oracle = sentence_transformers.SentenceTransformer(str(directory_of("")), device="cpu", local_files_only=True)
        expected = oracle.encode(QUESTIONS, normalize_embeddings=True)
        async with connected(embedder.socket) as client:
            together = await client.embed(QUESTIONS, seconds=30)
            alone = await asyncio.gather(
                *(client.embed([text], seconds=30, urgent=i % 2 == 0) for i, text in enumerate(QUESTIONS))
            )
            counted = await client.count([*QUESTIONS, "word " * 300], seconds=30)
        assert client.hello and client.hello.dimensions == 384 and client.hello.model == "all-MiniLM-L6-v2"
        np.testing.assert_allclose(together.vectors, expected, atol=1e-5)
        np.testing.assert_allclose(np.concatenate([each.vectors for each in alone]), expected, atol=1e-5)
        assert counted == [*together.tokens, 302]
        assert together.tokens == [len(oracle.tokenizer(text)["input_ids"]) for text in QUESTIONS]

    async def test_a_text_beyond_the_model_is_refused_not_cut_off(self, embedder: EmbedderProcess) -> None:
        """Whoever asks learns which one it was; texts beside it from others are answered."""
        async with connected(embedder.socket) as client:
            good, bad = await asyncio.gather(
                client.embed(["short"], seconds=30), refusal(client, ["fine", "word " * 300])
            )
            huge = await refusal(client, ["x" * (MAX_CHARACTERS + 1)])
        assert good.vectors.shape == (1, 384)
        assert (bad.reason, bad.index) == ("too_long", 1)
        assert huge.reason == "too_long"

    async def test_a_connection_that_sends_rubbish_ends_alone(self, embedder: EmbedderProcess) -> None:
        """Others do not notice."""
        async with connected(embedder.socket) as client:
            for rubbish in (b"\0\0\0\1\xc1", struct.pack(">I", MAX_FRAME + 1), b"\0\0\0\2\x91\1", os.urandom(64), DEEP):
                reader, writer = await asyncio.open_unix_connection(embedder.socket)
                writer.write(rubbish)
                writer.write_eof()
                await reader.read()
                writer.close()
                await writer.wait_closed()
            assert (await client.embed(["hello"], seconds=30)).tokens == [3]

    async def test_clients_come_back_to_one_that_was_killed(self, light_embedder: EmbedderProcess) -> None:
        """What waited is refused at once."""
        async with connected(light_embedder.socket) as client:
            assert light_embedder.process
            light_embedder.process.send_signal(signal.SIGSTOP)
            waiting = asyncio.create_task(refusal(client, ["anyone?"]))
            await asyncio.sleep(0)
            light_embedder.kill()
            assert (await waiting).reason == "away"
            assert not client.available and (await refusal(client, ["anyone?"])).reason == "away"
            await asyncio.to_thread(light_embedder.start)
            async with asyncio.timeout(30):
                await client.ready.wait()
            assert (await client.embed(["hello"], seconds=30)).tokens == [1]

    def test_it_says_what_it_cannot_run_with(self, tmp_path: Path) -> None:
        """And ends with the status that tells its supervisor not to try again."""
        command = [sys.executable, "-m", "cache.embedder", "--listen", f"unix://{tmp_path}/e", "--model", str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2 and "modules.json" in ended.stderr


class TestModel:
    """Model directories that are refused."""

    def model(self, folder: Path, **files: bytes) -> Path:
        types = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for name, content in {"modules.json": msgspec.json.encode(types), **files}.items():
            (folder / name).write_bytes(content)
        return folder

    def test_code_and_pickles_are_not_run(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no weights in safetensors"):
            check(self.model(tmp_path))
        with pytest.raises(ModelError, match="not sentence-transformers' own"):
            check(self.model(tmp_path, **{"modules.json": b'[{"type": "os.system"}]'}))
        (tmp_path / "dense").mkdir()
        (tmp_path / "dense" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
        with pytest.raises(ModelError, match="pickled"):
            check(self.model(tmp_path, **{"model.safetensors": b""}))

    def test_a_broken_checkpoint_is_an_error_with_its_path(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=str(tmp_path)):
            SentenceModel(self.model(tmp_path, **{"model.safetensors": b"", "config.json": b"{}"}))

    @pytest.mark.parametrize("name", ["/no/such/place", "nothing", "a/b/c"])
    def test_a_model_that_is_nowhere(self, name: str) -> None:
        with pytest.raises(ModelError, match="no such directory"):
            directory_of(name)


DEEP = struct.pack(">I", 200_006) + b"\x96\1\x90\xc2\1\xc2" + b"\x91" * 200_000
"""An `EmbedRequest` with one more field than there are, nested without end."""


async def test_a_frame_nested_without_end_is_refused() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        await read(reader, msgspec.msgpack.Decoder(EmbedRequest))


async def test_a_client_comes_back_whatever_ended_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter([RuntimeError("unheard of"), RecursionError()])
    sound = EmbedderClient._connected

    async def faulty(self: EmbedderClient) -> None:
        for fault in faults:
            raise fault
        await sound(self)

    monkeypatch.setattr(EmbedderClient, "_connected", faulty)
    monkeypatch.setattr("cache.embedding.client._RECONNECT", (0.01, 0.01))
    async with stubborn() as (model, client):
        model.free.set()
        assert (await client.embed(["good"], seconds=30)).vectors.tolist() == [[4, 0]]
    assert "unheard of" in caplog.text


class Stubborn:
    """A model that computes when it is let to, and fails on texts that say so."""

    max_tokens = 8

    def __init__(self, queue: int) -> None:
        self.free = threading.Event()
        self.batches: list[list[str]] = []
        self.server = EmbedderServer(self, EmbedderInfo("stubborn", "1", 2, self.max_tokens), queue=queue)

    @property
    def waiting(self) -> int:
        """Number of texts that have come and wait."""
        return len(self.server._queue)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        assert self.free.wait(30)
        if "fail" in texts:
            raise RuntimeError("the model failed")
        return np.array([[len(text), 0] for text in texts], dtype="<f4")


@contextlib.asynccontextmanager
async def stubborn(queue: int = 100) -> AsyncIterator[tuple[Stubborn, EmbedderClient]]:
    model = Stubborn(queue)
    with tempfile.TemporaryDirectory(prefix="rh-emb-") as folder:
        try:
            async with model.server.listening(Path(folder) / "e.sock"), connected(Path(folder) / "e.sock") as client:
                yield model, client
        finally:
            model.free.set()


async def until(condition: object) -> None:
    async with asyncio.timeout(20):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class TestQueueing:
    """What happens while the model computes."""

    async def test_questions_that_arrive_meanwhile_make_one_batch(self) -> None:
        async with stubborn() as (model, client):
            tasks = [asyncio.create_task(client.embed(["first"], seconds=30))]
            await until(lambda: model.batches)
            tasks += [asyncio.create_task(client.embed([f"q{i}"], seconds=30)) for i in range(10)]
            bulk = asyncio.create_task(client.embed(["bulk"], seconds=30, urgent=False))
            await asyncio.sleep(0)  # all are sent
            assert (await refusal(client, ["late"], 0.02)).reason == "late"
            model.free.set()
            await asyncio.gather(*tasks, bulk)
        assert model.batches[0] == ["first"]
        assert model.batches[-1] == ["bulk"]
        assert len(model.batches) < 12

    async def test_a_full_queue_refuses_at_once(self) -> None:
        async with stubborn(queue=3) as (model, client):
            first = asyncio.create_task(client.embed(["first"], seconds=30))
            await until(lambda: model.batches)
            held = asyncio.create_task(client.embed(["a", "b"], seconds=30))
            await asyncio.sleep(0)  # it is sent before the next one
            assert (await refusal(client, ["c", "d"])).reason == "busy"
            model.free.set()
            assert [(await task).vectors.tolist() for task in (first, held)] == [[[5, 0]], [[1, 0], [1, 0]]]

    async def test_one_that_hangs_costs_few_turns_their_deadline(self) -> None:
        """After some misses in a row turns do not ask any more; others still may."""
        async with stubborn() as (model, client):
            for _ in range(FAILURES):
                assert client.available
                assert (await refusal(client, ["slow"], 0.02)).reason == "late"
            assert not client.available
            assert (await refusal(client, ["slow"], 30)).reason == "away"
            model.free.set()
            assert (await client.embed(["bulk"], seconds=30, urgent=False)).vectors.tolist() == [[4, 0]]

    async def test_what_is_late_is_not_computed(self) -> None:
        """The deadline travels with the question."""
        async with stubborn() as (model, client):
            first = asyncio.create_task(client.embed(["first"], seconds=30))
            await until(lambda: model.batches)
            late = asyncio.create_task(refusal(client, ["late"], 0.02))
            await until(lambda: model.waiting)
            await asyncio.sleep(0.03)  # its time is over there too
            assert (await late).reason == "late"
            model.free.set()
            await first
            await client.embed(["last"], seconds=30)
        assert model.batches == [["first"], ["last"]]

    async def test_a_batch_on_which_the_model_fails_costs_itself_only(self) -> None:
        async with stubborn() as (model, client):
            model.free.set()
            assert (await refusal(client, ["fail"])).reason == "failed"
            assert (await client.embed(["good"], seconds=30)).vectors.tolist() == [[4, 0]]

    async def test_what_a_gone_client_wanted_is_not_computed(self) -> None:
        async with stubborn() as (model, client):
            first = asyncio.create_task(client.embed(["first"], seconds=30))
            await until(lambda: model.batches)
            async with connected(client._path) as other:
                gone = asyncio.create_task(refusal(other, ["gone"]))
                await until(lambda: model.waiting)
            assert (await gone).reason == "away"
            await until(lambda: len(model.server._connections) == 1)
            model.free.set()
            await first
            await client.embed(["last"], seconds=30)
        assert ["gone"] not in model.batches
