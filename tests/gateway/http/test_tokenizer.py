"""vLLM's endpoints for tokens; the `tokenizers` library is the oracle."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from engine.adapters.registry import AdapterRegistry
from gateway.config.settings import SafetySettings
from tests.engine.adapters.zoo import write_adapter
from tests.engine.checkpoints import VOCABULARY
from tests.gateway.conftest import CONTEXT, KEY, EngineThread, Serve, Served, eventually
from tests.gateway.http.test_refusals import refused

pytestmark = pytest.mark.anyio

TEXT = "hello <|user|> wörld\n"
USER = [{"role": "user", "content": "hello"}]
ENDPOINTS: list[tuple[str, dict[str, Any] | None]] = [
    ("/tokenize", {"prompt": "a"}),
    ("/detokenize", {"tokens": [5]}),
    ("/tokenizer_info", None),
]
"""Each with a body that is answered."""


@pytest.fixture
def beginning(model: Path, tmp_path: Path) -> tuple[Path, Tokenizer]:
    """The model with a tokenizer that begins each text with `<s>`, and that tokenizer."""
    folder = tmp_path / "beginning"
    shutil.copytree(model, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, tokenizer


async def call(served: Served, path: str, body: dict[str, Any] | None = None, key: str | None = KEY) -> httpx2.Response:
    """POST a body, or GET without one."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, verify=False) as client:
        return await client.request("GET" if body is None else "POST", f"{served.url}{path}", json=body)


async def test_a_text_has_the_tokens_of_the_tokenizer(serve: Serve, beginning: tuple[Path, Tokenizer]) -> None:
    """With what it puts around a text unless that is left out; and back, control tokens included."""
    folder, oracle = beginning
    async with serve(pool={"model": str(folder)}) as served:
        for special in (None, True, False):
            body = {"model": "small", "prompt": TEXT, "return_token_strs": True}
            found = (await call(served, "/tokenize", body | {"add_special_tokens": special})).json()
            expected = oracle.encode(TEXT, add_special_tokens=special is not False)
            assert found == {
                "count": len(expected.ids),
                "max_model_len": CONTEXT,
                "tokens": expected.ids,
                "token_strs": expected.tokens,
            }
            back = await call(served, "/detokenize", {"tokens": found["tokens"]})
            assert back.json() == {"prompt": oracle.decode(expected.ids, skip_special_tokens=False)}
        empty = await call(served, "/tokenize", {"prompt": "", "add_special_tokens": False})
        assert empty.json() == {"count": 0, "max_model_len": CONTEXT, "tokens": []}
        assert (await call(served, "/detokenize", {"tokens": []})).json() == {"prompt": ""}
        # The same at `/v1/completions`, whose usage is what was computed.
        for special in (True, False):
            counted = await served.client.completions.create(
                model="small", prompt=TEXT, max_tokens=1, extra_body={"add_special_tokens": special}
            )
            expected = oracle.encode(TEXT, add_special_tokens=special)
            assert counted.usage is not None and counted.usage.prompt_tokens == len(expected.ids)
        await served.settle()


async def test_a_conversation_has_the_tokens_of_its_prompt(serve: Serve, model: Path) -> None:
    """As many as a turn is charged for, tools included; those that its text imitates are text."""
    oracle = Tokenizer.from_file(str(model / "tokenizer.json"))
    tools = [{"type": "function", "function": {"name": "roll", "parameters": {"type": "object"}}}]
    async with serve() as served:
        plain = (await call(served, "/tokenize", {"messages": USER})).json()
        without = (await call(served, "/tokenize", {"messages": USER, "add_generation_prompt": False})).json()
        said = [*USER, {"role": "assistant", "content": "I am"}]
        begun = (await call(served, "/tokenize", {"messages": said, "continue_final_message": True})).json()
        called = (await call(served, "/tokenize", {"messages": USER, "tools": tools})).json()
        chat = await served.client.chat.completions.create(
            model="small",
            messages=USER,  # type: ignore[arg-type]
            tools=tools,  # type: ignore[arg-type]
            max_tokens=1,
        )
        await served.settle()
    assert begun["tokens"] == oracle.encode("<|user|>hello\n<|assistant|>I am").ids
    assert plain["tokens"] == oracle.encode("<|user|>hello\n<|assistant|>").ids
    assert without["tokens"] == oracle.encode("<|user|>hello\n").ids
    assert chat.usage is not None and called["count"] == chat.usage.prompt_tokens > plain["count"]


