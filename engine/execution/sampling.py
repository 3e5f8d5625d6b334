"""Turns logits into tokens: penalties and biases, truncation, and draws that do not depend on the batch.

Order, as in transformers: logit bias, repetition, presence and frequency penalties, `min_tokens`, the grammar's mask,
temperature, top-k, top-p, min-p; what is drawn from is thus the model's distribution over legal tokens. Reported
log-probabilities are those of the model itself, the log-softmax of the unmodified logits (as in vLLM's default mode),
so that they do not change with the sampling parameters.

A draw needs one uniform number, which is a hash of (seed, position) computed on the host; the token is where the
cumulative distribution, in vocabulary order, passes it. The same request thus gives the same tokens in any batch and
on any device, up to rounding of the logits themselves. That also makes drafts cheap to check: the token that a request
gets at a position, after given tokens, is one token and not a distribution, so a draft is right where it equals it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

import kernels
from engine.execution.penalties import Penalties
from engine.plan import TokenMasks
from engine.request import Request
from engine.wire import SamplingParams, TokenIdLogprob

_WORD = (1 << 64) - 1


class Sampler:
    """Chooses the next token of every row; keeps the penalty state of each live request."""

    def __init__(self, vocabulary: int, eos_token_ids: Sequence[int], device: torch.device) -> None:
        self._eos = tuple(eos_token_ids)
        self._device = device
        self._penalties = Penalties(vocabulary, device)

    def __call__(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],
        drafts: Sequence[Sequence[int]] | None = None,
        masks: TokenMasks | None = None,
    ) -> tuple[list[int], list[TokenIdLogprob | None]]:
        """Choose a token for each row of logits [rows, vocabulary], and log-probabilities where they were asked for.

        A row's token comes after its request's known tokens and those of its draft, if `drafts` (one per row) has any.
        `masks` say which tokens are legal for requests with a grammar.
        """
        scored = [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]
        raw = logits[scored] if scored else None
        tokens = self.choose(logits, requests, drafts, masks)
        logprobs: list[TokenIdLogprob | None] = [None] * len(requests)
        if raw is not None:
            tops = [requests[row].sampling.logprobs or 0 for row in scored]
            found = token_logprobs(raw, [tokens[row] for row in scored], tops)
            for row, logprob in zip(scored, found, strict=True):
                logprobs[row] = logprob
        return tokens, logprobs

    def choose(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],
        drafts: Sequence[Sequence[int]] | None = None,
        masks: TokenMasks | None = None,
    ) -> list[int]:
        """Choose tokens without log-probabilities; may change the logits."""
        drafts = drafts or [()] * len(requests)
        if any(self._adjusts(request, len(draft)) for request, draft in zip(requests, drafts, strict=True)):
            logits = self._adjust(logits.float(), requests, drafts)
        if masks is not None:
            logits = self._constrain(logits, requests, drafts, masks)
        return self._choose(
            logits, requests, [request.length + len(draft) for request, draft in zip(requests, drafts, strict=True)]
        )

    def release(self, request: Request) -> None:
        """Forget a finished or preempted request."""
        self._penalties.release(request)

    def _adjusts(self, request: Request, ahead: int) -> bool:
        return bool(request.sampling.logit_bias) or Penalties.apply_to(request) or bool(self._forbidden(request, ahead))

    def _forbidden(self, request: Request, ahead: int) -> tuple[int, ...]:
        """Return tokens that would end the request before `min_tokens`, `ahead` tokens after its known ones.

        With a grammar there are none: its masks take account of `min_tokens`.
        """
        sampling = request.sampling
        if len(request.output) + ahead >= sampling.min_tokens or request.matcher is not None:
            return ()
        return sampling.stop_token_ids + (() if sampling.ignore_eos else self._eos)

    def _adjust(
        self, logits: torch.Tensor, requests: Sequence[Request], drafts: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        self._scatter(
            logits,
            [
                (row, token, bias)
                for row, request in enumerate(requests)
                for token, bias in request.sampling.logit_bias.items()
            ],
        )
        self._penalties(logits, requests, drafts)
        self._scatter(
            logits,
            [
                (row, token, -math.inf)
                for row, (request, draft) in enumerate(zip(requests, drafts, strict=True))
                for token in self._forbidden(request, len(draft))
            ],
        )
        return logits

    def _constrain(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request],
        drafts: Sequence[Sequence[int]],
        masks: TokenMasks,
    ) -> torch.Tensor:
        rows = [row for row, request in enumerate(requests) if request.id in masks.offsets]
        chosen = [masks.offsets[requests[row].id] + len(drafts[row]) for row in rows]
        bits = torch.from_numpy(masks.wait()[chosen]).to(self._device, non_blocking=True)
        some = None if len(rows) == len(requests) else self._tensor(rows, torch.long)
        kernels.apply_token_bitmask(logits, bits, some)
        return logits

    def _scatter(self, logits: torch.Tensor, entries: list[tuple[int, int, float]]) -> None:
        """Add a number to single logits, given as (row, token, number)."""
        if entries:
            rows, tokens, numbers = zip(*entries, strict=True)
            where = (self._tensor(rows, torch.long), self._tensor(tokens, torch.long))
            logits.index_put_(where, self._tensor(numbers, torch.float32), accumulate=True)

    def _choose(self, logits: torch.Tensor, requests: Sequence[Request], positions: Sequence[int]) -> list[int]:
        if all(request.sampling.temperature == 0 for request in requests):
            return kernels.argmax(logits).tolist()
        draws = np.array(
            [_draw(request.sampling, position) for request, position in zip(requests, positions, strict=True)]
        )
        return kernels.sample(logits, torch.from_numpy(draws)).tolist()

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(self._device, non_blocking=True)


def uniform(seed: int, position: int) -> float:
    """Return a number in (0, 1) that is a function of the seed (64 bits of it) and the position alone.

    SplitMix64's finaliser (Steele, Lea and Flood, 2014) over both; the 32 high bits, centred in their cell.
    """
    word = _mix((_mix(seed & _WORD) + (position + 1) * 0x9E3779B97F4A7C15) & _WORD)
    return ((word >> 32) + 0.5) / 4294967296.0


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)


def _draw(sampling: SamplingParams, position: int) -> tuple[float, ...]:
    """Return the parameters of `kernels.sample` for a row; a greedy row needs no random number."""
    number = uniform(sampling.seed, position) if sampling.temperature > 0 else 0.5
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, number


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenIdLogprob]:
    """Return log-probabilities of one token per row of logits [rows, vocabulary], and of the `tops` most likely."""
    totals = kernels.log_sum_exp(logits)[:, None]
    index = torch.tensor(tokens, device=logits.device)[:, None]
    chosen: list[float] = (logits.gather(1, index) - totals)[:, 0].tolist()
    best = logits.topk(max(tops), dim=-1)
    values, ids = (best.values - totals).tolist(), best.indices.tolist()
    return [
        TokenIdLogprob(token, logprob, list(zip(ids[row][:top], values[row][:top], strict=True)))
        for row, (token, logprob, top) in enumerate(zip(tokens, chosen, tops, strict=True))
    ]
