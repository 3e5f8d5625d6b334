"""Workloads that switch on features of the engine, alone and together.

Every pair of features is one test of `test_oracle.py`, and so are a random sample of larger combinations and all of
them together on every architecture; so is every feature with every type of fewer bits. `composition_page.py` lists
them.
"""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import combinations, cycle

import msgspec

from engine.adapters.residency import ResidencyConfig
from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.draft_model import DraftModel
from engine.execution.runner import ModelRunner
from engine.plan import Handle, Runner, StepPlan, TokenMasks
from engine.request import Request
from engine.speculation.speculator import Speculator
from engine.wire import Generate, Grammar, Output, SamplingParams, TokenIdLogprob, Usage
from tests.engine.checkpoints import random_prompt
from tests.engine.oracle_checkpoints import Numbers, OracleCheckpoint

FEATURES = {
    "batch": "requests that come and go run in the same steps, prompts beside decodes",
    "chunks": "prompts run in pieces of at most eight tokens",
    "prefix": "a known prefix is read from the cache",
    "host": "prefixes that the cache had to give up come back from host memory",
    "preempt": "a cache of four or five blocks: requests lose their KV and recompute it",
    "cancel": "requests beside it are cancelled in every state",
    "logprobs": "log-probabilities of output and prompt, with the most likely alternatives",
    "sampling": "seeded sampling, penalties, biases, stop tokens",
    "adapters": "LoRA adapters of two kinds, DoRA among them, beside rows of the base model",
    "grammar": "answers held to a JSON schema or a regular expression",
    "speculation": "speculative decoding with n-grams and a draft model",
    "moved": "answers are cut off and go on as new requests, as if their engine had died",
}
FEWER_BITS: dict[str, Numbers] = {
    "int8": Numbers(quantize="int8"),
    "w8a16": Numbers(quantize="w8a16"),
    "int4": Numbers(quantize="int4"),
    "kv-fp16": Numbers(kv_dtype="fp16"),
    "kv-bf16": Numbers(kv_dtype="bf16"),
    "kv-fp8": Numbers(kv_dtype="fp8"),
    "kv-int8": Numbers(kv_dtype="int8"),
    "int8, kv-fp8": Numbers("int8", "fp8"),
    "int8, kv-int8": Numbers("int8", "int8"),
    "w8a16, kv-fp8": Numbers("w8a16", "fp8"),
    "int4, kv-fp8": Numbers("int4", "fp8"),
    "int4, kv-int8": Numbers("int4", "int8"),
}
"""Settings of `--quantize` and `--kv-dtype` by name, for a model in fp32; quantised weights need one in bf16."""
FEWER_BITS_OF_BOTH = [name for name, numbers in FEWER_BITS.items() if numbers.quantize and numbers.kv_dtype != "auto"]
TIMEOUT = 30
"""Seconds after which a core counts as stuck."""
HOST_BYTES = 1 << 20
"""Bytes of host memory for KV: more than all blocks of a test."""
PAIRS = list(combinations(FEATURES, 2))
CUTS = {"0": 3, "1": 7, "2": 12, "3": 5, "4": 2}
"""Tokens after which each request is cut off, if it has not ended by then."""
UNCUT = {"0", "1"}
"""Requests that are left alone where some are to be preempted: it is these that take one another's blocks."""
SAMPLE = 24
"""Number of larger combinations that are tested."""


def larger_combinations() -> list[tuple[str, ...]]:
    """Different sets of three to nine features, drawn once and for all."""
    generator = random.Random(3)
    drawn: dict[tuple[str, ...], None] = {}
    while len(drawn) < SAMPLE:
        chosen = set(generator.sample([*FEATURES], generator.randint(3, len(FEATURES) - 1)))
        drawn[tuple(feature for feature in FEATURES if feature in chosen)] = None
    return [*drawn]


LARGER = larger_combinations()
LARGER_IN_FEWER_BITS = list(zip(cycle(FEWER_BITS_OF_BOTH), LARGER[::2], strict=False))


