"""A checkpoint with everything that can be served on it: a tokenizer, LoRA adapters, a draft model; and its oracles.

The oracles are transformers, peft and llguidance, with no line of the engine between them.
"""

from __future__ import annotations

import json
import warnings
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import llguidance
import llguidance.numpy
import numpy as np
import torch

from engine.adapters.format import check_adapter
from engine.adapters.manifest import Manifest
from engine.cache.memory import KVDtype
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraints import Constraints
from engine.wire import Generate, Grammar, TokenIdLogprob
from kernels import Quantization
from tests.engine.adapters.zoo import ATTENTION, EXPERTS, FUSED, LINEAR, Kind, load_peft, write_adapter
from tests.engine.checkpoints import EOS, MIXTURES, load_oracle, write_checkpoint, write_similar
from tests.engine.driver import BLOCKS, drive, request
from tests.engine.tokenizer_zoo import byte_level, write_tokenizer

TIMEOUT = 60.0
VOCABULARY = 512
"""Rows of the models' output: more than the tokenizer has tokens."""


def adapters_for(architecture: str) -> tuple[Kind, Kind]:
    """A large adapter and a smaller one that differ in everything that one architecture allows."""
    if architecture in MIXTURES:
        experts: dict[str, Any] = {"target_modules": ATTENTION, "target_parameters": EXPERTS}
        return (
            Kind(architecture, {"r": 4, "lora_alpha": 8} | experts),
            Kind(architecture, {"r": 12, "lora_alpha": 12, "use_rslora": True, "target_modules": ATTENTION}),
        )
    linear = FUSED.get(architecture, LINEAR)
    targets = [*linear, "embed_tokens"] if architecture.endswith("tied") else [*linear, "embed_tokens", "lm_head"]
    return (
        Kind(architecture, {"r": 20, "lora_alpha": 10, "use_dora": True, "target_modules": targets}),
        Kind(architecture, {"r": 8, "lora_alpha": 16, "target_modules": linear, "lora_bias": True}),
    )


class Numbers(NamedTuple):
    """The number formats in which a model is served; none unless its weights or its KV are in fewer bits."""

    quantize: Quantization | None = None
    kv_dtype: KVDtype = "auto"


