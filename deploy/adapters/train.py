"""Trains the adapters with peft: `python -m deploy.adapters.train [NAME ...]`, all of them without a name.

Training can be interrupted; the same command goes on from `.training/`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import PreTrainedModel

from deploy.adapters.base import load_base
from deploy.adapters.batches import LessonBatch, batches
from deploy.adapters.table import HERE, TrainedAdapter, adapters, base_file, shipped
from engine.text.processor import TextProcessor

_RANK = 8
_LEARNING_RATE = 1.5e-3
_WARM_UP = 10
_SEED = 7
_SAVE_EVERY = 20
_STATES = HERE / ".training"


def train(name: str, adapter: TrainedAdapter) -> None:
    """Train one adapter, on from where an earlier call was interrupted, and write its folder."""
    task, path = adapter.task, base_file(adapter.base)
    torch.manual_seed(_SEED)
    base = _rounded(load_base(path))
    tuned: Any = get_peft_model(
        base,
        LoraConfig(r=_RANK, lora_alpha=2 * _RANK, target_modules="all-linear", task_type="CAUSAL_LM"),
    ).train()
    weights = {key: weight for key, weight in tuned.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW(weights.values(), lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    state = _STATES / f"{name}.safetensors"
    done = _restore(state, weights, optimizer)
    stream = itertools.islice(batches(task, TextProcessor.from_path(path), _SEED), done, task.steps)
    with tqdm(total=task.steps, initial=done, desc=f"adapter {name}", mininterval=2) as bar:
        for step, batch in enumerate(stream, done + 1):
            for group in optimizer.param_groups:
                group["lr"] = _LEARNING_RATE * schedule(step, task.steps)
            bar.set_postfix(loss=f"{learn(base, batch, [optimizer]):.3f}")
            bar.update()
            if step % _SAVE_EVERY == 0:
                _keep(state, step, weights, optimizer)
    save_adapter(tuned, adapter.base, adapter.folder)
    state.unlink(missing_ok=True)


def _rounded(base: PreTrainedModel) -> PreTrainedModel:
    """Round the layers' matrices to bfloat16 once, as autocast would in every step."""
    for module in base.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.bfloat16()
    return base


def schedule(step: int, steps: int) -> float:
    """Return the share of the learning rate: a short rise, then half a cosine down to nothing."""
    return min(1.0, step / _WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def learn(model: Any, batch: LessonBatch, optimizers: Sequence[torch.optim.Optimizer]) -> float:
    """Take one step; return the mean loss of the tokens that are learnt."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(batch.ids[:, :-1]).last_hidden_state
        # The head is a fifth of the work: only tokens that are learnt need it.
        logits = model.lm_head(hidden[batch.learnt[:, 1:]])
    loss = cross_entropy(logits.float(), batch.ids[:, 1:][batch.learnt[:, 1:]])
    loss.backward()  # type: ignore[no-untyped-call]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    torch.nn.utils.clip_grad_norm_([weight for group in groups for weight in group["params"]], 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _keep(path: Path, step: int, weights: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    tensors = {name: weight.detach() for name, weight in weights.items()}
    for name, weight in weights.items():
        tensors |= {f"{name}/{key}": optimizer.state[weight][key] for key in ("exp_avg", "exp_avg_sq")}
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path.with_suffix(".new"), metadata={"step": str(step)})
    path.with_suffix(".new").rename(path)


def _restore(path: Path, weights: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> int:
    """Take up what an interrupted training left; return the number of steps that it took."""
    if not path.exists():
        return 0
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        step = int(file.metadata()["step"])
    for name, weight in weights.items():
        weight.data.copy_(tensors[name])
        moments = {key: tensors[f"{name}/{key}"] for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(float(step)), **moments}
    return step


def save_adapter(tuned: Any, base: str, target: Path) -> None:
    """Write an adapter's folder in peft's format, in bfloat16, whole or not at all.

    Args:
        base: name of its base model: the path on this machine means nothing elsewhere.
    """
    tuned.peft_config["default"].base_model_name_or_path = base
    fresh = target.with_name(f"{target.name}.new")
    tuned.save_pretrained(fresh, save_embedding_layers=False)
    (fresh / "README.md").unlink(missing_ok=True)
    file = fresh / "adapter_model.safetensors"
    save_file({key: weight.bfloat16() for key, weight in load_file(file).items()}, file, metadata={"format": "pt"})
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(exist_ok=True)
    fresh.rename(target)


def main(arguments: list[str]) -> None:
    known = adapters()
    parser = argparse.ArgumentParser(description="Train the adapters on their base model.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    for name in parser.parse_args(arguments).names or shipped():
        train(name, known[name])


if __name__ == "__main__":
    main(sys.argv[1:])
