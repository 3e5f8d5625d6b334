"""The `roundhouse` command."""

from __future__ import annotations

import importlib
import os
import sys

import click
import msgspec
from redis.asyncio import Redis
from rich.console import Console

from gateway import __version__
from gateway.access.identity.secret import derive, installation_secret
from gateway.cli.connection import config_option, load_settings, run, with_redis
from gateway.config.redis import without_secrets
from gateway.config.settings import NO_TENANTS, TIERS, Settings, SettingsError, file_of, load

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


_ELSEWHERE = {
    "adapter": "gateway.cli.adapters:adapter",
    "admin": "gateway.cli.admin:admin",
    "audit": "gateway.cli.audit:audit",
    "backup": "gateway.cli.backup:backup",
    "cache": "gateway.cli.cache:cache",
    "doctor": "gateway.cli.doctor:doctor",
    "key": "gateway.cli.keys:key",
    "load": "load.command:command",
    "models": "gateway.cli.models:models",
    "plan": "gateway.cli.plan:plan",
    "restore": "gateway.cli.backup:restore",
    "route": "gateway.cli.route:route",
    "safety": "gateway.cli.safety:safety",
    "scale": "gateway.cli.scale:scale",
    "tenant": "gateway.cli.tenants:tenant",
    "usage": "gateway.cli.usage:usage",
    "user": "gateway.cli.tenants:user",
}
"""Commands of other modules, which are loaded when they are asked for: all together take longer than most commands."""


