"""Launches step plans: turns rows into one batch and runs the model once over all of it.

Prompt chunks and decodes share the forward pass. Everything a step needs is built on the host in a few array
operations and sent to the device once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import kernels
from engine.adapters.bank import AdapterBank, AdapterSource
from engine.cache.blocks import BLOCK_SIZE, blocks_of
from engine.cache.host_tier import HostMemory
from engine.cache.memory import KVCache, kv_type
from engine.checkpoint.files import served_revision
from engine.checkpoint.opening import open_checkpoint
from engine.execution.batch import Batch, batch_of
from engine.execution.graphs.decode import Capture, CudaCapture, DecodeGraphs
from engine.execution.graphs.policy import CapturePolicy
from engine.execution.host_memory import host_memory
from engine.execution.lora_planner import LoraPlanner
from engine.execution.precision import Precision
from engine.execution.readout import Forward, LaunchedStep, Readout
from engine.execution.recorded import RecordedDecodes
from engine.execution.sampling import Sampler
from engine.execution.step_buffers import StepBuffers
from engine.model.decoder import Decoder
from engine.model.layers import ReadoutTokens, StepInputs
from engine.model.rope import RotaryEmbedding
from engine.plan import Row, StepPlan, TokenMasks
from engine.request import Request
from engine.wire import ModelInfo
from kernels import LoraPlan


class ModelRunner:
    """One model on one device: weights, KV cache and sampling state. Implements `engine.plan.Runner`."""

    def __init__(
        self,
        directory: Path,
        *,
        blocks: int,
        device: str = "cpu",
        precision: Precision | None = None,
        yarn_factor: float | None = None,
        adapters: AdapterSource | None = None,
        random_weights: bool = False,
    ) -> None:
        """Load a checkpoint in Hugging Face format.

        Args:
            blocks: KV blocks of `BLOCK_SIZE` tokens.
            precision: types of weights, activations, keys and values; those of the checkpoint unless given.
            yarn_factor: how often the checkpoint's context is to fit into that which is served.
            adapters: source of the adapters that requests may name; `bank` loads them.
            random_weights: made up on the device, for measurements: of the directory only config.json is read.

        Raises:
            CheckpointError: the directory holds nothing that this engine can serve, or its context cannot be stretched.
            ValueError: weights in float32 are to be quantised.
        """
        checkpoint = open_checkpoint(directory)
        self.config = config = checkpoint.config.stretched(yarn_factor)
        self.blocks = blocks
        self.precision = precision = (precision or Precision()).of(checkpoint, torch.device(device))
        self._device, self._dtype = torch.device(device), precision.torch_dtype
        context = min(config.context, blocks * BLOCK_SIZE)
        if random_weights:
            self._model = Decoder.random(config, self._device, self._dtype, precision.quantize)
        else:
            self._model = Decoder.from_checkpoint(checkpoint, self._device, self._dtype, precision.quantize)
        self._rope = RotaryEmbedding(config, context, self._device)
        stored = kv_type(precision.kv_dtype, self._dtype)
        self._cache = KVCache(config, blocks, self._device, self._dtype, stored)
        self._windows = set(config.windows)
        self._graphs: DecodeGraphs | None = None
        self._buffers = StepBuffers(self._cache.stride, blocks_of(context))
        self._decodes = RecordedDecodes(self._model, self._cache, self._buffers, self._rope.table, self._windows)
        self._sampler = Sampler(config.vocabulary, config.eos_token_ids, self._device)
        revision = "random weights" if random_weights else checkpoint.revision
        self.info = ModelInfo(
            name=directory.resolve().name.removesuffix(".gguf"),
            revision=served_revision(revision, precision.quantize, yarn_factor),
            context=context,
            vocabulary=config.vocabulary,
            eos_token_ids=config.eos_token_ids,
            block_size=BLOCK_SIZE,
            device=str(self._device),
            dtype=precision.dtype,
            rope_regimes=config.rope_regimes,
            kv_dtype="" if stored == self._dtype else precision.kv_dtype,
        )
        self.bank: AdapterBank | None = None
        if adapters is not None:
            self.bank = AdapterBank(config, revision, self._cache.sectors, self._model.base, adapters)
        self._lora = LoraPlanner(self._cache.sectors, self.bank)
        self._readout = Readout(self._model, self._sampler, self._lora, self._device)

    def record_decodes(self, policy: CapturePolicy, capture: Capture | None = None) -> None:
        """From now on record steps of decodes and replay them, if this model's steps can be recorded on its device.

        They can where tensors alone control the device and all of it is computed there: not with
        mixtures of experts or rotations that depend on lengths, nor with the plain torch body of attention.

        Args:
            capture: makes the recordings; as CUDA graphs unless given, and none on the CPU.
        """
        built = kernels.attention_is_built(self._cache.layers[0].keys, self._dtype)
        if not built or self.config.experts or self._rope.depends_on_length:
            return
        if capture is None and self._device.type == "cuda":
            capture = CudaCapture(self._device)
        if capture is not None:
            self._graphs = DecodeGraphs(
                lambda tokens, step: self._model(tokens, self._cache, step),
                self._buffers,
                self._lora,
                self._rope.table,
                self._windows,
                policy,
                capture,
            )

    def host_memory(self, size: int) -> HostMemory:
        """Allocate a tier of at most `size` bytes in host memory below this runner's KV cache.

        Raises:
            ValueError: not even one block fits, or there is not so much memory.
        """
        return host_memory(self._cache.sectors, size)

    def launch(self, plan: StepPlan, masks: TokenMasks | None = None) -> LaunchedStep:
        """See `engine.plan.Runner`. On the CPU the model has run when this returns; tokens are chosen by `result`."""
        return LaunchedStep(self._readout, self._launch(plan.rows), masks)

    def dry_run(self, rows: Sequence[Row], *, layers: int | None = None, sample: bool = True) -> None:
        """Run rows through some layers, all unless given, and sample unless told not to; the results mean nothing.

        Log-probabilities of prompts are computed for one piece of positions only.
        """
        forward = self._run(batch_of(rows, self._buffers), self._lora.begin(rows), layers=layers)
        if sample:
            self._readout.sample(forward, None)
        for row, end in zip(rows, forward.ends, strict=True):
            if row.request.sampling.prompt_logprobs is not None:
                hidden = forward.hidden[end - row.tokens :][: min(row.count, self._readout.piece)]
                self._readout.prompt_logprobs(forward, hidden, row)
        self._lora.clear()

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole KV cache."""
        return self._cache.sectors.nbytes

    @property
    def kv_bytes_taken(self) -> int:
        """Bytes of the KV cache that the system has given already."""
        return self._cache.taken

    @property
    def recorded_bytes(self) -> int:
        """Most bytes of recorded steps on the CPU; those of a GPU notice themselves when none are left."""
        return self._decodes.most_bytes

    def guess(self, rows: Sequence[Row], drafted: Sequence[Sequence[int]]) -> list[int]:
        """Run rows without adapters and choose the token after each that samples, given what is `drafted` already.

        Such a row may lie behind the request's known tokens (count == 0): then it runs its draft.
        """
        return self._readout.guess(self._launch(rows, adapted=False), drafted)

    def release(self, request: Request) -> None:
        """Forget what is kept of a finished or preempted request."""
        self._buffers.release(request)
        self._sampler.release(request)

    def _launch(self, rows: Sequence[Row], *, adapted: bool = True) -> Forward:
        """Run rows through the model, without their adapters unless `adapted`."""
        lora = self._lora.begin(rows) if adapted else None
        if not self._rope.depends_on_length and all([row.count + len(row.draft) == 1 for row in rows]):
            if self._graphs is not None:
                hidden = self._graphs(rows, lora)
                if hidden is not None:
                    return Forward(rows, range(1, len(rows) + 1), lora, hidden)
            elif (decoded := self._decodes(rows, lora=lora)) is not None:
                return Forward(rows, range(1, len(rows) + 1), lora, decoded.hidden, decoded)
        return self._run(batch_of(rows, self._buffers), lora)

    @torch.inference_mode()
    def _run(self, batch: Batch, lora: LoraPlan | None, *, layers: int | None = None) -> Forward:
        lengths = torch.from_numpy(batch.lengths) if self._rope.depends_on_length else None
        rotary, rotations = self._rope.rotations(torch.from_numpy(batch.positions), lengths)
        single = layers is None and len(batch.tokens) == len(batch.rows)
        if single and self._rope.depends_on_length and rotary is self._rope.table:
            decoded = self._decodes(batch.rows, rotations.numpy(), lora)
            if decoded is not None:
                return Forward(batch.rows, batch.ends, lora, decoded.hidden, decoded)
        tokens, step = self._prepare(batch, rotary, rotations, lora)
        hidden = self._model(tokens, self._cache, step, layers=layers)
        ends = batch.ends if len(hidden) == len(tokens) else batch.wanted.cumsum().tolist()
        return Forward(batch.rows, ends, lora, hidden)

    def _prepare(
        self, batch: Batch, rotary: torch.Tensor, rotations: torch.Tensor, lora: LoraPlan | None
    ) -> tuple[torch.Tensor, StepInputs]:
        """Put a batch on the device as the model reads it: its tokens [T], and the rest."""
        starts, counts = batch.starts.astype(np.int32), batch.counts.astype(np.int32)
        plans = {
            window: kernels.plan_attention(starts, counts, batch.tables, window=window, device=self._device)
            for window in self._windows
        }
        slots = self._to_device(torch.from_numpy(batch.slots))
        wanted = self._wanted(batch, lora)
        return self._to_device(torch.from_numpy(batch.tokens)), StepInputs(
            rotary, rotations, slots, plans, lora, wanted
        )

    def _wanted(self, batch: Batch, lora: LoraPlan | None) -> ReadoutTokens | None:
        """Return the tokens of a batch that the last layer is to run; None for all of them."""
        if len(batch.tokens) == len(batch.rows):
            return None
        every = batch.wanted
        (rows,) = every.nonzero()
        counts = every[rows]
        if counts.sum() == len(batch.tokens):
            return None
        ends = batch.counts.cumsum()[rows]
        tokens = np.arange(counts.sum()) + (ends - counts.cumsum()).repeat(counts)
        starts = (batch.starts + batch.counts)[rows] - counts
        plan = kernels.plan_attention(
            starts.astype(np.int32),
            counts.astype(np.int32),
            batch.tables[rows],
            window=self.config.windows[-1],
            device=self._device,
        )
        if lora is not None:
            lora = self._lora.part([batch.rows[row].request for row in rows.tolist()], counts)
        return ReadoutTokens(self._to_device(torch.from_numpy(tokens)), plan, lora)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)