async def test_what_a_harness_reads_of_the_tokenizer(serve: Serve) -> None:
    """lm-evaluation-harness takes its remote tokenizer from `eos_token` and `chat_template`."""
    async with serve() as served:
        for path in ("/tokenizer_info", "/tokenizer_info?model=tiny-small"):
            found = (await call(served, path)).json()
            assert (found["eos_token"], found["model_max_length"]) == ("</s>", CONTEXT)
            assert found["tokenizer_class"] == "PreTrainedTokenizerFast"
            assert "{% for message in messages %}" in found["chat_template"]
        end = (await call(served, "/tokenize", {"prompt": found["eos_token"], "add_special_tokens": False})).json()
        assert end["tokens"] == [2]


async def test_an_adapter_has_the_tokens_of_its_model(serve: Serve, model: Path, tmp_path: Path) -> None:
    registry = AdapterRegistry(str(tmp_path / "adapters"))
    version = registry.add(write_adapter(tmp_path / "adapter", model, "only q_proj", seed=1), model).version
    registry.point("pirate", version, model="tiny-small", tenants=("demo",))
    async with serve() as served:
        await eventually(lambda: "pirate" in served.gateway.adapters.visible("demo"))
        found = await call(served, "/tokenize", {"model": "pirate", "prompt": TEXT})
        expected = await call(served, "/tokenize", {"model": "small", "prompt": TEXT})
        assert found.json() == expected.json()


async def test_a_name_of_models_with_different_tokenizers_is_refused(serve: Serve, engine: EngineThread) -> None:
    """But not one of models with the same tokenizer."""
    engines = {"small": [engine.address], "large": [engine.address]}
    async with serve(engines=engines) as served:
        assert (await call(served, "/tokenize", {"prompt": TEXT})).status_code == 200
        served.gateway.engines.pools[1].vocabulary = "another"
        for path, body in ENDPOINTS:
            message = refused(await call(served, path, body), 400, "invalid_value", "model")
            assert "tiny-small, tiny-large" in message
        assert (await call(served, "/tokenize", {"model": "large", "prompt": TEXT})).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/tokenize", {}, "missing_required_parameter", "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "invalid_value", "messages"),
        ("/tokenize", {"messages": USER, "add_special_tokens": True}, "unsupported_parameter", "add_special_tokens"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "invalid_value", "messages[0].content"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "unknown_parameter", "chat_template"),
        ("/detokenize", {}, "missing_required_parameter", "tokens"),
        ("/detokenize", {"tokens": "a"}, "invalid_value", "tokens"),
        ("/detokenize", {"tokens": [1, VOCABULARY]}, "invalid_value", "tokens"),
    ],
)
async def test_what_is_refused_is_named(serve: Serve, path: str, body: dict[str, Any], code: str, param: str) -> None:
    async with serve() as served:
        refused(await call(served, path, body), 400, code, param)


async def test_keys_models_and_limits_hold(serve: Serve) -> None:
    """They are requests like others, and no turns: none is in the metrics."""
    async with serve(limits={"requests_per_minute": 3}) as served:
        for path, body in ENDPOINTS:
            refused(await call(served, path, body, key=None), 401, "missing_api_key")
        for path, body in ENDPOINTS:
            assert (await call(served, path, body)).status_code == 200
        for path, body in ENDPOINTS:
            refused(await call(served, path, body), 429, "rate_limit_exceeded")
        for path, body in ENDPOINTS[:2]:
            refused(await call(served, path, {**(body or {}), "model": "nobody"}), 404, "model_not_found", "model")
        refused(await call(served, "/tokenizer_info?model=nobody"), 404, "model_not_found", "model")
        await served.settle()
        families = served.gateway.metrics.registry.collect()
        assert not [each for family in families for each in family.samples if each.name == "roundhouse_turns_total"]


async def test_safety_rules_hold_for_prompts_and_not_for_tokens(serve: Serve) -> None:
    """A prompt has the tokens that the model would read; of tokens nothing but their own text is told."""
    async with serve(safety=SafetySettings(input={"email": "redact"})) as served:
        found = (await call(served, "/tokenize", {"prompt": "to ann@example.com"})).json()
        hidden = (await call(served, "/tokenize", {"prompt": "to [email]"})).json()
        assert found == hidden
        assert (await call(served, "/detokenize", {"tokens": found["tokens"]})).json() == {"prompt": "to [email]"}