class _Root(click.Group):
    """The commands of this module and those elsewhere."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, name = _ELSEWHERE[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=_Root, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="roundhouse")
def main() -> None:
    """A chat gateway for language models that you run yourself.

    \b
    Start everything on this machine, with three models that it fetches:
        roundhouse serve
    Chat in the terminal, in another window:
        roundhouse chat
        roundhouse chat --once "What is a prefix cache?"
    Use it from any OpenAI client:
        OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="roundhouse-demo")
    Fetch models that you can serve, and see which there are:
        roundhouse models list
        roundhouse models pull smollm2-135m
    Serve your own models: write a roundhouse.toml (docs/configuration.md), then
        roundhouse config check
        roundhouse serve
    Serve your own LoRA adapters beside their base model:
        roundhouse adapter add pirate runs/pirate --model llama-8b
    Share it among tenants, with keys and limits of their own:
        roundhouse tenant add acme
        roundhouse key add acme
    Administer it in a browser, as operator:
        roundhouse admin link
    Watch engines, tenants and caches:
        roundhouse top
    See and set how many engines a pool has:
        roundhouse scale status
    Find out what is wrong, or why it is slow:
        roundhouse doctor
    Find out what load it takes, and whether answers stay right under it:
        roundhouse load http://127.0.0.1:8080 --search --slo ttft=1
    Plan how many replicas a load needs, and what they cost:
        roundhouse plan --model llama-3.1-8b --hardware h100 --traffic rate=20,input=1200,output=250
    See what the caches save, and what was used:
        roundhouse cache stats
        roundhouse usage
    """


@main.command()
@config_option
@click.option("--host", help="Address to listen on instead of server.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on instead of server.port; 0 picks one.")
@click.option(
    "--gateways",
    type=click.IntRange(1, 256),
    help="Gateway processes that share the port instead of server.gateways; one for each core that they may have.",
)
@click.option(
    "--models",
    metavar="TIER[,TIER...]|none",
    help="Tiers whose models are fetched and served where the configuration names no pools, instead of models.serve.",
)
def serve(config: str | None, host: str | None, port: int | None, gateways: int | None, models: str | None) -> None:
    """Start Redis (unless one is configured), the engines and the gateway; print the URL to open in a browser.

    Without pools in a configuration, three models are fetched and served: small, medium and large (1.7 GB together; see
    `roundhouse models list`). It opens when the first is here. `--models small` takes less, `--models none` nothing.

    \b
    Examples:
      roundhouse serve --models small,medium
      roundhouse serve --config roundhouse.toml --port 9000
      roundhouse serve --config roundhouse.toml --gateways 8

    Ctrl-C or SIGTERM lets running answers finish, then
    stops everything; a second one stops at once. SIGHUP reads the configuration again, see `roundhouse reload`.
    """
    from gateway.processes import supervisor
    from gateway.server import PortTaken
    from gateway.telemetry import logs

    server = {"host": host, "port": port, "gateways": gateways}
    options: dict[str, dict[str, object]] = {
        "server": {name: value for name, value in server.items() if value is not None}
    }
    if models is not None:
        tiers = [] if models == "none" else models.split(",")
        if wrong := set(tiers).difference(TIERS):
            raise click.BadParameter(
                f"{', '.join(sorted(wrong))}: choose from {', '.join(TIERS)}, or none", param_hint="--models"
            )
        options["models"] = {"serve": tiers}
    console = Console(highlight=False)

    def read() -> Settings:
        return load(config, options=options)

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    try:
        settings = read()
        logs.configure(settings.log)
        run(supervisor.serve(settings, say, read, file_of(config)))
    except (SettingsError, PortTaken, supervisor.Failed) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@config_option
def reload(config: str | None) -> None:
    """Make a running `roundhouse serve` with the same data folder read its configuration again, and list what changed.

    A configuration that cannot be used changes nothing; the error says why (try `roundhouse config check` first).
    Running answers keep the settings that they began with.
    """
    from gateway.processes import control

    data = control.data_folder(config)
    try:
        answer = control.ask(data, "reload")
    except OSError as error:
        raise click.ClickException(control.unanswered(data, error)) from error
    if answer.error is not None:
        raise click.ClickException(f"refused, the old configuration stays in force: {answer.error}")
    click.echo(f"changed: {', '.join(answer.changed)}" if answer.changed else "nothing has changed")


@main.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="Address of the gateway.")
@click.option("--key", default="roundhouse-demo", show_default=True, envvar="ROUNDHOUSE_API_KEY", help="API key.")
@click.option("--model", default="auto", show_default=True, help="auto, small, medium, large or a model's name.")
@click.option("--once", metavar="QUESTION", help="Ask this question, print the answer and end.")
def chat(url: str, key: str, model: str, once: str | None) -> None:
    """Chat with a model in the terminal; Ctrl-C stops an answer, an empty line ends the chat.

    \b
    roundhouse chat --model pirate
    roundhouse chat --once "What is a prefix cache?"
    """
    from gateway.cli.chat import ChatError
    from gateway.cli.chat import chat as talk

    try:
        run(talk(url, key, model, once))
    except ChatError as error:
        raise click.ClickException(str(error)) from error


@main.group()
def engine() -> None:
    """Run one model replica by itself, for a gateway on this machine or another one."""


@engine.command(
    "serve", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def engine_serve(options: tuple[str, ...]) -> None:
    """Serve one model over a socket; `roundhouse engine serve --help` lists the options and shows examples."""
    from gateway.processes.extras import missing

    if install := missing("engine"):
        raise click.ClickException(f"this host has a gateway only: {install}")
    # Replaces this process: an engine needs torch, which nothing else here may import.
    os.execv(sys.executable, [sys.executable, "-m", "engine.server", *options])


@engine.command("key")
@config_option
def engine_key(config: str | None) -> None:
    """Print the key with which engines of this installation seal what they announce, for `--register-key`."""
    try:
        click.echo(derive(installation_secret(load_settings(config)), "engines").hex())
    except SettingsError as error:
        raise click.ClickException(str(error)) from error


@main.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def ray(options: tuple[str, ...]) -> None:
    """Run engines on a Ray cluster; `roundhouse ray --help` lists the commands and shows examples."""
    from gateway.processes.extras import missing

    if install := missing("ray"):
        raise click.ClickException(f"this host has no Ray: {install}")
    # Replaces this process: nothing of the gateway may import Ray.
    os.execv(sys.executable, [sys.executable, "-m", "deploy.ray", *options])


@main.group()
def config() -> None:
    """Check or show the configuration that the other commands and `roundhouse serve` use; see docs/configuration.md."""


@config.command("check")
@config_option
def config_check(config: str | None) -> None:
    """Say whether the configuration can be used, and if not, which field is wrong; running gateways keep theirs."""
    from gateway.config import checkpoints

    settings = load_settings(config)
    try:
        checkpoints.check(checkpoints.present(settings), settings.models.open())
        awaited = checkpoints.awaited(settings)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    tiers = ", ".join(f"{pool.tier}: {pool.name}" for pool in settings.pools)
    click.echo(f"the configuration is valid ({len(settings.tenants)} tenants; {tiers})")
    for pool, model in awaited:
        click.echo(f"the {pool.tier} tier is not here yet: `roundhouse serve` fetches it ({model.bytes / 1e6:,.0f} MB)")
    if not settings.tenants:
        click.echo(f"it names no tenants; {NO_TENANTS}")


@config.command("show")
@config_option
def config_show(config: str | None) -> None:
    """Print the configuration as JSON: defaults, file and environment variables merged, passwords left out."""
    plain = msgspec.to_builtins(load_settings(config))
    if plain["redis"]["url"]:
        plain["redis"]["url"] = without_secrets(plain["redis"]["url"])
    click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())


@main.command()
@config_option
@click.option("--url", help="Address of a gateway whose times are shown too: first token, overhead, Redis.")
@click.option(
    "--sort", type=click.Choice(["tokens", "turns", "running", "refused"]), default="tokens", help="Order of tenants."
)
@click.option("--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds to refresh.")
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object and end.")
def top(config: str | None, url: str | None, sort: str, interval: float, once: bool, as_json: bool) -> None:
    """Watch engines, tenants and caches of all gateways that share the Redis; q ends, s sorts, p pauses.

    Example, with one gateway's times: roundhouse top --url http://127.0.0.1:8080
    """
    from gateway.cli import top as cli_top
    from gateway.cli.directory import print_whole
    from gateway.telemetry import latencies

    console = Console()

    async def show(redis: Redis) -> None:
        if not (once or as_json):
            await cli_top.watch(redis, interval=interval, sort=sort, url=url, console=console)
            return
        seen = await cli_top.read(redis)
        if as_json:
            click.echo(msgspec.json.encode(seen).decode())
            return
        times = latencies.read(await cli_top.read_page(url)) if url else None
        print_whole(console, cli_top.render(seen, sort=sort, times=times))

    try:
        with_redis(load_settings(config), show)
    except cli_top.TopError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
