"""The engine as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import pytest
from click.testing import CliRunner

from engine.checkpoint.files import revision_digest, served_revision
from engine.checkpoint.manifest import describe, write_manifest
from engine.client.engine_client import EngineClient
from engine.client.generation import EngineGone, RequestFailed
from engine.server.command import CONFIGURATION_ERROR, DEVICE_LOST, HUNG, main
from engine.wire import SamplingParams
from tests.engine.checkpoint.gguf.miniature import write_gguf
from tests.engine.checkpoints import CONTEXT, oracle_greedy, random_prompt
from tests.engine.conftest import Checkpoint
from tests.engine.faulty_engine import ENDLESS, FATAL, POISON

pytestmark = pytest.mark.anyio

TIMEOUT = 120
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


class Shared(NamedTuple):
    """An engine that several tests ask: each takes two seconds to start, mostly to import torch.

    Attributes:
        directory: the checkpoint from which its GGUF file is made.
        ready: what it has said when it could answer.
    """

    directory: Path
    ready: dict[str, object]


@contextlib.asynccontextmanager
async def engine_process(*options: str, module: str = "engine.server") -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m engine.server`, killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "--threads", "1", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=ENVIRONMENT,
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def readiness(process: asyncio.subprocess.Process) -> dict[str, object]:
    assert process.stdout is not None
    line: dict[str, object] = json.loads(await process.stdout.readline())
    return line


async def test_it_serves_a_checkpoint_until_sigterm_hands_running_requests_on(checkpoint: Checkpoint) -> None:
    """What was said stays said, and the process ends well."""
    directory = checkpoint("llama", max_position_embeddings=8192)
    options = ["--model", str(directory), "--name", "tiny", "--kv-tokens", "4040", "--drain-timeout", "0"]
    async with engine_process(*options) as process:
        ready = await readiness(process)
        # 4040 tokens are 253 blocks, less than the model's context.
        assert {key: ready[key] for key in ("event", "model", "context")} == {
            "event": "ready",
            "model": "tiny",
            "context": 4048,
        }
        async with EngineClient(str(ready["address"])) as client:
            await client.wait_connected()
            assert client.info is not None
            assert (client.info.name, client.info.device, client.info.dtype) == ("tiny", "cpu", "float32")
            prompt = random_prompt(20)
            async with client.generate(prompt, GREEDY) as generation:
                tokens = [token async for delta in generation for token in delta.token_ids]
            assert tokens == oracle_greedy(directory, prompt, 8)
            endless = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)
            async with client.generate(prompt, endless) as generation:
                await anext(generation)
                process.send_signal(signal.SIGTERM)
                with pytest.raises(EngineGone) as gone:
                    async for _ in generation:
                        pass
            assert gone.value.started and gone.value.leaving
        assert await process.wait() == 0


async def test_it_quantises_weights_and_stretches_a_context_under_a_revision_of_their_own(
    checkpoint: Checkpoint,
) -> None:
    directory = checkpoint("qwen2")
    options = ["--model", str(directory), "--dtype", "bfloat16", "--quantize", "int4", "--yarn-factor", "4"]
    async with engine_process(*options) as process:
        ready = await readiness(process)
        assert ready["context"] == 4 * CONTEXT
        async with EngineClient(str(ready["address"])) as client:
            await client.wait_connected()
            assert client.info is not None
            assert client.info.revision == served_revision(revision_digest(directory), "int4", 4.0)
            async with client.generate(random_prompt(20), GREEDY) as generation:
                assert len([token async for delta in generation for token in delta.token_ids]) == 8


@pytest.fixture(scope="module")
def shared(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    directory = checkpoint("llama", vocab_size=512)
    file = write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", directory)
    write_manifest(file, describe(file))
    options = ["--kv-tokens", "256", "--kv-host-bytes", str(1 << 20), *drafting("auto", file)]
    command = [sys.executable, "-m", "engine.server", "--threads", "1", "--model", str(file), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        yield Shared(directory, json.loads(process.stdout.readline()))
        process.kill()


def drafting(how: str, model: Path) -> list[str]:
    draft = [] if how == "ngram" else ["--draft-model", str(model)]
    return ["--speculate", how, "--draft-tokens", "3", *draft]


async def test_it_serves_a_gguf_file_by_itself_and_as_a_draft_model(shared: Shared) -> None:
    assert shared.ready["model"] == "tiny"
    async with EngineClient(str(shared.ready["address"])) as client:
        await client.wait_connected()
        prompt = random_prompt(20)
        async with client.generate(prompt, GREEDY) as generation:
            tokens = [token async for delta in generation for token in delta.token_ids]
        assert tokens == oracle_greedy(shared.directory, prompt, 8)


async def test_it_speculates_and_says_how_well(shared: Shared) -> None:
    await speculates(shared)


@pytest.mark.deep
@pytest.mark.parametrize("how", ["draft", "ngram"])
async def test_it_speculates_in_another_way(how: str, checkpoint: Checkpoint) -> None:
    directory = checkpoint("llama")
    async with engine_process("--model", str(directory), *drafting(how, directory)) as process:
        await speculates(Shared(directory, await readiness(process)))


async def speculates(served: Shared) -> None:
    async with EngineClient(str(served.ready["address"])) as client:
        await client.wait_connected()
        prompt = random_prompt(12) * 3
        # Long enough for a random model to run in circles.
        sampling = msgspec.structs.replace(GREEDY, max_tokens=150)
        async with client.generate(prompt, sampling) as generation:
            tokens = [token async for delta in generation for token in delta.token_ids]
        assert tokens == oracle_greedy(served.directory, prompt, 150)
        assert client.load is not None
        assert 0 < client.load.accepted_tokens <= client.load.drafted_tokens


async def test_what_it_evicts_comes_back_from_host_memory(shared: Shared) -> None:
    async with EngineClient(str(shared.ready["address"])) as client:
        await client.wait_connected()
        prompt = random_prompt(80)
        for asked in (prompt, random_prompt(240, seed=1), prompt):
            async with client.generate(asked, GREEDY) as generation:
                tokens = [token async for delta in generation for token in delta.token_ids]
        assert tokens == oracle_greedy(shared.directory, prompt, 8)
        assert client.load is not None
        assert client.load.host_hit_tokens >= 64


def damaged(checkpoint: Checkpoint, folder: Path, at: int) -> tuple[Path, str]:
    """A GGUF file with a byte that its manifest does not know, and what is said of it."""
    file = write_gguf(folder / "tiny.gguf", checkpoint("llama", vocab_size=512))
    write_manifest(file, describe(file))
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    return file, f"{file} is damaged or exchanged: bytes 0 to {len(content) - 1:,} are not those"


def test_a_changed_byte_of_a_header_ends_it_with_file_and_place(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Loading fails for another reason there, before it takes requests."""
    file, message = damaged(checkpoint, tmp_path, 8)
    result = CliRunner().invoke(main, ["--model", str(file), "--verify", "strict"])
    assert (result.exit_code, message in result.stderr, result.stdout) == (CONFIGURATION_ERROR, True, "")


