"""What the engine can do at the same time: workloads that switch features on, and the table of docs/engine.md.

Every pair of features is one test of `test_oracle.py`, and so are all of them together on every architecture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from engine.core import EngineCore, SchedulerConfig
from engine.plan import Sampled, StepPlan
from engine.request import Request
from engine.runner import ModelRunner
from engine.speculation.draft_model import DraftModel
from engine.speculation.speculator import Speculator
from engine.wire import Generate, Output, SamplingParams, TokenLogprob, Usage
from tests.engine.checkpoints import random_prompt

FEATURES = {
    "batch": "requests that come and go run in the same steps, prompts beside decodes",
    "chunks": "prompts run in pieces of at most eight tokens",
    "prefix": "a known prefix is read from the cache",
    "preempt": "a cache of four blocks: requests lose their KV and recompute it",
    "cancel": "requests beside it are cancelled in every state",
    "logprobs": "log-probabilities of output and prompt, with the most likely alternatives",
    "sampling": "seeded sampling, penalties, biases, stop tokens",
    "speculation": "tokens are guessed from the text and by a draft model, and several are confirmed in one step",
}
PAIRS = list(combinations(FEATURES, 2))


def table() -> str:
    """The markdown table of what composes with what: a cell for every pair that is tested."""
    names = list(FEATURES)
    rows = [["", *names]]
    for first in names:
        tested = [(first, second) in PAIRS or (second, first) in PAIRS for second in names]
        rows.append([f"**{first}**", *("✓" if cell else "" for cell in tested)])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


@dataclass
class Transcript:
    """All that a client learns of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish: str | None = None
    grammar_complete: bool = False
    error: str | None = None
    error_kind: str | None = None
    usage: Usage | None = None

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
    """A runner that keeps the plans it passes on, so that a test can prove that what it wants to test took place."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.plans: list[list[tuple[str, int, int, bool]]] = []
        self.preemptions = 0

    def execute(self, plan: StepPlan) -> list[Sampled]:
        self.plans.append([(row.request.id, row.start, row.count, row.sample) for row in plan.rows])
        self.preemptions += len(plan.preempted)
        return self._runner.execute(plan)

    def release(self, request: Request) -> None:
        self._runner.release(request)


class Scenario:
    """The same five requests, with a set of features switched on around and in them."""

    def __init__(self, features: Iterable[str]) -> None:
        self.features = frozenset(features)
        on = self.features.__contains__
        self.blocks = 4 if on("preempt") else 32
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
        return Generate(str(index), prompt, self._sampling(index))

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

    def run(self, runner: ModelRunner, drafter: ModelRunner) -> dict[str, Transcript]:
        """Serve the scenario; what each of the five requests got. Fails if a feature did not come into play.

        `drafter` runs a draft model, if there is speculation.
        """
        recorder = Recorder(runner)
        config = SchedulerConfig(blocks=self.blocks, step_tokens=self.step_tokens, max_running=4)
        speculator = None
        if "speculation" in self.features:
            speculator = Speculator(ngrams=True, model=DraftModel(drafter), tokens=4, adaptive=False)
        core = EngineCore(recorder, runner.info, config, rope_regime=runner.config.rope_regime, speculator=speculator)
        if "prefix" in self.features:
            serve(core, [(0, Generate("warm-up", [*self.shared, 7], SamplingParams(max_tokens=1)))])
        if self.concurrent:
            arrivals = [(2 * index, request) for index, request in enumerate(self.requests)]
            arrivals += [(begin, request) for begin, _, request in self.decoys]
            transcripts = serve(core, arrivals, {request.id: end for _, end, request in self.decoys})
        else:
            transcripts = {}
            for request in self.requests:
                transcripts |= serve(core, [(0, request)])
        self._check_that_it_happened(recorder, core, transcripts)
        return {request.id: transcripts[request.id] for request in self.requests}

    def _check_that_it_happened(self, recorder: Recorder, core: EngineCore, transcripts: dict[str, Transcript]) -> None:
        plans = recorder.plans
        happened = {
            "batch": any(len({count > 1 for _, _, count, _ in plan}) == 2 for plan in plans),
            "chunks": any(not sample for plan in plans for _, _, _, sample in plan),
            "prefix": core.load().prefix_hit_tokens >= len(self.shared),
            "preempt": recorder.preemptions > 0,
            "cancel": any(transcript.finish == "cancelled" for transcript in transcripts.values()),
            "logprobs": any(transcript.prompt_logprobs for transcript in transcripts.values()),
            "sampling": any(request.sampling.temperature > 0 for request in self.requests),
            "speculation": 0 < core.load().accepted_tokens < core.load().drafted_tokens,
        }
        missing = [feature for feature in self.features if not happened[feature]]
        assert not missing, f"the scenario does not exercise {missing}"


def serve(
    core: EngineCore, arrivals: Sequence[tuple[int, Generate]], cancellations: dict[str, int] | None = None
) -> dict[str, Transcript]:
    """Add and cancel requests at given steps and run until idle; the books must balance at the end."""
    transcripts = {request.id: Transcript() for _, request in arrivals}
    step, last = 0, max((at for at, _ in arrivals), default=0)
    while step <= last or not core.idle:
        for at, request in arrivals:
            if at == step:
                core.add(request)
        for id, at in (cancellations or {}).items():
            if at == step:
                core.cancel(id)
        for output in core.step():
            transcripts[output.id].add(output)
        step += 1
        assert step < 2000, "the engine does not finish its work"
    core.check_integrity()
    load = core.load()
    assert load.free_blocks + load.cached_blocks == load.total_blocks
    return transcripts