@dataclass
class Transcript:
    """All that a client learns of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenIdLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenIdLogprob | None] = field(default_factory=list)
    finish: str | None = None
    grammar_complete: bool = False
    error: str | None = None
    error_kind: str | None = None
    usage: Usage | None = None
    moves: int = 0

    def add(self, output: Output) -> None:
        self.tokens += output.tokens
        self.logprobs += output.logprobs or []
        self.prompt_logprobs += output.prompt_logprobs or []
        self.finish = output.finish or self.finish
        self.grammar_complete |= output.grammar_complete
        self.error = output.error or self.error
        self.error_kind = output.error_kind or self.error_kind
        self.usage = output.usage or self.usage


class Recorder:
    """Wraps a runner and keeps the plans it runs, so that a test can prove that what it tests took place."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.plans: list[list[tuple[str, int, int, bool]]] = []
        self.preemptions = 0
        self.adapters: set[str | None] = set()
        self.masked = 0

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> Handle:
        self.plans.append([(row.request.id, row.start, row.count, row.sample) for row in plan.rows])
        self.preemptions += len(plan.preempted)
        self.adapters |= {row.request.adapter for row in plan.rows}
        self.masked += masks is not None
        return self._runner.launch(plan, masks)

    def release(self, request: Request) -> None:
        self._runner.release(request)


WORDS = Grammar("regex", "[a-z]+( [a-z]+){60,}")
"""A grammar too long to be finished: requests must live long enough to be preempted."""
RECORD = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {"kind": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer", "maximum": 99}},
            "required": ["kind", "count"],
            "additionalProperties": False,
        }
    ),
)
COLOUR = Grammar("regex", "(red|green|blue) [0-9]{1,3}[.]")
"""A grammar that ends by itself."""