async def test_a_changed_byte_of_weights_ends_it_while_it_serves(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file, message = damaged(checkpoint, tmp_path, -1)
    async with engine_process("--model", str(file), "--verify", "background") as process:
        _, error = await process.communicate()
        assert process.returncode == CONFIGURATION_ERROR
        assert message in error.decode()


async def test_quantising_fp32_is_refused_with_what_to_do(checkpoint: Checkpoint) -> None:
    result = CliRunner().invoke(main, ["--model", str(checkpoint("llama")), "--quantize", "int8"])
    assert result.exit_code == CONFIGURATION_ERROR
    assert "weights in float32 cannot be quantised to int8; choose bfloat16" in result.output
    assert gc.isenabled()


async def test_host_memory_that_holds_no_block_is_refused(checkpoint: Checkpoint) -> None:
    result = CliRunner().invoke(main, ["--model", str(checkpoint("llama")), "--kv-host-bytes", "10"])
    assert (result.exit_code, "10 bytes hold no block" in result.output) == (2, True), result.output


async def test_a_checkpoint_with_another_digest_is_refused(checkpoint: Checkpoint) -> None:
    path = str(checkpoint("llama"))
    result = CliRunner().invoke(main, ["--model", path, "--sha256", "0" * 64])
    assert (result.exit_code, f"not {'0' * 64}" in result.output) == (2, True), result.output
    assert result.output.count(path) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--speculate", "draft"], "--speculate draft needs --draft-model; without one choose ngram or auto"),
        (["--draft-model", "MODEL"], "--draft-model is of no use with --speculate off; choose draft or auto"),
        (["--speculate", "auto", "--draft-model", "OTHER"], "the draft model has 300 tokens and the model 320"),
    ],
)
async def test_a_draft_model_that_cannot_be_used_is_refused(
    options: list[str], message: str, checkpoint: Checkpoint
) -> None:
    directories = {"MODEL": str(checkpoint("llama")), "OTHER": str(checkpoint("llama", vocab_size=300))}
    result = CliRunner().invoke(main, ["--model", directories["MODEL"], *(directories.get(o, o) for o in options)])
    assert (result.exit_code, message in result.output) == (2, True), result.output