class OracleCheckpoint:
    """One checkpoint of an architecture. Everything in it is made when it is first asked for."""

    def __init__(
        self, folder: Path, architecture: str = "llama", like: OracleCheckpoint | None = None, **overrides: Any
    ) -> None:
        """Args: like: one whose process compiles the grammars of this one as well: all have the same tokenizer."""
        self.directory = folder / "model"
        self._like = like
        self._folder = folder
        self._architecture = architecture
        write_tokenizer(self.directory, byte_level())
        write_checkpoint(self.directory, architecture, vocab_size=VOCABULARY, **overrides)
        self._runners: dict[tuple[str, int, str], ModelRunner] = {}
        self._references: dict[tuple[Any, ...], torch.Tensor] = {}

    @cached_property
    def sectors(self) -> dict[str, int]:
        """Blocks that each adapter needs on the device."""
        bank = self.runner(32, "cpu").bank
        assert bank is not None
        needed = {version: bank.prepare(version) for version in self.adapters}
        for version in self.adapters:
            bank.forget(version)
        return needed

    @cached_property
    def adapters(self) -> list[str]:
        """Versions of two adapters."""
        return [*self._manifests]

    @cached_property
    def constraints(self) -> Constraints:
        """Grammars of all engines of this checkpoint, which share one compiler and its process."""
        if self._like is not None:
            return self._like.constraints
        info = self.runner(32, "cpu").info
        return Constraints(self._compiler, info.vocabulary)

    def compile(self, *grammars: Grammar) -> None:
        """Compile grammars into the cache, so that requests with them are ready at once."""
        compiler = self._compiler if self._like is None else self._like._compiler
        for grammar in grammars:
            compiler.compile(grammar, lambda: None).exception(TIMEOUT)
            compiler.release(grammar)

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        return GrammarCompiler(self.directory, self.runner(32, "cpu").info, threads=1)

    def close(self) -> None:
        """End threads and processes."""
        if self._like is None and "constraints" in self.__dict__:
            self.constraints.close()

    def path(self, version: str) -> Path:
        return self._folder / self._names[version]

    def manifest(self, version: str) -> Manifest:
        return self._manifests[version]

    def runner(self, blocks: int, device: str) -> ModelRunner:
        """Runners keep nothing between requests but stale KV, which must never show."""
        key = ("model", blocks, device)
        if key not in self._runners:
            self._runners[key] = self._load(self.directory, blocks, device)
        return self._runners[key]

    def _load(self, directory: Path, blocks: int, device: str) -> ModelRunner:
        return ModelRunner(directory, blocks=blocks, device=device, precision=Precision("float32"), adapters=self)

    def draft_runner(self, blocks: int, device: str) -> ModelRunner:
        """A draft model that is often right."""
        key = ("draft", blocks, device)
        if key not in self._runners:
            self._runners[key] = self._load(write_similar(self.directory), blocks, device)
        return self._runners[key]

    def tolerance(self, adapter: str | None) -> float:
        """Return how far log-probabilities may be from the oracle's."""
        return 1e-5 if adapter is None else 1e-4

    def greedy(self, request: Generate, said: list[int]) -> list[int]:
        """The most likely token after the prompt and each beginning of `said`, as far as an answer goes.

        So `said` is what greedy decoding says if, and only if, it is the same. Only a grammar ends it early.
        """
        prompt, limit = len(request.prompt), request.sampling.max_tokens
        rows = self.logprobs(request.adapter, [*request.prompt, *said])[prompt - 1 :].numpy()
        if request.grammar is None:
            return rows.argmax(axis=-1).tolist()[:limit]
        matcher = llguidance.LLMatcher(self._tokens, _source(request.grammar))
        expected: list[int] = []
        for row, token in zip(rows[:limit], [*said, None], strict=False):
            bitmask = llguidance.numpy.allocate_token_bitmask(1, VOCABULARY)
            llguidance.numpy.fill_next_token_bitmask(matcher, bitmask, 0)
            masked = row[None].astype(np.float32)
            llguidance.numpy.apply_token_bitmask_inplace(masked, bitmask)
            expected.append(int(masked.argmax()))
            if token != expected[-1] or not matcher.consume_token(token) or matcher.is_stopped():
                break
        return expected

    def logprobs(self, adapter: str | None, tokens: list[int]) -> torch.Tensor:
        """Log-probabilities of the successor of every position [len(tokens), VOCABULARY], without a KV cache."""
        key = (adapter, *tokens)
        if key not in self._references:
            self._references[key] = self._logprobs(adapter, tokens)
        return self._references[key]

    def _logprobs(self, adapter: str | None, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits = self._oracle(adapter)(input_ids=torch.tensor([tokens]), use_cache=False).logits
            return torch.as_tensor(logits[0].log_softmax(dim=-1))

    def _oracle(self, adapter: str | None) -> Any:
        return load_oracle(self.directory) if adapter is None else load_peft(self.directory, self.path(adapter))

    @cached_property
    def _tokens(self) -> llguidance.LLTokenizer:
        description = (self.directory / "tokenizer.json").read_text("utf-8")
        return llguidance.LLTokenizer(description, n_vocab=VOCABULARY, eos_token=EOS)

    @cached_property
    def _names(self) -> dict[str, str]:
        names = {}
        for index, kind in enumerate(adapters_for(self._architecture)):
            name = f"adapter-{index}"
            with warnings.catch_warnings(action="ignore"):
                write_adapter(self._folder / name, self.directory, kind, seed=index)
            names[check_adapter(self._folder / name, self.directory).version] = name
        return names

    @cached_property
    def _manifests(self) -> dict[str, Manifest]:
        return {version: check_adapter(self._folder / name, self.directory) for version, name in self._names.items()}


class QuantizedCheckpoint(OracleCheckpoint):
    """A wrapper that serves another checkpoint, its adapters and grammars in fewer bits, on the CPU.

    The oracle is the same engine with nothing else in it: whole texts, one at a time, with its adapters in place.
    """

    def __init__(self, plain: OracleCheckpoint, numbers: Numbers) -> None:
        self.directory = plain.directory
        self.numbers = numbers
        self._plain = plain
        self._runners = {}
        self._references = {}

    @cached_property
    def constraints(self) -> Constraints:
        return self._plain.constraints

    def compile(self, *grammars: Grammar) -> None:
        self._plain.compile(*grammars)

    def close(self) -> None:
        """Do nothing, as the other checkpoint closes what it owns."""

    def path(self, version: str) -> Path:
        return self._plain.path(version)

    def tolerance(self, adapter: str | None) -> float:
        return 0.0

    def _logprobs(self, adapter: str | None, tokens: list[int]) -> torch.Tensor:
        one = request(tokens, max_tokens=1, prompt_logprobs=VOCABULARY, logprobs=VOCABULARY)
        one.adapter = adapter
        ((sampled,),) = drive(self._alone, [one])
        return torch.stack([_row(entry) for entry in [*(sampled.prompt_logprobs or ()), *(sampled.logprobs or ())]])

    def _load(self, directory: Path, blocks: int, device: str) -> ModelRunner:
        quantize, kv_dtype = self.numbers
        return ModelRunner(
            directory,
            blocks=blocks,
            device=device,
            precision=Precision("float32" if quantize is None else "bfloat16", quantize=quantize, kv_dtype=kv_dtype),
            adapters=self,
        )

    @cached_property
    def _alone(self) -> ModelRunner:
        """Return a runner with all adapters in sectors behind the blocks that `drive` uses."""
        runner = self._load(self.directory, BLOCKS + sum(self.sectors.values()), "cpu")
        assert runner.bank is not None
        end = BLOCKS
        for version, size in self.sectors.items():
            assert runner.bank.prepare(version) == size
            runner.bank.install(version, range(end, end + size))
            end += size
        return runner

    @cached_property
    def _tokens(self) -> llguidance.LLTokenizer:
        return self._plain._tokens

    @cached_property
    def _names(self) -> dict[str, str]:
        return self._plain._names

    @cached_property
    def _manifests(self) -> dict[str, Manifest]:
        return self._plain._manifests


def _row(entry: TokenIdLogprob) -> torch.Tensor:
    """[VOCABULARY], from an entry that has all of them."""
    tokens, values = zip(*entry.top, strict=True)
    row = torch.full((VOCABULARY,), torch.nan, dtype=torch.float64)
    row[list(tokens)] = torch.tensor(values, dtype=torch.float64)
    return row


@cache
def _source(grammar: Grammar) -> str:
    if grammar.kind == "regex":
        start = llguidance.regex_to_lark(grammar.source)
        rule = f"start: /{start}/"
    else:
        assert grammar.kind == "json_schema"
        # The bound that docs/structured-output.md names.
        options = {"x-guidance": {"whitespace_pattern": r"[ \t\r\n]{1,20}"}}
        rule = f"start: %json {json.dumps(json.loads(grammar.source) | options)}"
    # Without forced tokens every legal one may be chosen, which is what sampling from a model means.
    return llguidance.LLMatcher.grammar_from_lark('%llguidance {"no_forcing": true}\n' + rule)
