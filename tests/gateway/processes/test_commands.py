"""Command lines of what `serve` starts."""

from __future__ import annotations

from pathlib import Path

from cache.embedder import main as embedder_main
from engine.server.command import main
from gateway.config.settings import EmbedderSettings, PoolSettings
from gateway.processes.commands import embedder_command, engine_command


def test_an_engine_is_told_who_goes_first(tmp_path: Path) -> None:
    pool = PoolSettings(tier="large", name="l", model=str(tmp_path), policy="priority", step_tokens=128)
    told = main.make_context("engine", engine_command(pool, "unix:///engine.sock", "adapters")[3:]).params
    assert (told["policy"], told["step_tokens"]) == ("priority", 128)


def test_an_engine_is_told_of_its_memory(tmp_path: Path) -> None:
    pool = PoolSettings(
        tier="large", name="l", model=str(tmp_path), kv_tokens=4096, kv_host_bytes=1 << 30, adapter_share=0.1
    )
    told = main.make_context("engine", engine_command(pool, "unix:///engine.sock", "adapters")[3:]).params
    assert (told["kv_tokens"], told["kv_host_bytes"], told["adapter_share"]) == (4096, 1 << 30, 0.1)


def test_an_engine_is_told_what_becomes_of_its_weights(tmp_path: Path) -> None:
    pool = PoolSettings(tier="large", name="l", model=str(tmp_path), dtype="bfloat16", quantize="int4")
    told = main.make_context("engine", engine_command(pool, "unix:///engine.sock", "adapters")[3:]).params
    assert (told["dtype"], told["quantize"]) == ("bfloat16", "int4")


def test_an_engine_is_told_the_digest_of_its_checkpoint(tmp_path: Path) -> None:
    pool = PoolSettings(tier="large", name="l", model=str(tmp_path), sha256="a" * 64)
    told = main.make_context("engine", engine_command(pool, "unix:///engine.sock", "adapters")[3:]).params
    assert told["sha256"] == "a" * 64


def test_an_engine_is_told_how_far_to_stretch_the_context(tmp_path: Path) -> None:
    pool = PoolSettings(tier="large", name="l", model=str(tmp_path), yarn_factor=4.0, kv_tokens=131_072)
    told = main.make_context("engine", engine_command(pool, "unix:///engine.sock", "adapters")[3:]).params
    assert (told["yarn_factor"], told["kv_tokens"]) == (4.0, 131_072)


def test_an_engine_is_told_how_to_speculate(tmp_path: Path) -> None:
    pool = PoolSettings(
        tier="large", name="l", model=str(tmp_path), speculate="auto", draft_model=str(tmp_path / "draft")
    )
    (tmp_path / "draft").mkdir()
    _, module, name, *options = engine_command(pool, "unix:///engine.sock", "adapters")
    assert (module, name) == ("-m", "engine.server")
    told = main.make_context("engine", options).params
    assert (told["speculate"], told["draft_model"]) == ("auto", tmp_path / "draft")
    assert (told["model"], told["listen"]) == (tmp_path, "unix:///engine.sock")


def test_the_embedder_is_told_what_the_configuration_says(tmp_path: Path) -> None:
    embedder = EmbedderSettings(model=str(tmp_path), threads=2, queue=100, name="bge")
    _, module, name, *options = embedder_command(embedder, "unix:///e.sock")
    assert (module, name) == ("-m", "cache.embedder")
    told = embedder_main.make_context("embedder", options).params
    assert told == {
        **{"model": str(tmp_path), "name": "bge", "listen": "unix:///e.sock"},
        **{"device": "cpu", "threads": 2, "queue": 100},
    }
