"""Command lines and addresses of the processes that `serve` starts."""

from __future__ import annotations

import sys

from gateway.config.settings import EmbedderSettings, PoolSettings, Section, Settings
from gateway.storage.connect import socket_path


def engine_address(settings: Settings, pool: PoolSettings, number: int | None = None) -> str:
    """Address of a pool's engine, or of one of several."""
    name = f"engine-{pool.tier}" if number is None else f"engine-{pool.tier}-{number}"
    return f"unix://{socket_path(settings, name)}"


def embedder_address(settings: Settings) -> str:
    return f"unix://{socket_path(settings, 'embedder')}"


def embedder_command(embedder: EmbedderSettings, address: str) -> list[str]:
    """Command line of the embedder."""
    options = _options(embedder, "model", "name", "device", "threads", "queue")
    return [sys.executable, "-m", "cache.embedder", "--listen", address, *options]


def engine_command(pool: PoolSettings, address: str, adapters: str) -> list[str]:
    """Command line of a pool's engine; `adapters` is the address of their registry."""
    names = (
        "model",
        "sha256",
        "verify",
        "name",
        "device",
        "dtype",
        "quantize",
        "kv_dtype",
        "yarn_factor",
        "threads",
        "kv_tokens",
        "adapter_share",
        "kv_host_bytes",
    )
    more = ("max_running", "step_tokens", "policy", "speculate", "draft_model")
    own = ("--listen", address, "--pool", pool.tier, "--adapters", adapters, "--log-level", "warning")
    return [sys.executable, "-m", "engine.server", *own, *_options(pool, *names, *more)]


def _options(section: Section, *names: str) -> list[str]:
    """Fields of a section as options of the same names; those that are not set are left out."""
    values = {name: value for name in names if (value := getattr(section, name)) is not None}
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
