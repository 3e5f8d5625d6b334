"""Options, connection and error messages that the commands working on Redis share."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
import uvloop
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.config.redis import without_secrets
from gateway.config.settings import Settings, SettingsError, load

T = TypeVar("T")

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False),
    help="Configuration file (TOML), see docs/configuration.md; default: roundhouse.toml.",
    envvar="ROUNDHOUSE_CONFIG",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def load_settings(config: str | None) -> Settings:
    """Load the configuration; a problem becomes an error message."""
    try:
        return load(config)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error


def with_redis(settings: Settings, act: Callable[[Redis], Coroutine[Any, Any, T]]) -> T:
    """Call `act` with the Redis that the configuration names, or else with that of a running `serve`."""
    from gateway.storage.connect import connect, redis_url

    async def run_it() -> T:
        async with connect(settings, timeout=5) as redis:
            await redis.ping()  # what is called later may take a Redis that is away for an empty one
            return await act(redis)

    try:
        address = redis_url(settings)
        return run(run_it())
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    except (RedisError, OSError) as error:
        remedy = (
            "check redis.url" if settings.redis.url else "start `roundhouse serve`, or name its folder as redis.data"
        )
        raise click.ClickException(
            f"Redis at {without_secrets(address)} does not answer ({error}); {remedy}"
        ) from error


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def actor() -> str:
    """Return the name of who uses the command line, for the audit log."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in containers
        return "cli:unknown"
