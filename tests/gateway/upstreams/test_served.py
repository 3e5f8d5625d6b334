"""A gateway in front of llama.cpp's own server: what clients of the gateway get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import openai
import pytest

from gateway.config.settings import PoolSettings
from tests.e2e.conftest import Installation
from tests.gateway.conftest import EngineThread, Serve, eventually
from tests.gateway.processes.test_extras import BLOCKER, NOT_IN_BASE
from tests.gateway.upstreams.subjects import llama_server

KEY = "sk-llama"
QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def llama_cpp(smallest_model: Path) -> Iterator[str]:
    """A server that wants a key."""
    pytest.importorskip("xllamacpp")
    with llama_server(smallest_model, KEY) as address:
        yield address


@pytest.fixture
def pool(smallest_model: Path, tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    return {"dialect": "llama.cpp", "model": str(smallest_model), "api_key_file": str(file), "name": "smollm2"}


@pytest.mark.anyio
async def test_an_answer_is_streamed_counted_and_cached(serve: Serve, llama_cpp: str, pool: dict[str, str]) -> None:
    async with serve(engines={"small": [llama_cpp]}, pool=pool) as served:
        asked = {"model": "small", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
        first = await served.client.chat.completions.create(**asked)
        stream = await served.client.chat.completions.create(**asked, seed=1, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "".join(pieces) == first.choices[0].message.content
        assert len([piece for piece in pieces if piece]) > 1
        assert first.usage is not None and first.usage.completion_tokens == 12
        again = await served.client.chat.completions.create(**asked)
        assert again.choices == first.choices
        await served.settle()


@pytest.mark.anyio
async def test_structured_output_stop_strings_and_log_probabilities(
    serve: Serve, llama_cpp: str, pool: dict[str, str]
) -> None:
    async with serve(engines={"small": [llama_cpp]}, pool=pool) as served:
        create = served.client.chat.completions.create
        schema = {
            "type": "object",
            "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        }
        answer = await create(
            model="small",
            messages=QUESTION,
            max_tokens=60,
            response_format={"type": "json_schema", "json_schema": {"name": "colour", "schema": schema}},
        )
        assert json.loads(answer.choices[0].message.content or "")["colour"] in ("red", "blue")
        whole = await create(model="small", messages=QUESTION, temperature=0, max_tokens=12, logprobs=True)
        said = whole.choices[0].message.content or ""
        assert whole.choices[0].logprobs is not None
        assert "".join(each.token for each in whole.choices[0].logprobs.content or ()) == said
        stop = said[4:7]
        cut = await create(model="small", messages=QUESTION, temperature=0, max_tokens=12, stop=[stop])
        assert cut.choices[0].message.content == said[: said.index(stop)]
        with pytest.raises(openai.BadRequestError) as refused:
            await create(model="small", messages=QUESTION, extra_body={"structured_outputs": {"regex": "[ab]+"}})
        assert "llama.cpp" in refused.value.message
        await served.settle()


@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_named_and_leaves_others_alone(
    serve: Serve, llama_cpp: str, pool: dict[str, str]
) -> None:
    async with serve(engines={"small": [llama_cpp, "http://127.0.0.1:9"]}, pool=pool) as served:
        engines = served.gateway.engines.pools[0].engines
        await eventually(lambda: [engine.client.connected for engine in engines] == [True, False])
        answer = await served.client.chat.completions.create(model="small", messages=QUESTION, max_tokens=4)
        assert answer.choices[0].message.content
        await served.settle()


@pytest.mark.anyio
async def test_pools_of_both_kinds_stand_beside_each_other(
    serve: Serve, llama_cpp: str, pool: dict[str, str], engine: EngineThread, model: Path
) -> None:
    pools = [
        PoolSettings(tier="small", name="tiny", model=str(model), engines=[engine.address]),
        PoolSettings(tier="large", engines=[llama_cpp], **pool),  # type: ignore[arg-type]
    ]
    async with serve(pools=pools) as served:
        for name in ("tiny", "smollm2"):
            answer = await served.client.chat.completions.create(model=name, messages=QUESTION, max_tokens=4)
            assert answer.model == name
        # The tier whose server is away is answered for by the other one.
        large = served.gateway.engines.pools[-1]
        await large.engines[0].client.aclose()
        answer = await served.client.chat.completions.create(model="large", messages=QUESTION, max_tokens=4)
        assert answer.model == "tiny"
        await served.settle()


@pytest.fixture
def gateway_only(llama_cpp: str, pool: dict[str, str], tmp_path: Path) -> Iterator[Installation]:
    """`roundhouse serve` where only the base of the package is installed."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(missing=NOT_IN_BASE))
    file = tmp_path / "roundhouse.toml"
    fields = "".join(f'{name} = "{value}"\n' for name, value in pool.items())
    digest = sha256(b"roundhouse-demo").hexdigest()
    tenant = f'[[tenants]]\nname = "demo"\nkeys = [{{ id = "demo", sha256 = "{digest}" }}]\n'
    file.write_text(f'{tenant}[[pools]]\ntier = "small"\nengines = ["{llama_cpp}"]\n{fields}')
    path = f"{tmp_path}:{Path(__file__).parents[3]}"
    running = Installation(tiers=(), ROUNDHOUSE_CONFIG=str(file), PYTHONPATH=path)
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


def test_a_host_without_torch_serves_a_model_of_another_server(gateway_only: Installation) -> None:
    assert gateway_only.pids("engine.server") == []
    with openai.OpenAI(base_url=gateway_only.api, api_key="roundhouse-demo") as client:
        answer = client.chat.completions.create(model="small", messages=QUESTION, max_tokens=4)  # type: ignore[arg-type]
    assert answer.choices[0].message.content
    assert KEY not in gateway_only.log.read_text()
