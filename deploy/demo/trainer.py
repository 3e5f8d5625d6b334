"""The training loop of one checkpoint: Muon for matrices, AdamW for the rest, resumable at every chunk.

State is kept in safetensors, never in pickles. A resumed run sees the same data as an uninterrupted one, because
a chunk of data depends on the seed and its number only.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from deploy.demo.batches import TrainingBatch, chunk
from deploy.demo.conversations import ConversationStream
from deploy.demo.tokenizer import Encoder, write_json


@dataclass(frozen=True)
class Recipe:
    """How one checkpoint is trained. `steps` and `minutes` are both limits; the nearer one drives the learning rate."""

    steps: int
    minutes: float = math.inf
    batch_tokens: int = 8192
    muon_lr: float = 0.02
    adam_lr: float = 1e-2
    weight_decay: float = 0.02
    dropout: float = 0.0
    warmup: int = 40
    longest_cut: int = 12
    """Most tokens that are left of a cut answer."""
    seed: int = 1
    compile: bool = False


class Trainer:
    """Owns a model, its two optimizers and their place in the schedule."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, encoder: Encoder, streams: Callable[[int], ConversationStream]
    ) -> None:
        self.model, self.recipe, self.encoder, self.streams = model, recipe, encoder, streams
        named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        matrices = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
        others = [weight for name, weight in named if weight.ndim != 2 or "embed" in name]
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices, lr=recipe.muon_lr, weight_decay=recipe.weight_decay, adjust_lr_fn="original", ns_steps=5
            ),
            torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        )
        self.base_rates = (recipe.muon_lr, recipe.adam_lr)
        self.step = 0
        self.chunk_number = 0
        self.seconds = 0.0
        self.tokens = 0

    @property
    def progress(self) -> float:
        """Share of the run that is done, by steps or by time, whichever is further."""
        return max(self.step / self.recipe.steps, self.seconds / 60 / self.recipe.minutes)

    def rate(self) -> float:
        """Learning rate as a share of its peak: a short warm-up, then half a cosine down to nothing."""
        warm = min(1.0, (self.step + 1) / self.recipe.warmup)
        return warm * (0.5 + 0.5 * math.cos(math.pi * min(1.0, self.progress)))

    def run(self, folder: Path, label: str, on_chunk: Callable[[], None] | None = None) -> None:
        """Trains to the end, from the state in `folder` if there is one."""
        self.load(folder)
        self.model.train()
        with tqdm(total=1000, initial=int(self.progress * 1000), desc=label, unit="permille", mininterval=5) as bar:
            while self.progress < 1:
                for batch in chunk(
                    self.streams,
                    self.encoder,
                    self.chunk_number,
                    self.recipe.seed,
                    self.recipe.batch_tokens,
                    longest_cut=self.recipe.longest_cut,
                ):
                    started = time.monotonic()
                    loss = self.learn(batch)
                    self.seconds += time.monotonic() - started
                    if self.step % 10 == 0:
                        bar.update(int(self.progress * 1000) - bar.n)
                        bar.set_postfix(loss=f"{loss:.3f}", step=self.step, mtok=f"{self.tokens / 1e6:.1f}")
                    if self.progress >= 1:
                        break
                self.chunk_number += 1
                self.save(folder)
                if on_chunk is not None:
                    on_chunk()

    def learn(self, batch: TrainingBatch) -> float:
        """One optimizer step; returns the mean loss per answer token."""
        rate = self.rate()
        for optimizer, base in zip(self.optimizers, self.base_rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * rate
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = self.model(batch.ids, batch.positions, batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += batch.ids.numel()
        return float(loss.detach())

    def save(self, folder: Path) -> None:
        """Writes model, optimizers and counters; the folder is replaced whole."""
        fresh, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
        for path in (fresh, old):
            shutil.rmtree(path, ignore_errors=True)
        fresh.mkdir(parents=True)
        tensors = {f"model.{name}": tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        for number, optimizer in enumerate(self.optimizers):
            for index, entries in optimizer.state_dict()["state"].items():
                for key, value in entries.items():
                    tensors[f"optimizer.{number}.{index}.{key}"] = torch.as_tensor(value).contiguous()
        save_file(tensors, fresh / "state.safetensors")
        counters = {"step": self.step, "chunk": self.chunk_number, "seconds": self.seconds, "tokens": self.tokens}
        write_json(fresh / "counters.json", counters)
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)
        shutil.rmtree(old, ignore_errors=True)

    def load(self, folder: Path) -> None:
        """Continues from a saved state; does nothing where there is none."""
        if not (folder / "counters.json").exists():
            return
        counters = json.loads((folder / "counters.json").read_text(encoding="utf-8"))
        self.step, self.chunk_number = counters["step"], counters["chunk"]
        self.seconds, self.tokens = counters["seconds"], counters["tokens"]
        tensors = load_file(folder / "state.safetensors")
        self.model.load_state_dict(load_model(folder))
        for number, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for name, tensor in tensors.items():
                if name.startswith(f"optimizer.{number}."):
                    _, _, index, key = name.split(".", 3)
                    state.setdefault(int(index), {})[key] = tensor
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})


def load_model(folder: Path) -> dict[str, Tensor]:
    """The model's part of a saved training state."""
    tensors = load_file(folder / "state.safetensors")
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
