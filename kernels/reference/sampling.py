"""From logits to tokens."""

from __future__ import annotations

import math

import torch


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Index of the first maximum of each row of x [rows, n] -> [rows].

    Moves |x| e bytes; |x| comparisons.
    """
    return x.argmax(dim=-1)


def apply_token_bitmask(logits: torch.Tensor, bits: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """Set finite logits [rows, vocabulary] to -inf in place where bits [n, ceil(vocabulary / 32)] have a 0.

    `bits` is int32 on the same device; token t is bit t % 32 of word t // 32. Row i of bits is for row `rows[i]` of the
    logits, all of them different, or for row i.
    Moves (2 e + 1/8) n vocabulary bytes; as many comparisons.
    """
    if rows is not None:
        some = logits.index_select(0, rows)
        apply_token_bitmask(some, bits)
        logits.index_copy_(0, rows, some)
        return
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    legal = ((bits[:, :, None] >> shifts) & 1).flatten(1)
    logits.masked_fill_(legal[:, : logits.shape[-1]] == 0, -math.inf)


def apply_penalties(
    logits: torch.Tensor,
    counts: torch.Tensor,
    seen: torch.Tensor,
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    """Penalise one row of logits [vocabulary] in fp32, in place.

    Repetition (Keskar et al., 2019): a logit of a token that was `seen` is divided by the penalty if positive, else
    multiplied. Then, as OpenAI documents them, frequency is subtracted for each of its `counts` (fp32) and presence
    once if there are any.
    Moves (2 e + 5) vocabulary bytes; 6 vocabulary FLOPs.
    """
    if repetition != 1:
        penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
        torch.where(seen, penalised, logits, out=logits)
    if frequency:
        logits.sub_(counts, alpha=frequency)
    if presence:
        logits.sub_((counts > 0).float(), alpha=presence)


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """log(sum(e^x)) of each row of logits [rows, n], in fp64: what log-probabilities are less than logits by.

    Moves |logits| e bytes; 3 |logits| FLOPs.
    """
    return logits.double().logsumexp(dim=-1)


def sample(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """A token for each row of logits [rows, vocabulary] -> [rows].

    `draws` [rows, 5] in fp64 on the host are temperature, top-k, top-p, min-p and a uniform number in (0, 1). With
    temperature 0 the token is the first maximum. Else logits are divided by it, `truncate` removes what the next three
    say (0, 1 and 0 remove nothing), and the token is where the cumulative distribution passes the uniform number
    (`inverse_cdf`). A row's token does not depend on other rows.
    Moves |logits| e bytes; 8 |logits| FLOPs.
    """
    tokens = argmax(logits)
    rows = (draws[:, 0].float() > 0).nonzero()[:, 0]
    temperature, top_k, top_p, min_p, uniforms = draws[rows].to(logits.device).T
    rows = rows.to(logits.device)
    scores = logits.index_select(0, rows).float()
    scores -= scores.amax(dim=-1, keepdim=True)
    scores /= temperature.float()[:, None]
    return tokens.index_copy(0, rows, inverse_cdf(truncate(scores, top_k, top_p, min_p), uniforms))


def truncate(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Set to -inf what top-k, then top-p, then min-p remove, each a [rows] tensor of transformers' parameters.

    Top-p: the smallest set of most likely tokens, after top-k, that reaches top_p (Holtzman et al., 2020). Tokens as
    likely as the last one kept are kept too. Every row's maximum must be 0.
    """
    least = min_p.double().log().float()
    if bool(((top_k > 0) | (top_p < 1)).any()):
        values = logits.sort(dim=-1, descending=True).values
        ranks = torch.arange(logits.shape[-1], device=logits.device)
        kept = ranks < torch.where(top_k > 0, top_k, logits.shape[-1])[:, None]
        weights = values.exp().double().masked_fill_(~kept, 0)
        cumulative = weights.cumsum(dim=-1)
        # Rounding may carry the sum to the total ahead of the last token, which top_p = 1 must keep.
        kept &= (cumulative - weights < top_p[:, None] * cumulative[:, -1:]) | (top_p[:, None] >= 1)
        least = torch.maximum(least, values.masked_fill(~kept, math.inf).amin(dim=-1))
    return logits.masked_fill(logits < least[:, None], -math.inf)


def inverse_cdf(logits: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Tokens [rows] at which softmax(logits) [rows, vocabulary], summed up in fp64, passes `uniforms` [rows]."""
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    goal = uniforms[:, None] * cumulative[:, -1:]
    # Strictly beyond the goal: a token without probability is never chosen. The clamp is for logits that are NaN.
    return torch.searchsorted(cumulative, goal, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