@pytest.mark.deep
async def test_its_death_is_noticed(checkpoint: Checkpoint, tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/engine.sock"
    async with engine_process("--model", str(checkpoint("llama")), "--listen", address) as process:
        assert (await readiness(process))["address"] == address
        async with EngineClient(address) as client:
            await client.wait_connected()
            process.send_signal(signal.SIGSTOP)  # it must not finish first
            generation = client.generate(random_prompt(20), GREEDY)
            process.kill()
            with pytest.raises(EngineGone):
                while True:
                    await anext(generation)


async def test_a_request_that_fails_costs_itself_only_and_a_lost_device_ends_it_with_a_status_of_its_own(
    checkpoint: Checkpoint,
) -> None:
    """However often the one comes. After the other its supervisor starts a fresh one, and its clients ask another."""
    directory = checkpoint("llama")
    options = ["--model", str(directory), "--kv-tokens", "200"]
    async with engine_process(*options, module="tests.engine.faulty_engine") as process:
        address = str((await readiness(process))["address"])
        async with EngineClient(address) as client:
            await client.wait_connected()
            for _ in range(10):
                with pytest.raises(RequestFailed) as failed:
                    await anext(client.generate([POISON, 5], GREEDY))
                assert type(failed.value) is RequestFailed
            prompt = random_prompt(20)
            async with client.generate(prompt, GREEDY) as generation:
                tokens = [token async for delta in generation for token in delta.token_ids]
            assert tokens == oracle_greedy(directory, prompt, 8)
            with pytest.raises(EngineGone) as gone:
                await anext(client.generate([FATAL, 5], GREEDY))
            assert not gone.value.started
            _, errors = await process.communicate()
    assert process.returncode == DEVICE_LOST
    assert (
        b"CRITICAL engine.execution.device_check the device does not compute any more: 3 steps in a row failed"
        in errors
    )
    assert errors.endswith(b"engine: the device does not compute any more: 3 steps in a row failed\n")


@pytest.mark.parametrize("stopped", [pytest.param(False, marks=pytest.mark.deep), True])
async def test_it_ends_with_a_status_of_its_own_when_a_step_hangs(checkpoint: Checkpoint, stopped: bool) -> None:
    """Within seconds, though its event loop is alive and sends heartbeats; its log says where each thread is. Also when
    it is about to stop, and waits for the step.
    """
    options = ["--model", str(checkpoint("llama")), "--kv-tokens", "200", "--drain-timeout", "0"]
    async with engine_process(*options, module="tests.engine.faulty_engine") as process:
        async with EngineClient(str((await readiness(process))["address"])) as client:
            await client.wait_connected()
            endless = client.generate([ENDLESS, 5], GREEDY)
            if stopped:
                await asyncio.sleep(0.5)
                process.send_signal(signal.SIGTERM)
            with pytest.raises(EngineGone):
                await anext(endless)
        _, errors = await process.communicate()
    assert process.returncode == HUNG
    assert b"in launch" in errors
    assert errors.endswith(b"engine: a step takes far longer than predicted; where each thread is stands above\n")


async def test_a_directory_that_is_no_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--model", str(tmp_path)])
    assert (result.exit_code, type(result.exception)) == (2, SystemExit)
    assert "config.json" in result.output


def test_every_option_is_explained() -> None:
    page = CliRunner().invoke(main, ["--help"])
    assert page.exit_code == 0
    assert "Examples:" in page.output
    assert all(option.help for option in main.params if isinstance(option, click.Option))


@pytest.mark.parametrize("option", ["--threads", "--kv-tokens", "--max-running", "--step-tokens"])
def test_a_number_out_of_range_is_refused(option: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--model", str(tmp_path), option, "0"])
    assert result.exit_code == 2
    assert option in result.output
