"""Repetition, presence and frequency penalties, from counts that are kept per request and grow with its output."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import kernels
from engine.request import Request


class _Counts:
    """Counts of one request's tokens, on the device."""

    __slots__ = ("counted", "output", "seen")

    def __init__(self, vocabulary: int, prompt: Sequence[int], device: torch.device) -> None:
        self.output = torch.zeros(vocabulary, device=device)
        """Number of times that each token occurs in the output."""
        self.seen = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        """Whether each token occurs in prompt or output."""
        self.seen[torch.tensor(prompt, device=device)] = True
        self.counted = 0

    def update(self, output: Sequence[int]) -> None:
        new = torch.tensor(output[self.counted :], dtype=torch.long, device=self.output.device)
        self.output.index_add_(0, new, torch.ones(len(new), device=new.device))
        self.seen[new] = True
        self.counted = len(output)

    def after(self, draft: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `output` and `seen` as after the tokens of `draft`; copies, unless there are none."""
        if not draft:
            return self.output, self.seen
        new = torch.tensor(draft, dtype=torch.long, device=self.output.device)
        output = self.output.index_add(0, new, torch.ones(len(new), device=new.device))
        return output, self.seen.index_fill(0, new, True)


class Penalties:
    """Lowers the logits of tokens that occurred before."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._counts: dict[str, _Counts] = {}

    def __len__(self) -> int:
        """Number of requests that hold state."""
        return len(self._counts)

    @staticmethod
    def apply_to(request: Request) -> bool:
        """Whether the request asks for any penalty."""
        sampling = request.sampling
        return sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0

    def __call__(
        self, logits: torch.Tensor, requests: Sequence[Request], drafts: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Penalise logits [rows, vocabulary] in place; each row's draft counts as said after its request's output.

        Repetition counts prompt and output, presence and frequency the output alone.
        """
        for row, request in enumerate(requests):
            if not self.apply_to(request):
                continue
            counts = self._counts.get(request.id)
            if counts is None:
                counts = self._counts[request.id] = _Counts(self._vocabulary, request.prompt, self._device)
            counts.update(request.output)
            output, seen = counts.after(drafts[row] if drafts else ())
            sampling = request.sampling
            kernels.apply_penalties(
                logits[row],
                output,
                seen,
                sampling.repetition_penalty,
                sampling.presence_penalty,
                sampling.frequency_penalty,
            )

    def release(self, request: Request) -> None:
        """Forget a finished or preempted request."""
        self._counts.pop(request.id, None)
