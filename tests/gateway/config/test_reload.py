"""A real gateway process takes over new configurations under load, refuses bad ones, and loses no turn."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import pty
import signal
import tempfile
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from click.testing import CliRunner

from gateway.cli.root import main
from tests.gateway.conftest import eventually
from tests.gateway.turns.processes import ANSWER, CountingEngine, GatewayProcess
from tests.ports import free_port

pytestmark = pytest.mark.anyio


class Installation:
    """A gateway, its configuration file, and two engines."""

    def __init__(self, folder: Path, model: Path, redis_url: str, port: int) -> None:
        self.folder = folder
        self.model = model
        self.redis_url = redis_url
        self.config = folder / "roundhouse.toml"
        self.engines = [CountingEngine(folder / f"{name}.sock", model, 0.0) for name in "ab"]
        self.write()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "REDIS_"))}
        self.environment = {**clean, "ROUNDHOUSE_SECRET": "5e" * 32}
        self.gateway = GatewayProcess(self.config, folder, port, self.environment)

    def write(
        self,
        *,
        engines: int = 0b01,
        keys: tuple[str, ...] = ("one",),
        extra: str = "",
        pool: str = "",
        more: tuple[str, ...] = (),
    ) -> None:
        """A configuration with these engines (bits) and keys of the tenant `demo`."""
        used = [engine.address for index, engine in enumerate(self.engines) if engines >> index & 1] + list(more)
        named = ", ".join(f'{{ id = "{key}", sha256 = "{hashlib.sha256(key.encode()).hexdigest()}" }}' for key in keys)
        self.config.write_text(
            f'[redis]\nurl = "{self.redis_url}"\ntimeout = 2.0\n[cache]\nenabled = false\n'
            f'[adapters]\nregistry = "{self.folder}/adapters"\n{extra}\n'
            f'[[tenants]]\nname = "demo"\nkeys = [{named}]\n'
            f'[[pools]]\ntier = "small"\nname = "tiny"\nmodel = "{self.model}"\nengines = {used}\n{pool}\n'
        )

    def client(self, key: str = "one") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.gateway.url}/v1", api_key=key, max_retries=0)

    async def ask(self, client: openai.AsyncOpenAI, **options: Any) -> str:
        text = ""
        stream = await client.responses.create(
            model="tiny", input="hello", stream=True, max_output_tokens=1000, **options
        )
        async for event in stream:
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert event.type == "response.completed", event
        return text

    async def hang_up(self) -> None:
        """SIGHUP, and wait until it has been read."""
        before = await self.reloads()
        assert self.gateway.process is not None
        self.gateway.process.send_signal(signal.SIGHUP)
        while await self.reloads() == before:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.02)

    async def reloads(self) -> float:
        metrics = await self.gateway.metrics()
        return sum(value for name, value in metrics.items() if name.startswith("roundhouse_config_reloads_total"))

    async def has_engines(self, *names: str) -> None:
        """Wait until exactly these replicas are connected."""
        while True:
            up = {
                name: value
                for name, value in (await self.gateway.metrics()).items()
                if name.startswith("roundhouse_engine_up")
            }
            if sum(up.values()) == len(up) == len(names) and all(any(each in name for name in up) for each in names):
                return
            await asyncio.sleep(0.02)

    async def command(self, *words: str) -> tuple[int, str]:
        """`roundhouse <words>`: its exit status and what it says."""
        environment = {**self.environment, "ROUNDHOUSE_REDIS_DATA": str(self.folder / str(self.gateway.port))}
        arguments = [*words, "--config", str(self.config)]
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments, env=environment)
        return result.exit_code, result.output


@pytest.fixture
async def installation(model: Path, redis_url: str) -> AsyncIterator[Installation]:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()  # another test's gateway had another secret
    with tempfile.TemporaryDirectory(prefix="rh-") as name:
        installation = Installation(Path(name), model, redis_url, free_port())
        async with contextlib.AsyncExitStack() as stack:
            for engine in installation.engines:
                await stack.enter_async_context(engine.serving())
            await installation.gateway.start()
            try:
                await installation.gateway.ready()
                yield installation
            finally:
                assert await installation.gateway.stop() == 0, installation.gateway.log.read_text()


async def test_changes_under_load_lose_no_turn(installation: Installation) -> None:
    """Engines, keys, rules and limits come and go; each turn is whole, by the rules that it began with."""
    stopping = asyncio.Event()
    answers: list[str] = []

    async def load(client: openai.AsyncOpenAI) -> None:
        while not stopping.is_set():
            answers.append(await installation.ask(client))

    rules = '[[safety.patterns]]\nname = "number"\npattern = "0[0-9]7"\n[safety.output]\nnumber = "redact"'
    filtered = " ".join("[number]" if 0 <= n < 100 and n % 10 == 7 else f"{n:03}" for n in range(30))
    async with installation.client() as client:
        loads = [asyncio.create_task(load(client)) for _ in range(4)]
        for step, (engines, extra) in enumerate(
            [(0b11, ""), (0b10, rules), (0b11, "[router]\nbreaker_failures = 9"), (0b01, rules), (0b10, ""), (0b01, "")]
        ):
            before = len(answers)
            installation.write(engines=engines, keys=("one", f"key-{step}"), extra=extra)
            await installation.hang_up()
            await eventually(lambda before=before: len(answers) >= before + 4)  # type: ignore[misc]
            async with installation.client(f"key-{step}") as other:
                assert await installation.ask(other) == (filtered if extra == rules else ANSWER)
            if step:
                async with installation.client(f"key-{step - 1}") as old:
                    with pytest.raises(openai.AuthenticationError):
                        await installation.ask(old)
        stopping.set()
        await asyncio.gather(*loads)
        metrics = await installation.gateway.metrics()
    assert set(answers) == {ANSWER, filtered}
    assert all(engine.generated for engine in installation.engines)
    assert metrics['roundhouse_config_reloads_total{outcome="changed"}'] == 6
    async with asyncio.timeout(20):
        await installation.has_engines("small-")


async def test_a_running_turn_keeps_the_rules_and_the_engine_that_it_began_with(installation: Installation) -> None:
    first, second = installation.engines
    async with installation.client() as client:
        first.gate.clear()
        turn = asyncio.create_task(installation.ask(client))
        await eventually(lambda: bool(first.generated))
        installation.write(
            engines=0b10,
            extra='[[safety.patterns]]\nname = "number"\npattern = "0[0-9]7"\n[safety.output]\nnumber = "redact"',
        )
        await installation.hang_up()
        async with asyncio.timeout(20):
            await installation.has_engines("small-0", "small-1")  # the first one has a turn to finish
        assert "[number]" in await installation.ask(client)
        assert second.generated
        first.gate.set()
        assert await turn == ANSWER
        async with asyncio.timeout(20):
            await installation.has_engines("small-1")


async def test_a_replica_is_kept_until_its_successor_answers(installation: Installation) -> None:
    """And comes back if it is named again."""
    first, second = installation.engines
    async with installation.client() as client:
        installation.write(engines=0, more=(f"unix://{installation.folder}/nobody.sock",))
        await installation.hang_up()
        assert await installation.ask(client) == ANSWER
        installation.write(engines=0b01)
        await installation.hang_up()
        assert await installation.ask(client) == ANSWER
        installation.write(engines=0b10)
        await installation.hang_up()
        async with asyncio.timeout(20):
            await installation.has_engines("small-2")
        assert await installation.ask(client) == ANSWER
    assert len(first.generated) == 2
    assert len(second.generated) == 1


GOOD = "[server]\nidle_timeout = 99.0"

BAD = {
    "no TOML": ("[server", "not valid TOML"),
    "an unknown key": ("[server]\nprot = 1", "prot"),
    "a wrong type": ('[router]\nlarge_from = "much"', "large_from"),
    "out of range": ("[limits]\nrequests_per_minute = -1", "requests_per_minute"),
    "values that do not fit together": ("[router]\nmedium_from = 0.9\nlarge_from = 0.1", "must not be above"),
    "a fixed field": ("[server]\nport = 1\nmax_message_bytes = 5", "server.max_message_bytes: cannot change"),
    "an unknown rule": ('[safety.input]\nnope = "block"', "no rule 'nope'"),
    "a missing list": ('[safety]\nblocked = "/nowhere"', "safety.blocked: /nowhere"),
    "a missing library": ('[safety]\npresidio = ["PERSON"]', "pip install presidio-analyzer"),
}


async def test_bad_files_of_every_kind_leave_the_old_configuration_in_force(installation: Installation) -> None:
    """The command line, the log and the metrics say why."""
    async with installation.client() as client:
        for index, (text, reason) in enumerate(BAD.values()):
            installation.write(keys=("two",), extra=text)
            status, said = await installation.command("reload")
            assert status == 1
            assert "the old configuration stays in force" in said
            assert reason in " ".join(said.split())
            metrics = await installation.gateway.metrics()
            assert metrics['roundhouse_config_reloads_total{outcome="refused"}'] == index + 1
            assert metrics["roundhouse_config_valid"] == 0
            assert await installation.ask(client) == ANSWER
        installation.config.unlink()
        assert (await installation.command("reload"))[0] == 1
        installation.write(pool='dtype = "bfloat16"')
        assert "pools.small.dtype" in (await installation.command("reload"))[1]
        installation.write(engines=0)
        assert "pools.small.engines" in (await installation.command("reload"))[1]
        log = installation.gateway.log.read_text()
        assert all(reason.split(":")[0] in log for _, reason in BAD.values())
        installation.write(extra=GOOD)
        assert await installation.command("reload") == (0, "changed: server.idle_timeout\n")
        assert await installation.command("reload") == (0, "nothing has changed\n")
        assert (await installation.gateway.metrics())["roundhouse_config_valid"] == 1


async def test_reload_says_if_no_gateway_runs(installation: Installation) -> None:
    installation.gateway.port, port = 1, installation.gateway.port
    status, said = await installation.command("reload")
    installation.gateway.port = port
    assert status == 1
    assert "no gateway answers" in said


async def test_a_gateway_whose_terminal_is_gone_stops(installation: Installation) -> None:
    """SIGHUP has two meanings."""
    await installation.gateway.stop()
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with installation.gateway.log.open("ab") as log:
        installation.gateway.process = await asyncio.create_subprocess_exec(
            *installation.gateway.command,
            stdin=theirs,
            stdout=log,
            stderr=log,
            env=installation.gateway.environment,
            preexec_fn=take_terminal,
        )
    os.close(theirs)
    await installation.gateway.ready()
    await installation.hang_up()  # read again: the terminal is there
    os.close(ours)
    async with asyncio.timeout(60):
        assert await installation.gateway.process.wait() == 0
