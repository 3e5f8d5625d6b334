"""Adapters that llama.cpp's own server was started with: requests choose among them by version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import gguf
import httpx2
import numpy as np
import pytest

from engine.adapters.registry import AdapterRegistry
from engine.client.generation import RequestInvalid
from engine.client.upstream import Upstream
from engine.wire import SamplingParams
from tests.gateway.conftest import Serve
from tests.gateway.upstreams.subjects import Subject, llama_server, of_llama_cpp

pytestmark = pytest.mark.anyio

RANK = 4
QUESTION = "Name three colours."
SAMPLING = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def write_adapter(path: Path, base: Path) -> Path:
    """Write a random adapter for a GGUF file that changes what the model says."""
    model, random = gguf.GGUFReader(base), np.random.default_rng(0)
    architecture = model.get_field("general.architecture")
    assert architecture is not None
    writer = gguf.GGUFWriter(path, architecture.contents())
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 5.0 * RANK)
    for tensor in model.tensors:
        if tensor.name.endswith("attn_output.weight"):
            inputs, outputs = (int(size) for size in tensor.shape)
            for part, shape in (("a", (RANK, inputs)), ("b", (outputs, RANK))):
                values = random.normal(0, inputs**-0.5, shape).astype(np.float32)
                writer.add_tensor(f"{tensor.name}.lora_{part}", 3 * values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Adapted(NamedTuple):
    """A server with one adapter."""

    address: str
    version: str
    registry: AdapterRegistry


@pytest.fixture(scope="module")
def adapted(smallest_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    pytest.importorskip("xllamacpp")
    folder = tmp_path_factory.mktemp("adapters")
    registry = AdapterRegistry(str(folder / "registry"))
    file = write_adapter(folder / "adapter.gguf", smallest_model)
    version = registry.add(file, smallest_model).version
    with llama_server(smallest_model, adapters=[file.rename(folder / f"{version}.gguf")]) as address:
        yield Adapted(address, version, registry)


@pytest.fixture
async def subject(adapted: Adapted, smallest_model: Path) -> AsyncIterator[Subject]:
    async with of_llama_cpp("llama.cpp", adapted.address, smallest_model) as subject:
        yield subject


async def said(subject: Subject, client: Upstream, version: str | None) -> str:
    async with client.generate(subject.text.encode(QUESTION), SAMPLING, text=subject.text, adapter=version) as answer:
        return "".join([delta.text async for delta in answer])


async def test_requests_with_and_without_an_adapter_get_what_they_ask_for(subject: Subject, adapted: Adapted) -> None:
    """The base model is not changed by what the server applies by itself."""
    async with subject.connected() as client, httpx2.AsyncClient(base_url=subject.address, timeout=120) as http:
        base, changed = await said(subject, client, None), await said(subject, client, adapted.version)
        assert base != changed
        assert (await said(subject, client, None), await said(subject, client, adapted.version)) == (base, changed)
        asked = {"prompt": subject.text.encode(QUESTION), "n_predict": 12, "temperature": 0.0, "ignore_eos": True}
        assert (await http.post("/completion", json=asked)).json()["content"] == changed
        assert client.load is not None and client.load.adapters == (adapted.version,)


async def test_one_that_it_was_not_started_with_is_refused_with_the_remedy(subject: Subject) -> None:
    async with subject.connected() as client:
        with pytest.raises(RequestInvalid, match=f"start it with `--lora {'a' * 64}.gguf`") as refused:
            client.generate([5, 6], SAMPLING, adapter="a" * 64)
        assert refused.value.field == "adapter"


async def test_clients_ask_for_it_by_its_public_name(serve: Serve, adapted: Adapted, smallest_model: Path) -> None:
    adapted.registry.point("painter", adapted.version, model="smollm2")
    pool = {"dialect": "llama.cpp", "model": str(smallest_model), "name": "smollm2"}
    adapters = {"registry": adapted.registry.url}
    async with serve(engines={"small": [adapted.address]}, pool=pool, adapters=adapters) as served:
        asked = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 12}
        answers = {
            name: (await served.client.chat.completions.create(model=name, **asked)).choices[0].message.content
            for name in ("smollm2", "painter")
        }
        assert answers["smollm2"] != answers["painter"]
        await served.settle()