class Scenario:
    """The same five requests, with a set of features switched on around and in them."""

    def __init__(
        self, features: Iterable[str], checkpoint: OracleCheckpoint, cuts: Mapping[str, int] | None = None
    ) -> None:
        """Args: cuts: in place of `CUTS`; they may lie behind the ends of answers."""
        self.features = frozenset(features)
        self.checkpoint = checkpoint
        on = self.features.__contains__
        left_alone = UNCUT if on("preempt") else set()
        self.cuts = {
            id: cut for id, cut in (CUTS if cuts is None else cuts).items() if on("moved") and id not in left_alone
        }
        self._must_move = set() if cuts is not None else {*self.cuts}
        # A prefix is stored once per adapter: one block more, or the second request would wait for the first one's end.
        self.blocks = (5 if on("adapters") and on("prefix") else 4) if on("preempt") else 32
        self.lent = 0
        if on("adapters"):
            # With a small cache only one of them fits at a time, the first and larger one with nothing to spare.
            self.lent = (max if on("preempt") else sum)(checkpoint.sectors.values())
            self.blocks += self.lent
        self.step_tokens = 8 if on("chunks") else 256
        self.concurrent = on("batch") or on("preempt") or on("cancel")
        # Short enough for two requests to fit into four blocks until they have grown.
        self.shared = random_prompt(16 if on("preempt") else 32, seed=99)
        self.lengths = [12, 18, 5, 14, 1] if on("preempt") else [37, 18, 5, 33, 1]
        self.requests = [self._request(index) for index in range(5)]
        # In its prompt, decoding, and while it waits.
        decoys = [(1, 2), (3, 9), (4, 4)] if on("cancel") else []
        self.decoys = [
            (
                begin,
                end,
                Generate(
                    f"decoy-{begin}",
                    random_prompt(6 if on("preempt") else 20, seed=begin),
                    SamplingParams(max_tokens=30),
                    adapter=self._adapter(begin - 1),
                    grammar=WORDS if on("grammar") else None,
                ),
            )
            for begin, end in decoys
        ]

    def _request(self, index: int) -> Generate:
        on = self.features.__contains__
        if on("prefix"):
            prompt = self.shared + random_prompt([1, 9, 3, 7, 5][index], seed=index)
        else:
            prompt = random_prompt(self.lengths[index], seed=index)
        grammar = [WORDS, WORDS, None, RECORD, COLOUR][index] if on("grammar") else None
        return Generate(str(index), prompt, self._sampling(index), adapter=self._adapter(index), grammar=grammar)

    def _adapter(self, index: int) -> str | None:
        if "adapters" not in self.features:
            return None
        first, second = self.checkpoint.adapters
        return [None, first, None, first, second][index]

    def _sampling(self, index: int) -> SamplingParams:
        logprobs = 4 if "logprobs" in self.features else None
        # Not all of them: a request for prompt log-probabilities reads no prefix from the cache.
        prompt_logprobs = 3 if logprobs and index in (2, 4) else None
        # Answers that come several tokens at a time must be longer to get in each other's way.
        max_tokens = (36 if "speculation" in self.features else 24) + index
        if "sampling" not in self.features or index % 2 == 0:
            return SamplingParams(
                max_tokens=max_tokens,
                temperature=0.0,
                ignore_eos=True,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
            )
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0.9,
            top_k=40,
            top_p=0.95,
            min_p=0.01,
            repetition_penalty=1.1,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            logit_bias={5: 2.0, 6: -100.0},
            seed=index,
            # The first of these is the one that gets preempted, for which it has to live long enough.
            ignore_eos=index == 1,
            stop_token_ids=() if index == 1 else tuple(range(100, 110)),
            min_tokens=4,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def run(self, device: str) -> dict[str, Transcript]:
        """Serve the scenario; returns the five requests' transcripts. Fails if a feature did not come into play."""
        runner = self.checkpoint.runner(self.blocks, device)
        recorder = Recorder(runner)
        with self.core(runner, recorder, device) as (core, speculator):
            if "prefix" in self.features:
                # The large adapter last: it then has its place on the device.
                for adapter in [None, *reversed(self.checkpoint.adapters)] if "adapters" in self.features else [None]:
                    warm_up = Generate("warm-up", [*self.shared, 7], SamplingParams(max_tokens=1), adapter=adapter)
                    serve(core, [(0, warm_up)])
            if "host" in self.features:
                self._evict(core)
            loaded = core.load().host_hit_tokens
            if self.concurrent:
                arrivals = [(2 * index, request) for index, request in enumerate(self.requests)]
                arrivals += [(begin, request) for begin, _, request in self.decoys]
                transcripts = serve(core, arrivals, {request.id: end for _, end, request in self.decoys}, self.cuts)
            else:
                transcripts = {}
                for request in self.requests:
                    transcripts |= serve(core, [(0, request)], cuts=self.cuts)
            self._check_that_it_happened(recorder, core, loaded, speculator, transcripts)
        return {request.id: transcripts[request.id] for request in self.requests}

    def _evict(self, core: EngineCore) -> None:
        """Have the prompts computed, and others after them until the device holds none of their blocks."""
        once = SamplingParams(max_tokens=1)
        for request in self.requests:
            # With its grammar, which is thus compiled: or by then the others might have ended.
            serve(core, [(0, msgspec.structs.replace(request, id="before", sampling=once))])
        for index in range(4):
            prompt = random_prompt(core.model.context - 1, seed=1000 + index)
            serve(core, [(0, Generate("filler", prompt, once))])
        self._bring_adapter(core)

    def _bring_adapter(self, core: EngineCore) -> None:
        """Load the adapter before anything else runs, so that four blocks are left."""
        if {"adapters", "preempt"} <= self.features:
            serve(core, [(0, Generate("load", [7], SamplingParams(max_tokens=1), adapter=self.checkpoint.adapters[0]))])

    @contextmanager
    def core(
        self, runner: ModelRunner, recorder: Runner, device: str
    ) -> Iterator[tuple[EngineCore, Speculator | None]]:
        on = self.features.__contains__
        if on("grammar"):
            self.checkpoint.compile(WORDS, RECORD, COLOUR)
        speculator = None
        if on("speculation"):
            model = DraftModel(self.checkpoint.draft_runner(self.blocks, device))
            speculator = Speculator(ngrams=True, model=model, tokens=4, adaptive=False)
        core = EngineCore(
            recorder,
            runner.info,
            SchedulerConfig(blocks=self.blocks, step_tokens=self.step_tokens, max_running=4, host_load_tokens=16),
            EngineFeatures(
                speculator=speculator,
                constraints=self.checkpoint.constraints if on("grammar") else None,
                bank=runner.bank if on("adapters") else None,
                residency=ResidencyConfig(share=(self.lent + 0.5) / self.blocks),
                host=runner.host_memory(HOST_BYTES) if on("host") else None,
            ),
        )
        with closing(core):
            self._bring_adapter(core)
            yield core, speculator

    def _check_that_it_happened(
        self,
        recorder: Recorder,
        core: EngineCore,
        loaded: int,
        speculator: Speculator | None,
        transcripts: dict[str, Transcript],
    ) -> None:
        plans = recorder.plans
        happened = {
            "batch": any(len({count > 1 for _, _, count, _ in plan}) == 2 for plan in plans),
            "chunks": any(not sample for plan in plans for _, _, _, sample in plan),
            "prefix": core.load().prefix_hit_tokens >= len(self.shared),
            "host": core.load().host_hit_tokens > loaded,
            "preempt": recorder.preemptions > 0,
            "cancel": any(transcript.finish == "cancelled" for transcript in transcripts.values()),
            "logprobs": any(transcript.prompt_logprobs for transcript in transcripts.values()),
            "sampling": any(request.sampling.temperature > 0 for request in self.requests),
            "adapters": recorder.adapters == {None, *self.checkpoint.adapters},
            "grammar": recorder.masked > 0 and transcripts["4"].grammar_complete,
            "speculation": speculator is not None and 0 < speculator.accepted < speculator.drafted,
            "moved": all(transcripts[id].moves for id in self._must_move),
        }
        missing = [feature for feature in self.features if not happened[feature]]
        assert not missing, f"the scenario does not exercise {missing}"


