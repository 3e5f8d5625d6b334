"""Turns the hidden states of a step into tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

import kernels
from engine.execution.lora_planner import LoraPlanner
from engine.execution.recorded import Decoded
from engine.execution.sampling import Sampler, token_logprobs
from engine.model.decoder import Decoder
from engine.plan import Row, Sampled, TokenMasks
from engine.request import Request
from engine.speculation.verification import confirmed
from engine.wire import TokenIdLogprob
from kernels import LoraPlan

_NOTHING = Sampled()
_LOGITS_BYTES = 64 * 1024 * 1024
"""Most memory for the logits of prompt positions at a time."""


class Forward(NamedTuple):
    """Rows of a step that the model has run, and their hidden states."""

    rows: Sequence[Row]
    ends: Sequence[int]
    """One past the last token of each row in `hidden`."""
    lora: LoraPlan | None
    hidden: torch.Tensor
    """[K, hidden] states of all tokens or of those that are read (`Batch.wanted`); valid until the next step."""
    decoded: Decoded | None = None
    """States and logits of a step that was replayed; None if the step was not replayed."""


class Readout:
    """Reads tokens and log-probabilities from the steps of one model."""

    def __init__(self, model: Decoder, sampler: Sampler, lora: LoraPlanner, device: torch.device) -> None:
        self._model = model
        self._sampler = sampler
        self._lora = lora
        self._device = device

    def __call__(self, forward: Forward, masks: TokenMasks | None) -> list[Sampled]:
        """Return one `Sampled` per row; see `engine.plan.Handle`."""
        if (
            forward.decoded is not None
            and masks is None
            and all([row.sample and row.request.plain for row in forward.rows])
        ):
            return [Sampled([token]) for token in forward.decoded.likeliest()]
        tokens, logprobs = self.sample(forward, masks)
        results: list[Sampled] = []
        first = 0
        for row, end in zip(forward.rows, forward.ends, strict=True):
            prompt = None
            if row.request.sampling.prompt_logprobs is not None:
                prompt = self.prompt_logprobs(forward, forward.hidden[end - row.tokens : end - len(row.draft)], row)
            if not row.sample:
                results.append(_NOTHING if prompt is None else Sampled(prompt_logprobs=prompt))
                continue
            last = first + 1 + len(row.draft)
            gained = tokens[first:last]
            if row.draft:
                gained = gained[: 1 + confirmed(row.draft, gained)]
            found = None
            if row.request.sampling.logprobs is not None:
                found = [each for each in logprobs[first : first + len(gained)] if each is not None]
            results.append(Sampled(gained, found, prompt))
            first = last
        return results

    @property
    def piece(self) -> int:
        """Number of prompt positions whose logits are computed at a time."""
        return max(1, _LOGITS_BYTES // (4 * self._model.config.vocabulary))

    @torch.inference_mode()
    def sample(self, forward: Forward, masks: TokenMasks | None) -> tuple[list[int], list[TokenIdLogprob | None]]:
        """Choose tokens after the known tokens of every row that samples, and after those of its draft behind them."""
        if len(forward.rows) == len(forward.hidden) and all([row.sample for row in forward.rows]):
            # A step of decodes, as most are: every position is read once.
            requests: Sequence[Request] = [row.request for row in forward.rows]
            drafts: Sequence[Sequence[int]] | None = None
            positions: Sequence[int] | None = None
        else:
            wanted = [
                (end - len(row.draft) + ahead - 1, row.request, row.draft[:ahead])
                for row, end in zip(forward.rows, forward.ends, strict=True)
                if row.sample
                for ahead in range(1 + len(row.draft))
            ]
            if not wanted:
                return [], []
            positions, requests, drafts = zip(*wanted, strict=True)
        lora = None
        if forward.decoded is None:
            lora = self._lora.head(forward.lora, requests, np.ones(len(requests), np.int64))
        return self._sampler(self.logits(forward, positions, lora), requests, drafts, masks)

    @torch.inference_mode()
    def guess(self, forward: Forward, drafted: Sequence[Sequence[int]]) -> list[int]:
        """Choose the token after each row that samples, given the tokens already `drafted` for it."""
        drawing = [(row.request, end - 1) for row, end in zip(forward.rows, forward.ends, strict=True) if row.sample]
        if not drawing:
            return []
        requests, positions = zip(*drawing, strict=True)
        return self._sampler.choose(self.logits(forward, positions), requests, drafted)

    @torch.inference_mode()
    def prompt_logprobs(self, forward: Forward, hidden: torch.Tensor, row: Row) -> list[TokenIdLogprob]:
        """Return log-probabilities of the prompt tokens that follow the row's positions to which `hidden` belongs."""
        request = row.request
        tops = request.sampling.prompt_logprobs or 0
        targets = request.prompt[row.start + 1 : row.start + len(hidden) + 1]
        found: list[TokenIdLogprob] = []
        for begin in range(0, len(targets), self.piece):
            piece = targets[begin : begin + self.piece]
            lora = self._lora.head(forward.lora, [request], np.array([len(piece)]))
            logits = self._model.logits(hidden[begin : begin + len(piece)], lora)
            found += token_logprobs(logits, piece, [tops] * len(piece))
        return found

    def logits(self, forward: Forward, positions: Sequence[int] | None, lora: LoraPlan | None = None) -> torch.Tensor:
        """Compute logits at some positions of the batch, or at all of them."""
        known = forward.hidden if forward.decoded is None else forward.decoded.logits
        if positions is not None:
            known = kernels.embedding(torch.tensor(positions).to(self._device, non_blocking=True), known)
        return known if forward.decoded is not None else self._model.logits(known, lora)


class LaunchedStep(NamedTuple):
    """A step that the model was called for. Implements `engine.plan.Handle`."""

    readout: Readout
    forward: Forward
    masks: TokenMasks | None

    def result(self) -> list[Sampled]:
        """See `engine.plan.Handle`."""
        return self.readout(self.forward, self.masks)
