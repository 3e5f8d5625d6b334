"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.root import main
from gateway.config.settings import DEMO


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


def test_help_teaches_the_first_steps() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for words in (
        "roundhouse serve",
        "roundhouse chat",
        'base_url="http://127.0.0.1:8080/v1"',
        "roundhouse cache stats",
    ):
        assert words in result.output


@pytest.mark.parametrize("content", [None, "not JSON"])
@pytest.mark.parametrize("command", [["config", "check"], ["serve", "--port", "0"]])
def test_a_model_folder_that_cannot_be_used_is_named_before_anything_starts(
    command: list[str], content: str | None, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    if content is not None:
        (model / "config.json").write_text(content)
    config = tmp_path / "roundhouse.toml"
    config.write_text(
        f'[redis]\ndata = "{tmp_path / "data"}"\n[[pools]]\ntier = "small"\nname = "mine"\nmodel = "{model}"\n'
        '[[tenants]]\nname = "acme"\n'
    )
    result = run(*command, "--config", str(config))
    assert result.exit_code == 1
    assert result.output.startswith("Error: pools: mine: model: ") and "config.json" in result.output
    assert "starting" not in result.output and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "command", [["serve"], ["chat"], ["config", "check"], ["cache", "stats"], ["cache", "invalidate"]]
)
def test_every_command_has_help(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage:")


def test_models_to_serve_are_tiers() -> None:
    result = run("serve", "--models", "small,tiny")
    assert result.exit_code == 2
    assert "--models: tiny: choose from small, medium, large, or none" in result.output


def test_config_check_says_which_models_will_be_fetched(tmp_path: Path) -> None:
    store = {"ROUNDHOUSE_MODELS_STORE": str(tmp_path), "ROUNDHOUSE_MODELS_SERVE": "small"}
    result = run("config", "check", **store)
    assert result.exit_code == 0
    assert "the small tier is not here yet: `roundhouse serve` fetches it (98 MB)" in result.output


def test_the_command_line_never_loads_torch() -> None:
    """It must start in a moment, and the gateway must stay free of it."""
    program = "import sys, gateway.processes.supervisor; from gateway.cli.root import main; "
    program += "main(['--help'], standalone_mode=False); raise SystemExit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=True)


def test_config_check_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text("[server]\nport = 'high'\n")
    result = run("config", "check", "--config", str(file))
    assert result.exit_code == 1
    assert "server.port" in result.output


def test_config_check_says_how_to_make_the_first_tenant(tmp_path: Path) -> None:
    """Own pools without tenants are whole: tenants are made while the server runs."""
    file = tmp_path / "roundhouse.toml"
    file.write_text(f'[[pools]]\ntier = "small"\nname = "mine"\nmodel = "{DEMO / "model"}"\n')
    result = run("config", "check", "--config", str(file))
    assert result.exit_code == 0
    assert "0 tenants" in result.output and "roundhouse tenant add NAME" in result.output


def test_config_check_refuses_the_demos_key_where_others_reach_it(tmp_path: Path) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text('[server]\nhost = "0.0.0.0"\n')
    for command in (["config", "check"], ["serve"]):
        result = run(*command, "--config", str(file))
        assert result.exit_code == 1
        assert "server.host" in result.output and "listen on 127.0.0.1" in result.output


def test_config_show_hides_the_password_of_redis() -> None:
    result = run("config", "show", REDIS_URL="redis://user:secret@host:6379/0")
    assert json.loads(result.output)["redis"]["url"] == "redis://host:6379/0"


def test_a_redis_that_is_not_there_is_named() -> None:
    result = run("cache", "stats", REDIS_URL="unix:///nonexistent/redis.sock")
    assert result.exit_code == 1
    assert "/nonexistent/redis.sock does not answer" in result.output


def test_a_data_folder_that_is_too_deep_for_sockets_is_an_error_message(tmp_path: Path) -> None:
    for command in (["cache", "stats"], ["key", "list"]):
        result = run(*command, ROUNDHOUSE_REDIS_DATA=str(tmp_path / ("deep" * 30)))
        assert result.exit_code == 1
        assert "Error: redis.data: the path" in result.output


def test_chat_says_how_to_start_a_server() -> None:
    result = run("chat", "--once", "hello", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "roundhouse serve" in result.output
