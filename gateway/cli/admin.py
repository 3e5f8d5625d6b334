"""`roundhouse admin`: signing in to the console as operator."""

from __future__ import annotations

import click

from gateway.cli.connection import config_option


@click.group()
def admin() -> None:
    """Sign in to the console in a browser, as operator.

    \b
    Example:
      roundhouse admin link
    """


@admin.command("link")
@config_option
def admin_link(config: str | None) -> None:
    """Print an address that signs in as operator: in a browser of this machine, within ten minutes, once.

    It asks the running `roundhouse serve` with the same data folder; whoever may open that folder may sign in.
    """
    from gateway.processes import control

    data = control.data_folder(config)
    try:
        answer = control.ask(data, "link")
    except OSError as error:
        raise click.ClickException(control.unanswered(data, error)) from error
    if answer.error is not None:
        raise click.ClickException(answer.error)
    click.echo(answer.address)
