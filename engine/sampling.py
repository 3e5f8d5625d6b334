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

import torch

import kernels
from engine.penalties import Penalties
from engine.plan import TokenMasks
from engine.request import Request
from engine.wire import TokenLogprob

_WORD = (1 << 64) - 1


class Sampler:
    """Chooses the next token of every row; keeps what penalties need to know of each live request."""

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
    ) -> tuple[list[int], list[TokenLogprob | None]]:
        """Choose a token for each row of logits [rows, vocabulary], and log-probabilities where they were asked for.

        A row's token comes after its request's known tokens and those of its draft, if `drafts` (one per row) has any.
        `masks` say which tokens are legal for requests with a grammar.
        """
        scored = [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]
        raw = logits[scored].float() if scored else None
        tokens = self.choose(logits, requests, drafts, masks)
        logprobs: list[TokenLogprob | None] = [None] * len(requests)
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
        """The same without log-probabilities; may change the logits."""
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
        """Tokens that would end the request before `min_tokens`, `ahead` tokens after its known ones.

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
        if len(rows) == len(requests):
            kernels.apply_token_bitmask(logits, bits)
        else:
            constrained = logits[rows]
            kernels.apply_token_bitmask(constrained, bits)
            logits[rows] = constrained
        return logits

    def _scatter(self, logits: torch.Tensor, entries: list[tuple[int, int, float]]) -> None:
        """Add a number to single logits, given as (row, token, number)."""
        if entries:
            rows, tokens, numbers = zip(*entries, strict=True)
            where = (self._tensor(rows, torch.long), self._tensor(tokens, torch.long))
            logits.index_put_(where, self._tensor(numbers, torch.float32), accumulate=True)

    def _choose(self, logits: torch.Tensor, requests: Sequence[Request], positions: Sequence[int]) -> list[int]:
        drawn = [row for row, request in enumerate(requests) if request.sampling.temperature > 0]
        if not drawn:
            return kernels.argmax(logits).tolist()
        if len(drawn) == len(requests):
            return self._draw(logits, requests, positions).tolist()
        tokens = kernels.argmax(logits)
        tokens[drawn] = self._draw(logits[drawn], [requests[row] for row in drawn], [positions[row] for row in drawn])
        return tokens.tolist()

    def _draw(self, logits: torch.Tensor, requests: Sequence[Request], positions: Sequence[int]) -> torch.Tensor:
        params = [request.sampling for request in requests]
        logits = logits.float()
        logits = logits - logits.amax(dim=-1, keepdim=True)
        logits /= self._tensor([p.temperature for p in params], torch.float32)[:, None]
        if any(p.top_k or p.top_p < 1 or p.min_p for p in params):
            logits = truncate(
                logits,
                top_k=self._tensor([p.top_k for p in params], torch.long),
                top_p=self._tensor([p.top_p for p in params], torch.float32),
                min_p=self._tensor([p.min_p for p in params], torch.float32),
                ranked=any(p.top_k or p.top_p < 1 for p in params),
            )
        uniforms = [uniform(p.seed, position) for p, position in zip(params, positions, strict=True)]
        return inverse_cdf(logits, self._tensor(uniforms, torch.float64))

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(self._device, non_blocking=True)


def uniform(seed: int, position: int) -> float:
    """A number in (0, 1) that is a function of the seed (64 bits of it) and the position alone.

    SplitMix64's finaliser (Steele, Lea and Flood, 2014) over both; the 32 high bits, centred in their cell.
    """
    word = _mix((_mix(seed & _WORD) + (position + 1) * 0x9E3779B97F4A7C15) & _WORD)
    return ((word >> 32) + 0.5) / 4294967296.0


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)


def inverse_cdf(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Tokens [rows] at which softmax(logits) [rows, vocabulary], summed up in fp64, passes `uniforms` [rows]."""
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    goal = uniforms[:, None] * cumulative[:, -1:]
    # Strictly beyond the goal: a token without probability is never chosen. The clamp is for logits that are NaN.
    return torch.searchsorted(cumulative, goal, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)


def truncate(
    logits: torch.Tensor, *, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, ranked: bool
) -> torch.Tensor:
    """Set to -inf what top-k, then top-p, then min-p remove, each a [rows] tensor of transformers' parameters.

    Top-p: the smallest set of most likely tokens, after top-k, that reaches top_p (Holtzman et al., 2020). Tokens as
    likely as the last one kept are kept too. `ranked` says whether any row has top-k or top-p, which the host knows.
    Every row's maximum must be 0.
    """
    threshold = min_p.log()
    if ranked:
        threshold = torch.maximum(threshold, _least_ranked(logits, top_k, top_p))
    return logits.masked_fill(logits < threshold[:, None], -math.inf)


def _least_ranked(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest logit of each row that top-k and top-p keep."""
    values = kernels.sort_descending(logits)
    vocabulary = logits.shape[-1]
    keep = torch.arange(vocabulary, device=logits.device) < torch.where(top_k > 0, top_k, vocabulary)[:, None]
    weights = values.exp().masked_fill_(~keep, 0)
    cumulative = weights.cumsum(dim=-1)
    before = cumulative - weights
    # Rounding may carry `before` to the total ahead of the last token, which top_p = 1 must keep.
    keep &= (before < top_p[:, None] * cumulative[:, -1:]) | (top_p[:, None] >= 1)
    return values.masked_fill_(~keep, math.inf).amin(dim=-1)


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """Log-probabilities of one token per row of logits [rows, vocabulary], and of the row's `tops` most likely ones."""
    logprobs = logits.float().log_softmax(dim=-1)
    index = torch.tensor(tokens, device=logits.device)[:, None]
    chosen: list[float] = logprobs.gather(1, index)[:, 0].tolist()
    best = logprobs.topk(max(tops), dim=-1)
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprob(token, logprob, list(zip(ids[row][:top], values[row][:top], strict=True)))
        for row, (token, logprob, top) in enumerate(zip(tokens, chosen, tops, strict=True))
    ]
