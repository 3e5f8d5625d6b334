"""Drafts are made where they pay, found out by measuring: whole engines on a clock that only their steps move."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

import msgspec
import pytest

from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.plan import Handle, Row, Sampled, StepPlan, TokenMasks
from engine.request import Request
from engine.speculation.costs import StepCosts
from engine.speculation.ngram import NgramIndex
from engine.speculation.speculator import Speculator
from engine.speculation.verification import confirmed
from engine.wire import Generate, SamplingParams
from tests.engine.ledger_runner import VOCABULARY, Done, model_info

Cost = Callable[[int], float]
_PROMPTS = {"long": 40_000, "short": 50, "medium": 3000}


def waits_for_weights(tokens: int) -> float:
    """Sixteen tokens cost what one costs."""
    return max(1.0, tokens / 16)


def computes(tokens: int) -> float:
    return float(tokens)


class World:
    """An engine whose answers are known beforehand, with a draft model that is right at a given rate."""

    def __init__(
        self,
        target: Cost,
        *,
        draft: Cost | None = None,
        rate: float = 0.8,
        speculate: bool = True,
        period: int | None = None,
    ) -> None:
        self.now = 0.0
        self.target, self.rate, self.period = target, rate, period
        self.drafter = None if draft is None else TimedDrafter(self, draft)
        self.speculator = Speculator(ngrams=draft is None, model=self.drafter, tokens=8) if speculate else None
        self.core = EngineCore(
            TimedRunner(self),
            model_info(context=4096),
            SchedulerConfig(4096, max_running=64),
            EngineFeatures(speculator=self.speculator),
            clock=lambda: self.now,
        )
        self._ids = 0

    def says(self, request: Request, ahead: int) -> int:
        """The token of a request that comes `ahead` tokens after its known ones, in circles if there is a period."""
        position = len(request.output) + ahead
        return crc32(f"{request.id} {position % self.period if self.period else position}".encode()) % VOCABULARY

    def serve(self, count: int, *, length: int = 300) -> float:
        """Tokens per second of so many requests at once."""
        begun = self.now
        for _ in range(count):
            self._ids += 1
            sampling = SamplingParams(max_tokens=length, ignore_eos=True)
            self.core.add(Generate(str(self._ids), [self._ids % VOCABULARY, 1], sampling))
        said = 0
        while not self.core.idle:
            for output in self.core.step():
                assert output.error is None
                said += len(output.tokens)
        assert said == count * length
        self.core.check_integrity()
        return count * length / (self.now - begun)

    def drafted_per_token(self, count: int, **how: int) -> float:
        """Drafted tokens per token of an answer, over requests that are served now."""
        assert self.speculator is not None
        before = self.speculator.drafted
        self.serve(count, **how)
        return (self.speculator.drafted - before) / (count * how.get("length", 300))


class TimedRunner:
    """Says what the world says, and moves its clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jitter = random.Random(0)

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
        self._world.now += self._world.target(plan.tokens) * self._jitter.uniform(1.0, 1.1)
        return Done([self._row(row) for row in plan.rows])

    def release(self, request: Request) -> None:
        """Nothing is kept."""

    def _row(self, row: Row) -> Sampled:
        drawn = [self._world.says(row.request, ahead) for ahead in range(1 + len(row.draft))]
        return Sampled(drawn[: 1 + confirmed(row.draft, drawn)])


class TimedDrafter:
    """Right at the world's rate; moves its clock too."""

    def __init__(self, world: World, cost: Cost) -> None:
        self.costs = StepCosts()
        self._world, self._cost = world, cost
        self._generator = random.Random(0)
        self._read: dict[str, int] = {}

    def limit(self, request: Request) -> int:
        return 4096 - request.length

    def lag(self, request: Request) -> int:
        return request.length - 1 - self._read.get(request.id, 0)

    def propose(self, depths: Mapping[Request, int]) -> dict[str, tuple[int, ...]]:
        for level in range(max(depths.values())):
            tokens = sum(depth > level for depth in depths.values())
            tokens += sum(map(self.lag, depths)) if level == 0 else 0
            self._world.now += self._cost(tokens)
            self.costs.observe(tokens, self._cost(tokens))
        self._read |= {request.id: request.length - 1 for request in depths}
        return {
            request.id: tuple(self._guess(self._world.says(request, ahead)) for ahead in range(depth))
            for request, depth in depths.items()
        }

    def release(self, request: Request) -> None:
        self._read.pop(request.id, None)

    def _guess(self, token: int) -> int:
        return token if self._generator.random() < self._world.rate else (token + 1) % VOCABULARY


