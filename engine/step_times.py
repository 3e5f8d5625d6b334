"""What a step's time depends on, and measured times. Plain data, for whoever predicts how fast an engine is."""

from __future__ import annotations

from msgspec import Struct


class StepWork(Struct, frozen=True, gc=False):
    """The numbers that a step's time depends on; means of many steps may be fractions."""

    tokens: float
    """Tokens that run through the layers."""
    sampled: float = 0
    """Rows that sample: the head and the sampler run for each."""
    read: float = 0
    """Tokens of keys and values that decodes read."""
    pairs: float = 0
    """Pairs of a query and a key in prompts; a token and itself are one."""
    prompts: float = 0
    """Rows that run a part of a prompt."""


class TimedStep(Struct, frozen=True):
    """A step that was run, and its seconds."""

    work: StepWork
    seconds: float
    under_load: bool = False
    """Whether it followed the one before as under load, and its seconds are those since that one's end."""


class TimedEngine(Struct, frozen=True):
    """An engine, and the times of its steps."""

    model: str
    device: str
    dtype: str
    kv_dtype: str
    threads: int
    step_tokens: int
    max_running: int
    kv_tokens: int
    """Tokens that its KV cache holds."""
    context: int
    steps: list[TimedStep]
