"""The servers whose conformance is tested, each with a tokenizer and a way to look into it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from bench.xllamacpp_server import CONTEXT
from engine.client.answer_stream import AnswerStream
from engine.client.conversation import ChatPrompt, ChatPromptMessage, ChatTool, estimated_tokens
from engine.client.engine_client import EngineClient
from engine.client.upstream import Upstream
from engine.text.processor import TextProcessor
from engine.wire import SamplingParams
from gateway.config.pools import UNTOLD_CONTEXT
from gateway.upstreams.dialects import MESSAGE_DIALECTS, TOKEN_DIALECTS
from gateway.upstreams.http import HttpUpstream
from gateway.upstreams.load import read_metrics
from gateway.upstreams.messages.upstream import MessageUpstream
from gateway.upstreams.pages import ServerAccess
from tests.gateway.upstreams.doubles import Sglang, Vllm, listening, started
from tests.gateway.upstreams.message_doubles import MODEL, Ollama, Tgi
from tests.gateway.upstreams.nvidia_doubles import TensorrtLlm
from tests.ports import free_port

OF_MESSAGES = ("openai", "anthropic", "ollama", "tgi")
"""Servers that answer conversations; the others continue token ids."""
LLGUIDANCE = "llama.cpp-llguidance"
SUBJECTS = (
    *("roundhouse", "llama.cpp", LLGUIDANCE, "vllm", "sglang", "tensorrt-llm", "onnxruntime"),
    *OF_MESSAGES,
)
VLLM_ITSELF = "vllm-server"
"""vLLM's own server, for which its double stands in `make test`."""


def servers(grammar: bool) -> list[Any]:
    """Parameters of a test. Llama.cpp with llguidance differs from the one without in grammars only."""
    same = () if grammar else pytest.mark.deep
    found = [pytest.param(name, marks=same if name == LLGUIDANCE else ()) for name in SUBJECTS]
    return [*found, pytest.param(VLLM_ITSELF, marks=[pytest.mark.deep, pytest.mark.timeout(900)])]


