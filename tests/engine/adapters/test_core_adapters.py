"""Adapters in a whole engine: loads beside the steps, failures, cancellation, hints and swaps."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from engine.adapters.residency import ResidencyConfig
from engine.adapters.states import IN_LINE, AdapterVersionState
from engine.core import EngineCore, EngineFeatures, RequestError, SchedulerConfig
from engine.request import Request
from engine.speculation.costs import StepCosts
from engine.speculation.speculator import Speculator
from engine.wire import Generate, Load, Output, SamplingParams
from tests.engine.adapters.ledger_bank import LedgerBank
from tests.engine.ledger_host import LedgerHost
from tests.engine.ledger_runner import expected_output, model_info

TIMEOUT = 30
V, W, X = (digit * 64 for digit in "123")
_SIZES = {"share", "host_bytes", "step_bytes", "wait", "loads"}


class VersionBank(LedgerBank):
    """Versions that begin with "bad" in hexadecimal are not registered. `gate` holds loads up."""

    gate: threading.Semaphore | None = None

    def prepare(self, version: str) -> int:
        if self.gate is not None:
            assert self.gate.acquire(timeout=TIMEOUT)
        return super().prepare(version)


class Hosted:
    """A core and whoever hosts it: sleeps when there is nothing to do."""

    def __init__(
        self,
        blocks: int = 32,
        *,
        sizes: dict[str, int] | None = None,
        speculator: Speculator | None = None,
        host_blocks: int = 0,
        **config: Any,
    ) -> None:
        residency = ResidencyConfig(**{name: config.pop(name) for name in _SIZES & config.keys()})
        self.bank = VersionBank(blocks, sizes)
        scheduler = SchedulerConfig(blocks, **{"step_tokens": 64, "max_running": 8} | config)
        self.core = EngineCore(
            self.bank,
            model_info(),
            scheduler,
            EngineFeatures(
                bank=self.bank,
                residency=residency,
                speculator=speculator,
                host=LedgerHost(self.bank, host_blocks) if host_blocks else None,
            ),
        )
        self._woken = threading.Semaphore(0)
        self.core.wake = self._woken.release
        self.steps = 0

    def ask(self, id: str, prompt: list[int], max_tokens: int = 4, **fields: Any) -> None:
        self.core.add(Generate(id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **fields))

    def step(self) -> list[Output]:
        if self.core.stalled:
            assert self._woken.acquire(timeout=TIMEOUT), "a stalled core is never woken"
        self.steps += 1
        return self.core.step()

    def drain(self) -> dict[str, list[Output]]:
        outputs: dict[str, list[Output]] = {}
        while not self.core.idle:
            for output in self.step():
                outputs.setdefault(output.id, []).append(output)
        self.core.check_integrity()
        return outputs

    def until_resident(self, *versions: str) -> None:
        while not set(versions) <= set(self.core.resident_adapters):
            assert self._woken.acquire(timeout=TIMEOUT)
            self.core.step()


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    hosted = Hosted()
    with contextlib.closing(hosted.core):
        yield hosted


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def test_requests_with_adapters_get_the_tokens_of_their_adapter(hosted: Hosted) -> None:
    prompt = list(range(40))
    for id, adapter in (("a", V), ("b", W), ("c", None), ("d", V)):
        hosted.ask(id, prompt, adapter=adapter)
    outputs = hosted.drain()
    for id, adapter in (("a", V), ("b", W), ("c", None), ("d", V)):
        assert tokens(outputs[id]) == expected_output(prompt, 4, adapter)


def test_a_prefix_is_shared_within_an_adapter_and_a_salt_only(hosted: Hosted) -> None:
    prompt = list(range(40))
    order = [(V, b""), (V, b"x"), (W, b""), (None, b""), (None, b"x"), (V, b""), (W, b""), (V, b"x"), (None, b"")]
    cached = []
    for id, (adapter, salt) in enumerate(order):
        hosted.ask(str(id), prompt, adapter=adapter, salt=salt)
        last = hosted.drain()[str(id)][-1]
        assert last.usage is not None
        cached.append(last.usage.cached_tokens)
    assert cached == [0] * 5 + [32] * 4


def test_a_prefix_outlives_its_adapter_on_the_device() -> None:
    """What identifies a prefix is the adapter's content: it is still right when the adapter comes back."""
    hosted = Hosted(16, share=0.1)
    prompt = list(range(40))
    for id, adapter in enumerate([V, W, V]):
        hosted.ask(str(id), prompt, adapter=adapter)
        last = hosted.drain()[str(id)][-1]
    assert hosted.bank.log.count(f"install {V}") == 2
    assert last.usage is not None
    assert last.usage.cached_tokens == 32
    hosted.core.close()