@pytest.mark.parametrize("requests", [1, 4])
def test_a_cheap_and_good_draft_model_pays(requests: int) -> None:
    plain = World(waits_for_weights, speculate=False).serve(requests)
    world = World(waits_for_weights, draft=lambda tokens: 0.1, rate=0.8)
    world.serve(requests)
    assert world.serve(requests) > 1.9 * plain


@pytest.mark.parametrize(
    ("target", "draft", "rate"),
    [
        pytest.param(computes, lambda tokens: 0.1 * tokens, 0.7, id="every token costs the same"),
        pytest.param(waits_for_weights, lambda tokens: 0.9, 0.7, id="a draft model as slow as the model"),
        pytest.param(waits_for_weights, lambda tokens: 0.1, 0.0, id="a draft model that is never right"),
    ],
)
@pytest.mark.parametrize("requests", [1, 4])
def test_drafts_that_do_not_pay_stop_and_cost_almost_nothing(
    target: Cost, draft: Cost, rate: float, requests: int
) -> None:
    plain = World(target, speculate=False).serve(requests, length=1000)
    world = World(target, draft=draft, rate=rate)
    world.serve(requests, length=600)
    assert world.serve(requests, length=1000) > 0.97 * plain
    assert world.drafted_per_token(requests, length=1000) < 0.02


def test_drafts_follow_the_load() -> None:
    """Deep alone, shallow in company, none when requests fill the machine; and back again."""
    world = World(waits_for_weights, draft=lambda tokens: 0.02 + 0.002 * tokens, rate=0.8)
    learnt = []
    for requests in (1, 6, 48, 1):
        world.serve(requests)
        learnt.append(world.drafted_per_token(requests))
    alone, some, full, again = learnt
    assert alone > some > full
    assert alone > 1
    assert full < 0.1
    assert again > 0.8 * alone


def test_drafts_come_back_when_they_have_become_good() -> None:
    world = World(waits_for_weights, draft=lambda tokens: 0.1, rate=0.0)
    for _ in range(4):
        idle = world.drafted_per_token(2, length=1000)
    assert idle < 0.05
    world.rate = 0.9
    for _ in range(4):
        busy = world.drafted_per_token(2, length=1000)
    assert busy > 1


def test_drafts_come_back_when_the_machine_has_become_free() -> None:
    world = World(computes, draft=lambda tokens: 0.1, rate=0.9)
    for _ in range(3):
        world.serve(2, length=1000)
    assert world.drafted_per_token(2, length=1000) < 0.05
    world.target = waits_for_weights
    for _ in range(3):
        world.serve(2, length=1000)
    assert world.drafted_per_token(2, length=1000) > 1


def test_drafts_stop_when_steps_have_become_expensive() -> None:
    world = World(waits_for_weights, draft=lambda tokens: 0.1, rate=0.7)
    assert world.drafted_per_token(2, length=1000) > 1
    world.target = computes
    for _ in range(2):
        world.serve(2, length=1000)
    assert world.drafted_per_token(2, length=1000) < 0.1


def test_a_text_that_repeats_itself_is_guessed_from_itself() -> None:
    plain, drafted = World(waits_for_weights, period=20, speculate=False), World(waits_for_weights, period=20)
    assert drafted.serve(2) > 3 * plain.serve(2)


def test_a_text_without_repetitions_is_not_guessed() -> None:
    plain, drafted = World(waits_for_weights, speculate=False), World(waits_for_weights)
    assert drafted.serve(2) > 0.99 * plain.serve(2)


