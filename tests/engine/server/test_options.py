"""One struct says what an engine can be told; its command line follows from it."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import click
import msgspec
import pytest
from click.testing import CliRunner
from msgspec import Meta

from engine.server.options import EngineOptions, parameters
from gateway.config.settings import PoolSettings


class Few(msgspec.Struct, kw_only=True):
    """Every kind of field that options have."""

    where: Annotated[Annotated[Path, click.Path(exists=True, path_type=Path)], Meta(description="A path.")]
    log_level: Annotated[Literal["low", "high"], Meta(description="A choice.")] = "low"
    share: Annotated[float, Meta(gt=0, lt=1, description="Bounds that do not belong to it.")] = 0.5
    count: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="A bound further in.")] = None


@click.command(params=parameters(Few))
def told(**values: object) -> None:
    click.echo(Few(**values))  # type: ignore[arg-type]


def test_a_command_line_becomes_the_struct(tmp_path: Path) -> None:
    words = ["--where", str(tmp_path), "--log-level", "high", "--share", "0.25", "--count", "3"]
    said = CliRunner().invoke(told, words).output.strip()
    assert said == str(Few(where=tmp_path, log_level="high", share=0.25, count=3))


def test_what_is_left_out_is_the_structs_default(tmp_path: Path) -> None:
    assert CliRunner().invoke(told, ["--where", str(tmp_path)]).output.strip() == str(Few(where=tmp_path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing option '--where'"),
        (["--where", "/nowhere"], "'--where': Path '/nowhere' does not exist"),
        (["--log-level", "middle"], "'--log-level': 'middle' is not one of 'low', 'high'"),
        (["--share", "1"], "'--share': 1.0 is not in the range 0<x<1"),
        (["--count", "0"], "'--count': 0 is not in the range x>=1"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(words: list[str], message: str) -> None:
    result = CliRunner().invoke(told, words if not words or words[0] == "--where" else ["--where", "/", *words])
    assert (result.exit_code, message in result.output) == (2, True), result.output


REGISTERED: dict[str, Path | str] = {"register": "rediss://host", "register_key": Path("k")}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tls_cert": Path("c"), "tls_key": Path("k")}, "belong together: give all three"),
        (REGISTERED | {"register_cert": Path("c"), "register_cert_key": Path("k")}, "belong together: give all three"),
        ({"speculate": "draft"}, "--speculate draft needs --draft-model"),
        ({"draft_model": Path("d")}, "--draft-model is of no use with --speculate off"),
        ({"probes": "http://0.0.0.0:9002"}, "--probes: give HOST:PORT"),
    ],
)
def test_options_that_do_not_go_together_are_refused_by_name(wrong: dict[str, Path | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineOptions(model=Path("m"), **wrong)  # type: ignore[arg-type]


def test_a_pool_offers_what_its_engine_takes() -> None:
    pool, engine = (typing.get_type_hints(struct) for struct in (PoolSettings, EngineOptions))
    chosen = {name for name in pool.keys() & engine.keys() if get_origin(pool[name]) is Literal}
    assert chosen >= {"device", "dtype", "quantize", "kv_dtype", "policy", "speculate"}
    for name in chosen:
        assert set(get_args(pool[name])) <= set(get_args(engine[name])), name
