"""Tiny engines that serve grammars: a random model with a real tokenizer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from engine.core import EngineCore, EngineFeatures, SchedulerConfig
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraints import Constraints
from engine.speculation.speculator import Speculator
from engine.text.processor import TextProcessor
from engine.wire import Generate, Grammar, Output, SamplingParams
from tests.engine.checkpoints import write_checkpoint
from tests.engine.composition import Transcript
from tests.engine.tokenizer_zoo import FAMILIES, write_tokenizer

VOCABULARY = 512
"""Rows of the model's output: more than any of the tokenizers has."""
TIMEOUT = 60.0


def write_model(directory: Path, family: str = "byte-level", **overrides: Any) -> Path:
    """A random checkpoint with a tokenizer of one of the zoo's families."""
    write_tokenizer(directory, FAMILIES[family]())
    return write_checkpoint(directory, vocab_size=VOCABULARY, **{"max_position_embeddings": 1024} | overrides)


@cache
def runner_for(directory: Path, blocks: int = 64) -> ModelRunner:
    """Return a runner. It keeps nothing between requests but stale KV, which must never show."""
    return ModelRunner(directory, blocks=blocks, precision=Precision("float32"))


class Engine:
    """A core with grammars, driven by hand."""

    def __init__(
        self, directory: Path, blocks: int = 64, *, speculator: Speculator | None = None, **config: Any
    ) -> None:
        self.runner = runner_for(directory, blocks)
        info = self.runner.info
        self.text = TextProcessor.from_path(directory)
        self.compiler = GrammarCompiler(directory, info)
        self.constraints = Constraints(self.compiler, info.vocabulary)
        self.core = EngineCore(
            self.runner,
            info,
            SchedulerConfig(blocks, **{"step_tokens": 256} | config),
            EngineFeatures(constraints=self.constraints, speculator=speculator),
        )
        self.woken = threading.Event()
        self.core.wake = self.woken.set

    def wait(self) -> None:
        """Wait until an idle core has something to do."""
        assert self.woken.wait(TIMEOUT), "nobody woke the core"
        self.woken.clear()

    def compile(self, *grammars: Grammar) -> None:
        """Compile grammars into the cache."""
        for grammar in grammars:
            self.compiler.compile(grammar, lambda: None).exception(TIMEOUT)
            self.compiler.release(grammar)

    def serve(self, *requests: Generate) -> dict[str, Transcript]:
        """Run requests side by side to their ends, and check the block counts then."""
        transcripts = {request.id: Transcript() for request in requests}
        for request in requests:
            self.core.add(request)
        for output in self.outputs():
            transcripts[output.id].add(output)
        return transcripts

    def outputs(self) -> Iterator[Output]:
        """Step until no request is alive, and yield the outputs."""
        while len(self.core) or not self.core.idle:
            if self.core.idle:
                self.wait()
            yield from self.core.step()
        self.core.check_integrity()
        load = self.core.load()
        assert load.free_blocks + load.cached_blocks == load.total_blocks
        assert (load.running, load.waiting) == (0, 0)

    def answer(self, transcript: Transcript) -> str:
        """Return the text of an answer, as a client shows it."""
        tokens = transcript.tokens
        if transcript.finish == "stop" and not transcript.grammar_complete:
            tokens = tokens[:-1]
        return self.text.decode(tokens)

    def close(self) -> None:
        self.constraints.close()


@contextmanager
def engine(directory: Path, **config: Any) -> Iterator[Engine]:
    """An engine that ends its threads and processes."""
    made = Engine(directory, **config)
    try:
        yield made
    finally:
        made.close()


def ask(id: str, prompt: Sequence[int], grammar: Grammar | None = None, **sampling: Any) -> Generate:
    """A request, sampled at temperature 1 unless told otherwise."""
    return Generate(id, list(prompt), SamplingParams(**({"max_tokens": 200} | sampling)), grammar=grammar)