def test_long_prompts_are_read_a_bounded_part_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those who have little to read need not wait for those who have much."""
    extend, read = NgramIndex.extend, []

    def counted(self: NgramIndex, new: Sequence[int]) -> None:
        read.append(len(new))
        extend(self, new)

    monkeypatch.setattr(NgramIndex, "extend", counted)
    prompts = {id: [random.Random(id).randrange(99) for _ in range(size)] for id, size in _PROMPTS.items()}
    requests = [Request(id, prompt, SamplingParams(max_tokens=500), arrival=0.0) for id, prompt in prompts.items()]
    speculator = Speculator(ngrams=True, tokens=4, adaptive=False)
    whole = {}
    for step in range(30):
        read.clear()
        rows = [Row(request, request.length - 1, 1, sample=True) for request in requests]
        granted = speculator.depths(StepPlan(rows))
        assert sum(read) <= 2048
        drafts = speculator.propose(StepPlan(rows), granted)
        for request in requests:
            text = request.prompt + request.output
            if request.id in granted:
                whole.setdefault(request.id, step)
                index = NgramIndex()
                extend(index, text)
                assert drafts[request.id] == index.propose(4)[1]
            request.output.append(text[-40])  # it repeats itself from here on
    assert whole["short"] < 5
    assert 40_000 / 2048 < whole["long"] < 40_000 / 2048 + 10
    assert read == [1, 1, 1]


def test_a_prompt_is_read_while_it_is_computed() -> None:
    request = Request("a", [1, 2, 3] * 2000, SamplingParams(max_tokens=50), arrival=0.0)
    speculator = Speculator(ngrams=True, tokens=4, adaptive=False)
    for start in range(0, 6000, 2000):
        assert speculator.depths(StepPlan([Row(request, start, 2000, sample=start == 4000)])) == {}
    request.output.append(1)
    rows = [Row(request, 6000, 1, sample=True)]
    granted = speculator.depths(StepPlan(rows))
    assert speculator.propose(StepPlan(rows), granted) == {"a": (2, 3, 1, 2)}


def test_who_can_draft_nothing_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NgramIndex, "extend", lambda self, new: 1 / 0)
    one = Request("one", [1, 2, 3], SamplingParams(max_tokens=1), arrival=0.0)
    never = Request("never", [1, 2, 3], SamplingParams(max_tokens=9), arrival=0.0, speculate=False)
    speculator = Speculator(ngrams=True, tokens=4, adaptive=False)
    assert speculator.depths(StepPlan([Row(each, 2, 1, sample=True) for each in (one, never)])) == {}


def test_a_request_can_refuse_drafts() -> None:
    world = World(waits_for_weights, draft=lambda tokens: 0.1)
    world.core.add(Generate("a", [1], SamplingParams(max_tokens=50, ignore_eos=True), speculate=False))
    while not world.core.idle:
        world.core.step()
    assert world.speculator is not None
    assert world.speculator.drafted == 0


def test_a_draft_model_that_fails_costs_the_requests_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(waits_for_weights, draft=lambda tokens: 0.1)
    world.core.add(Generate("a", [1], SamplingParams(max_tokens=50, ignore_eos=True)))
    for _ in range(12):
        world.core.step()
    with monkeypatch.context() as patch:
        patch.setattr(world.drafter, "propose", lambda depths: 1 / 0)
        [output] = world.core.step()
    assert (output.finish, output.error_kind) == ("error", "internal")
    world.core.check_integrity()
    world.serve(1)


def test_what_a_failed_step_had_drafted_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(waits_for_weights, draft=lambda tokens: 0.1)
    speculator = world.speculator
    assert speculator is not None
    request = Generate("a", [1], SamplingParams(max_tokens=50, ignore_eos=True))
    sound = TimedRunner.launch
    with monkeypatch.context() as patch:
        fails = lambda self, plan, *masks: 1 / 0 if plan.rows[0].request.id == "a" else sound(self, plan)  # noqa: E731
        patch.setattr(TimedRunner, "launch", fails)
        world.core.add(request)
        [output] = world.core.step()
    assert output.error_kind == "internal"
    world.core.add(msgspec.structs.replace(request, prompt=[1, 2, 3]))
    [output] = world.core.step()
    assert (len(output.tokens), speculator.drafted) == (1, 0)