def wakes(core: EngineCore) -> threading.Event:
    """Set whenever the core has something to do again."""
    event = threading.Event()
    core.wake = event.set
    return event


def moved(request: Generate, said: list[int]) -> Generate:
    """Return what asks another engine for the rest of an answer."""
    sampling = msgspec.structs.replace(request.sampling, prompt_logprobs=None)
    return msgspec.structs.replace(
        request, id=f"{request.id}, moved", prompt=request.prompt + said, resumed=len(said), sampling=sampling
    )


def serve(
    core: EngineCore,
    arrivals: Sequence[tuple[int, Generate]],
    cancellations: dict[str, int] | None = None,
    cuts: Mapping[str, int] | None = None,
) -> dict[str, Transcript]:
    """Add and cancel requests at given steps and run until idle; the counts of blocks must add up at the end.

    Requests with a number of tokens in `cuts` are cancelled once they have said as many, and go on as new ones.
    """
    requests = {request.id: request for _, request in arrivals}
    transcripts = {id: Transcript() for id in requests}
    cuts = dict(cuts or {})
    left: set[str] = set()
    step, last = 0, max((at for at, _ in arrivals), default=0)
    woken = wakes(core)
    while step <= last or len(core) or not core.idle:
        if core.stalled or (step > last and core.idle):  # or all would come together, after a few empty steps
            assert woken.wait(TIMEOUT), "nobody woke the core"
        woken.clear()
        for at, request in arrivals:
            if at == step:
                core.add(request)
        for id, at in (cancellations or {}).items():
            if at == step:
                core.cancel(id)
        for output in core.step():
            if output.id in left:  # the last words of a request that went on elsewhere
                continue
            transcript = transcripts[output.id]
            transcript.add(output)
            if transcript.finish is None and len(transcript.tokens) >= cuts.get(output.id, math.inf):
                left.add(output.id)
                core.cancel(output.id)
                rest = moved(requests[output.id], transcript.tokens)
                transcript.moves += 1
                transcripts[rest.id] = transcript
                core.add(rest)
        step += 1
        assert step < 2000, "the engine does not finish its work"
    core.check_integrity()
    load = core.load()
    assert load.free_blocks + load.cached_blocks + load.lent_blocks == load.total_blocks
    assert load.host_free_blocks + load.host_cached_blocks == load.host_blocks
    return transcripts
