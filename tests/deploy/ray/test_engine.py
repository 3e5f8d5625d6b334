"""What an engine on a Ray cluster needs, and its command line."""

from __future__ import annotations

from pathlib import Path

import click.testing
import pytest

from deploy.ray.engine import RayNode, bundle, command, engine_start, pools_of
from engine.server.options import EngineOptions, parameters
from engine.tls import Certificate
from gateway.cli.root import main
from gateway.config.settings import Settings, SettingsError, load
from gateway.processes import extras

MODEL = Path(__file__).parents[3] / "deploy" / "demo" / "model"
POOL = f"""
[[pools]]
tier = "small"
name = "demo"
model = "{MODEL}"
registered = true
max_replicas = 4
threads = 2
"""
REDIS = '[redis]\nurl = "redis://engine:hidden@redis.internal"\n'
RAY = '[ray]\nregister_key = "/etc/roundhouse/engines.key"\n'
TLS = """
tls_cert = "/tls/engine.pem"
tls_key = "/tls/engine.key"
tls_client_ca = "/tls/ca.pem"
server_name = "engines"
register_ca = "/tls/ca.pem"
register_cert = "/tls/engine.pem"
register_cert_key = "/tls/engine.key"
"""


def settings(folder: Path, text: str) -> Settings:
    file = folder / "roundhouse.toml"
    file.write_text(text)
    return load(file, environ={})


def test_an_engine_takes_the_options_of_its_pool_and_its_node(tmp_path: Path) -> None:
    files = ("engines.key", "engine.pem", "engine.key", "ca.pem")
    for name in files:
        (tmp_path / name).write_text("")
    own = (RAY + TLS).replace("/etc/roundhouse", str(tmp_path)).replace("/tls", str(tmp_path))
    read = settings(tmp_path, REDIS.replace("engine:hidden@", "") + own + POOL)
    [pool] = pools_of(read)
    words = command(engine_start(read, pool), RayNode(host="10.0.3.17", zone="eu-1a", spot=True))
    assert words[1:3] == ["-m", "engine.server"]
    made = click.Command("engine", params=parameters(EngineOptions)).make_context("engine", words[3:])
    options = EngineOptions(**made.params)
    assert (options.listen, options.register) == ("wss://10.0.3.17:0", "redis://redis.internal")
    assert (options.pool, options.threads, options.zone, options.spot) == ("small", 2, "eu-1a", True)
    given = (options.register_key, options.tls_cert, options.tls_key, options.tls_client_ca)
    assert given == tuple(tmp_path / name for name in files)
    assert (options.server_name, options.drain_timeout) == ("engines", 30)
    assert options.register_certificate == Certificate(*(str(tmp_path / name) for name in ("ca.pem", *files[1:3])))


def test_an_address_of_redis_with_a_password_is_not_handed_on(tmp_path: Path) -> None:
    """Ray's state and command lines are no place for it: nodes know it themselves."""
    read = settings(tmp_path, REDIS + RAY + POOL)
    start = engine_start(read, read.pools[0])
    assert start.register is None and "hidden" not in repr(start)
    assert "--register" not in command(start, RayNode(host="::1"))
    assert "ws://[::1]:0" in command(start, RayNode(host="::1"))
    read = settings(tmp_path, REDIS.replace("engine:hidden@", "") + RAY + POOL)
    assert engine_start(read, read.pools[0]).register == "redis://redis.internal"


def test_ray_reserves_what_an_engine_needs(tmp_path: Path) -> None:
    gpu = POOL.replace("threads", 'device = "cuda"\nthreads')
    more = '[ray.resources.small]\n"accelerator_type:H100" = 0.001\n'
    read = settings(tmp_path, REDIS + RAY + more + gpu)
    assert bundle(read.pools[0], read) == {"CPU": 2.0, "GPU": 1.0, "accelerator_type:H100": 0.001}
    read = settings(tmp_path, REDIS + RAY + POOL)
    assert bundle(read.pools[0], read) == {"CPU": 2.0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (REDIS + RAY + POOL.replace("max_replicas = 4\n", ""), "registered = true and max_replicas"),
        (RAY + POOL, "redis.url"),
        (REDIS + POOL, "ray.register_key"),
        (REDIS + RAY + 'tls_cert = "/tls/engine.pem"\n' + POOL, "belong together"),
        (
            REDIS + RAY + 'register_cert = "/tls/redis.pem"\nregister_cert_key = "/tls/redis.key"\n' + POOL,
            "register_ca",
        ),
    ],
)
def test_what_is_missing_is_named(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=problem):
        pools_of(settings(tmp_path, text))


def test_without_ray_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    done = click.testing.CliRunner().invoke(main, ["ray", "status"])
    assert done.exit_code == 1
    assert "pip install 'roundhouse[ray]'" in done.output