def test_no_step_waits_for_a_load(hosted: Hosted) -> None:
    hosted.bank.gate = threading.Semaphore(0)
    hosted.ask("a", [1, 2], adapter=V)
    hosted.ask("base", [3, 4], 20)
    gained: Counter[str] = Counter()
    while gained["base"] < 20:
        assert not hosted.core.stalled
        gained.update(output.id for output in hosted.step())
    assert hosted.core.stalled
    hosted.bank.gate.release()
    assert tokens(hosted.drain()["a"]) == expected_output([1, 2], 4, V)


def test_a_stalled_core_needs_no_steps(hosted: Hosted) -> None:
    hosted.bank.gate = threading.Semaphore(0)
    hosted.ask("a", [1, 2], adapter=V)
    hosted.step()
    assert hosted.core.stalled
    assert not hosted.core.idle
    hosted.bank.gate.release()
    hosted.drain()
    # One that begins the load, one that begins the copy, and one for each token; a wake-up may come late, twice.
    assert hosted.steps <= 2 + 4 + 2


def test_a_bad_adapter_costs_the_requests_that_name_it_and_nothing_else(hosted: Hosted) -> None:
    bad = "bad" + "0" * 61
    hosted.ask("a", [1], adapter=bad)
    hosted.ask("b", [1], adapter=bad)
    hosted.ask("c", [1], adapter=V)
    outputs = hosted.drain()
    for id in "ab":
        (output,) = outputs[id]
        assert (output.finish, output.error_kind) == ("error", "invalid")
        assert output.error == "adapter: is not registered"
    assert tokens(outputs["c"]) == expected_output([1], 4, V)


def test_an_adapter_that_is_too_large_is_refused() -> None:
    hosted = Hosted(8, sizes={V: 5})
    hosted.ask("a", [1], adapter=V)
    (output,) = hosted.drain()["a"]
    assert (output.finish, output.error_kind) == ("error", "invalid")
    assert (output.error or "").startswith(f"adapter: '{V}' needs 5 KV blocks")
    hosted.core.close()


def test_an_engine_without_adapters_refuses_them() -> None:
    bank = LedgerBank(8)
    core = EngineCore(bank, model_info(), SchedulerConfig(8))
    with pytest.raises(RequestError, match="adapter: this engine serves none"):
        core.add(Generate("a", [1], SamplingParams(), adapter=V))
    core.announce(V)
    core.pin([V])
    assert (core.step(), bank.log) == ([], [])


def test_the_context_is_what_adapters_leave() -> None:
    core = EngineCore(LedgerBank(16), model_info(), SchedulerConfig(16), EngineFeatures(bank=LedgerBank(16)))
    assert core.model.context == 8 * 16


@pytest.mark.parametrize("resident", [False, True])
def test_a_cancelled_request_leaves_no_reference(hosted: Hosted, resident: bool) -> None:
    hosted.ask("a", [1], 100, adapter=V)
    hosted.step()
    while resident and V not in hosted.core.resident_adapters:
        hosted.step()
    hosted.core.cancel("a")
    (output,) = hosted.drain()["a"][-1:]
    assert output.finish == "cancelled"
    adapters = hosted.core._scheduler.adapters
    assert adapters.standing_aside == 0
    assert adapters.residency.state(V) not in (*IN_LINE, AdapterVersionState.DRAINING)


def test_an_announced_adapter_waits_on_the_host(hosted: Hosted) -> None:
    hosted.core.announce(V)
    hosted.core.announce("../etc/passwd")
    hosted.core.step()
    assert hosted._woken.acquire(timeout=TIMEOUT)
    hosted.core.step()
    assert hosted.bank.log == [f"prepare {V}"]
    hosted.ask("a", [1], adapter=V)
    hosted.drain()
    assert hosted.bank.log == [f"prepare {V}", f"install {V}"]


def test_pinned_adapters_are_loaded_without_any_request(hosted: Hosted) -> None:
    hosted.core.pin([V, "no version", W])
    hosted.core.step()
    hosted.until_resident(V, W)
    assert hosted.core.idle


class Clairvoyant:
    """A draft model that is always right."""

    def __init__(self) -> None:
        self.costs = StepCosts()

    def limit(self, request: Request) -> int:
        return 100

    def lag(self, request: Request) -> int:
        return 0

    def propose(self, depths: Mapping[Request, int]) -> dict[str, tuple[int, ...]]:
        return {
            request.id: tuple(expected_output(request.tokens(0, request.length), depth))
            for request, depth in depths.items()
        }

    def release(self, request: Request) -> None:
        pass


