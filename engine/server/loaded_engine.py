"""Builds the engine that its options ask for. Imports torch, for which the environment has to be set before."""

from __future__ import annotations

import msgspec

from engine.adapters.registry import AdapterRegistry
from engine.checkpoint.digests import check_digest
from engine.checkpoint.errors import CheckpointError
from engine.core import EngineCore, EngineFeatures
from engine.execution.draft_model import DraftModel
from engine.execution.graphs.policy import CapturePolicy
from engine.execution.precision import Precision
from engine.execution.runner import ModelRunner
from engine.execution.warm_up import warm_up
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraints import Constraints
from engine.server.options import EngineOptions
from engine.speculation.speculator import Speculator


class LoadedEngine:
    """A core with the models that it runs and its grammars."""

    def __init__(self, options: EngineOptions) -> None:
        """Load the models.

        Raises:
            ValueError: a checkpoint cannot be served, or an option cannot be kept; the message says which.
            RegistryError: the registry of adapters cannot be used.
        """
        self._options = options
        self._config = options.scheduler()
        runner = self._load_model()
        host = runner.host_memory(options.kv_host_bytes) if options.kv_host_bytes else None
        drafter = self._load_draft_model(runner)
        self._runners = [runner] if drafter is None else [runner, drafter.runner]
        speculator = None
        if options.speculate != "off":
            speculator = Speculator(ngrams=options.speculate != "draft", model=drafter, tokens=options.draft_tokens)
        compiler = GrammarCompiler(options.model, runner.info)
        self._constraints = Constraints(compiler, runner.info.vocabulary, threads=options.cpu_threads)
        self.core = EngineCore(
            runner,
            runner.info if options.name is None else msgspec.structs.replace(runner.info, name=options.name),
            self._config,
            EngineFeatures(
                constraints=self._constraints,
                speculator=speculator,
                bank=runner.bank,
                residency=options.residency(),
                host=host,
            ),
        )

    def warm_up(self) -> None:
        """Run the largest steps once, in the thread that is to run all others.

        Raises:
            NotEnoughMemory: the engine cannot hold what its options ask for.
        """
        options = self._options
        drafted = 0 if options.speculate == "off" else options.draft_tokens
        residency, kv_host_bytes = options.residency(), options.kv_host_bytes
        self.core.largest_step = warm_up(
            self._runners, self._config, draft_tokens=drafted, residency=residency, kv_host_bytes=kv_host_bytes
        )
        self._constraints.warm_up()
        for each in self._runners:
            each.record_decodes(CapturePolicy(self._config.max_running, each.info.context))

    def close(self) -> None:
        self.core.close()
        self._constraints.close()

    def _load_model(self) -> ModelRunner:
        options = self._options
        registry = None if options.adapters is None else AdapterRegistry(options.adapters)
        if options.sha256 is not None:
            check_digest(options.model, options.sha256, manifest=options.verify != "off")
        try:
            return ModelRunner(
                options.model,
                blocks=self._config.blocks,
                device=options.device,
                precision=Precision(
                    options.dtype,
                    quantize=None if options.quantize == "off" else options.quantize,
                    kv_dtype=options.kv_dtype,
                ),
                yarn_factor=options.yarn_factor,
                adapters=registry,
            )
        except CheckpointError as error:
            raise ValueError(f"{options.model}: {error}") from error

    def _load_draft_model(self, target: ModelRunner) -> DraftModel | None:
        options = self._options
        if options.draft_model is None:
            return None
        try:
            return DraftModel.from_directory(options.draft_model, target, options.model)
        except CheckpointError as error:
            raise ValueError(f"{options.draft_model}: {error}") from error