DEMO_MODEL = Path(__file__).parents[3] / "deploy" / "demo" / "model"
VLLM_OPTIONS = (
    *("--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "8"),
    "--enable-prompt-tokens-details",
    # Else a grammar takes any white space between tokens of JSON, of which the small model writes until its limit.
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
)
VLLM_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
"""Little memory, one thread, nothing that leaves this machine, and no kernels that are compiled amidst an answer: the
first one with log-probabilities took so long that vLLM gave up."""
SILENCE = 30.0
"""Seconds after which a silent server counts as dead, on a machine that may be busy."""


@dataclass
class Subject:
    """A running server."""

    name: str
    address: str
    text: TextProcessor
    running: Callable[[], Awaitable[int]]
    """Returns how many requests the server runs now, as it says itself."""
    long: int
    """Tokens of an answer that takes long, within its context."""
    model: str = ""
    """Name of the model at a server that answers conversations."""
    context: int = CONTEXT
    """Tokens that a model takes whose server does not tell."""

    @property
    def takes_messages(self) -> bool:
        return self.name in OF_MESSAGES

    def ask(
        self,
        client: Upstream,
        question: str,
        sampling: SamplingParams,
        *,
        tools: Sequence[ChatTool] = (),
        must_call: bool = False,
        **options: Any,
    ) -> AnswerStream:
        """Ask a question in the way of the server."""
        if self.takes_messages:
            conversation = ChatPrompt(
                messages=[ChatPromptMessage("user", question)],
                tools=tools,
                must_call=must_call,
                tokens=ceil(estimated_tokens(question)),
            )
            return client.converse(conversation, sampling, **options)
        prompt = self.text.encode_chat([{"role": "user", "content": question}])
        return client.generate(prompt, sampling, text=self.text, **options)

    def client(self, address: str | None = None, silence: float = SILENCE) -> Upstream:
        """Return a client of the server, or of a proxy before it."""
        address = address or self.address
        if self.name == "roundhouse":
            return EngineClient(address, silence=silence)
        access = ServerAccess(lambda: None)
        if self.takes_messages:
            dialect = MESSAGE_DIALECTS[self.name]
            return MessageUpstream(address, dialect, self.model, self.context, access, silence=silence)
        dialect = TOKEN_DIALECTS[self.name]
        if self.name in UNTOLD_CONTEXT:
            dialect = msgspec.structs.replace(dialect, context=self.context)
        return HttpUpstream(address, dialect, self.text, access, silence=silence)

    @contextlib.asynccontextmanager
    async def connected(self, address: str | None = None, silence: float = SILENCE) -> AsyncIterator[Upstream]:
        """Return a client that has connected."""
        async with started(self.client(address, silence)) as client:
            await client.wait_connected()
            yield client


@cache
def processor(model: Path) -> TextProcessor:
    """A model's tokenizer, which all tests share."""
    return TextProcessor.from_path(model)


@contextlib.contextmanager
def _launched(module: str, *arguments: str) -> Iterator[str]:
    """Run a server of bench/ in a process of its own; gives its address once it serves."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ}) as process:
        try:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], 120)
            address = process.stdout.readline().decode().strip() if ready else ""
            assert address, f"{module} did not start"
            yield address
        finally:
            process.kill()


@contextlib.contextmanager
def llama_server(model: Path, *keys: str, adapters: Sequence[Path] = ()) -> Iterator[str]:
    """Run llama.cpp's own server."""
    options = [f"--key={key}" for key in keys] + [f"--lora={path}" for path in adapters]
    with _launched("bench.xllamacpp_server", str(model), str(free_port()), *options) as address:
        yield address


@contextlib.contextmanager
def onnx_server(folder: Path, *options: str) -> Iterator[str]:
    """Run the server around ONNX Runtime's generator."""
    with _launched("bench.onnxruntime_server", str(folder), "--port=0", "--threads=1", *options) as address:
        yield address


@contextlib.contextmanager
def vllm_server(python: Path, log: Path) -> Iterator[str]:
    """Run vLLM's own server with the small model of this repository. Args: python: of an environment with vLLM."""
    address = f"http://127.0.0.1:{free_port()}"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", *VLLM_OPTIONS]
    command += ["--model", str(DEMO_MODEL), "--port", address.rpartition(":")[2]]
    # Elsewhere: its libraries would find packages of ours that are called like some of theirs.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | VLLM_VARIABLES
    with log.open("wb") as file:
        # A session of its own: its engine is a process that it starts.
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=log.parent, env=environment, start_new_session=True
        )
        try:
            while not _healthy(address):
                assert process.poll() is None, log.read_text("utf-8", "replace")[-4000:]
                time.sleep(0.2)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _healthy(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/health", trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


@contextlib.asynccontextmanager
async def of_roundhouse(address: str, model: Path) -> AsyncIterator[Subject]:
    async with EngineClient(address) as watching:

        async def running() -> int:
            return watching.load.running if watching.load else 0

        await watching.wait_connected()
        yield Subject("roundhouse", address, processor(model), running, long=3000)


@contextlib.asynccontextmanager
async def of_llama_cpp(dialect: str, address: str, model: Path) -> AsyncIterator[Subject]:
    async with httpx2.AsyncClient(base_url=address) as http:

        async def running() -> int:
            return sum(slot["is_processing"] for slot in (await http.get("/slots")).json())

        models = (await http.get("/v1/models")).json()["data"]
        yield Subject(dialect, address, processor(model), running, long=900, model=models[0]["id"])


@contextlib.asynccontextmanager
async def of_onnxruntime(address: str, model: Path) -> AsyncIterator[Subject]:
    async with httpx2.AsyncClient(base_url=address) as http:

        async def running() -> int:
            page = (await http.get("/metrics")).text
            return read_metrics(page, {"running": "onnxruntime_requests_running"})["running"]

        yield Subject("onnxruntime", address, processor(model), running, long=6000)


@contextlib.asynccontextmanager
async def of_vllm(address: str) -> AsyncIterator[Subject]:
    async with httpx2.AsyncClient(base_url=address) as http:

        async def running() -> int:
            page = (await http.get("/metrics")).text
            return read_metrics(page, {"running": "vllm:num_requests_running"})["running"]

        yield Subject("vllm", address, processor(DEMO_MODEL), running, long=1900)


@contextlib.asynccontextmanager
async def of_message_double(kind: type[Ollama] | type[Tgi], engine: str, model: Path) -> AsyncIterator[Subject]:
    async with EngineClient(engine) as client:
        await client.wait_connected()
        assert client.info is not None
        double, context = kind(client, processor(model)), client.info.context

        async def running() -> int:
            return double.running

        async with listening(double.app) as address:
            name = "ollama" if kind is Ollama else "tgi"
            yield Subject(name, address, processor(model), running, long=3000, model=MODEL, context=context)


@contextlib.asynccontextmanager
async def of_double(
    kind: type[Vllm] | type[Sglang] | type[TensorrtLlm], engine: str, model: Path
) -> AsyncIterator[Subject]:
    async with EngineClient(engine) as client:
        await client.wait_connected()
        assert client.info is not None
        double, context = kind(client), client.info.context

        async def running() -> int:
            return double.running

        async with listening(double.app) as address:
            yield Subject(kind.dialect, address, processor(model), running, long=3000, context=context)