def test_a_draft_that_takes_the_place_of_an_adapter_keeps_what_it_has_written_there() -> None:
    speculator = Speculator(ngrams=False, model=Clairvoyant(), tokens=8, adaptive=False)
    hosted = Hosted(6, sizes={V: 3}, share=0.6, speculator=speculator)
    with contextlib.closing(hosted.core):
        hosted.ask("a", [7], adapter=V)
        hosted.drain()
        prompts = {"b": list(range(14)), "c": list(range(20, 34))}
        for id, prompt in prompts.items():
            hosted.ask(id, prompt, 34)
        said = hosted.drain()
        assert {id: tokens(said[id]) for id in prompts} == {
            id: expected_output(prompt, 34) for id, prompt in prompts.items()
        }
        assert hosted.core.load().adapter_evictions == 1


def test_a_prefix_may_be_loaded_from_host_memory_into_the_place_of_an_adapter() -> None:
    hosted = Hosted(8, sizes={V: 3}, share=0.6, host_blocks=16, host_load_tokens=16)
    with contextlib.closing(hosted.core):
        prompt = list(range(50))
        hosted.ask("before", prompt)
        hosted.ask("other", [1] * 60)
        hosted.drain()
        hosted.ask("a", [7], adapter=V)
        hosted.drain()
        for number in range(10, 13):
            hosted.ask("between", [number] * 30, 30)
            hosted.drain()
            hosted.ask("again", prompt)
            assert tokens(hosted.drain()["again"]) == expected_output(prompt, 4)
            hosted.ask("a", [7], adapter=V)
            hosted.drain()
        load = hosted.core.load()
        assert load.adapter_evictions > 0
        assert load.host_hit_tokens > 0


def test_the_load_tells_of_adapters() -> None:
    hosted = Hosted(4, share=0.5)
    before: Load = hosted.core.load()
    assert (before.lent_blocks, before.adapter_loads, before.adapter_evictions) == (0, 0, 0)
    for id, version in enumerate([V, W, X]):
        hosted.ask(str(id), [1], adapter=version)
        hosted.drain()
    load = hosted.core.load()
    assert (load.lent_blocks, load.adapter_loads, load.adapter_evictions) == (2, 3, 1)
    assert hosted.core.resident_adapters == (W, X)
    assert load.free_blocks + load.cached_blocks + load.lent_blocks == load.total_blocks
    hosted.core.close()


def test_names_are_swapped_under_load_without_mixing_versions_or_leaving_old_ones() -> None:
    """Eight public names whose versions change all the time; requests pin what the name said when they arrived."""
    hosted = Hosted(40, share=0.3, step_tokens=24, max_running=6, host_bytes=60, wait=0.01)
    generator = random.Random(7)
    names = {name: 0 for name in "abcdefgh"}

    def version(name: str) -> str:
        return f"{ord(name):x}{names[name]:030x}"

    sent: dict[str, tuple[list[int], str | None]] = {}
    outputs: dict[str, list[Output]] = {}
    residency = hosted.core._scheduler.adapters.residency
    for step in range(2000):
        if generator.random() < 0.3:
            names[generator.choice("abcdefgh")] += 1
            hosted.core.pin([version("a")])
        if generator.random() < 0.5 and len(hosted.core) < 20:
            name = generator.choice("aaabbcdefgh")
            adapter = version(name) if generator.random() < 0.9 else None
            prompt = [generator.randrange(3) for _ in range(generator.randrange(1, 40))]
            hosted.ask(str(step), prompt, generator.randrange(1, 12), adapter=adapter, tenant=name)
            sent[str(step)] = prompt, adapter
        if generator.random() < 0.05 and sent:
            hosted.core.cancel(generator.choice(list(sent)))
        if residency.loading and generator.random() < 0.5:
            assert hosted._woken.acquire(timeout=TIMEOUT)
        for output in hosted.core.step():
            outputs.setdefault(output.id, []).append(output)
    for id, last in hosted.drain().items():
        outputs.setdefault(id, []).extend(last)
    assert outputs.keys() == sent.keys()
    for id, (prompt, adapter) in sent.items():
        said = tokens(outputs[id])
        assert said == expected_output(prompt, len(said), adapter)
        assert outputs[id][-1].finish in ("length", "cancelled")
    hosted.core.pin([])
    hosted.core.step()
    assert residency.host_bytes <= 60
    assert len(hosted.bank.host) <= 6
    assert residency.evictions > 50
    hosted.core.close()
