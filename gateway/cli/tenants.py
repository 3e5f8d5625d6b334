"""`roundhouse tenant` and `roundhouse user`: who may use this Roundhouse, and how much."""

from __future__ import annotations

from typing import Any, get_args

import click
import msgspec

from engine.wire import ServiceClass
from gateway.access.directory.store import Directory
from gateway.cli.connection import actor, config_option, json_option
from gateway.cli.directory import (
    adapter_quota_option,
    add,
    change,
    changed,
    description_option,
    disabled_option,
    everything,
    limits,
    model_quota_option,
    print_list,
    quota_option,
    remove,
    scope_option,
    show,
    source,
    state,
    tenant_option,
    with_directory,
)
from gateway.cli.tenant_moves import tenant_export, tenant_import
from gateway.records.directory import Scope, Tenant, User, email_digest, new_id

_SERVICES = get_args(ServiceClass)

_weight = click.option("--weight", type=float, help="Share of an engine, relative to other tenants.")
_service = click.option("--service", type=click.Choice(_SERVICES), help="Class of requests that ask for no class.")
_services = click.option(
    "--allow-service", "services", type=click.Choice(_SERVICES), multiple=True, help="A class that requests may name."
)
_unknown = click.option(
    "--unknown-parameters", type=click.Choice(["refuse", "ignore"]), help="What to do with parameters nobody knows."
)
_models = click.option("--model", "models", multiple=True, help="Model or adapter that it may use, or `all`.")


@click.group()
def tenant() -> None:
    """Add, change, list and remove tenants: customers or teams. Running gateways see changes within a second.

    \b
    Add a tenant with a budget of 5 dollars a day, and a key for it:
        roundhouse tenant add acme --quota requests_per_minute=600 --quota spend_per_day=5000000
        roundhouse key add acme --description ci
    Change one limit, and remove another one:
        roundhouse tenant set acme --quota requests_per_minute=900 --quota spend_per_day=
    Take it to another cell with the same secret:
        roundhouse tenant export acme acme.json
        roundhouse tenant import acme.json
    """


tenant.add_command(tenant_export)
tenant.add_command(tenant_import)


@tenant.command("add")
@config_option
@click.argument("name")
@description_option
@_weight
@_service
@_services
@_unknown
@_models
@quota_option
@model_quota_option
@adapter_quota_option
def tenant_add(config: str | None, name: str, **options: Any) -> None:
    """Add the tenant NAME; then give it a key with `roundhouse key add NAME`."""
    add(config, _changed(options | {"name": name}, Tenant(name=name)))
    click.echo(f"{name} is a tenant now; give it a key with: roundhouse key add {name}")


@tenant.command("set")
@config_option
@click.argument("name")
@description_option
@_weight
@_service
@_services
@_unknown
@_models
@quota_option
@model_quota_option
@adapter_quota_option
@disabled_option
def tenant_set(config: str | None, name: str, **options: Any) -> None:
    """Change the given properties of the tenant NAME; the others stay. Example: roundhouse tenant set acme --disable"""
    change(config, Tenant, name, lambda before: _changed(options, before))
    click.echo(f"{name} is changed")


def _limits(tenant: Tenant) -> str:
    """Return a tenant's limits as text, those for single models and adapters included."""
    named = [*tenant.model_quotas.items(), *tenant.adapter_quotas.items()]
    return "; ".join(filter(None, [limits(tenant.quota), *(f"{name}: {limits(quota)}" for name, quota in named)]))


def _changed(options: dict[str, Any], before: Tenant) -> Tenant:
    after = changed(options, before)
    return msgspec.structs.replace(after, models=None) if "all" in (after.models or ()) else after


@tenant.command("list")
@config_option
@json_option
def tenant_list(config: str | None, as_json: bool) -> None:
    """List all tenants with their limits and models, those of the configuration file included."""
    print_list(
        everything(config, Tenant),
        as_json,
        {
            "name": lambda one: one.name,
            "state": lambda one: state(one.disabled),
            "weight": lambda one: f"{one.weight:g}",
            "service": lambda one: one.service,
            "limits": _limits,
            "models": lambda one: "all" if one.models is None else ", ".join(one.models),
            "set in": source,
            "description": lambda one: one.description if one.revision else "",
        },
        "there are no tenants yet; add one with: roundhouse tenant add NAME",
    )


@tenant.command("show")
@config_option
@click.argument("name")
def tenant_show(config: str | None, name: str) -> None:
    """Show the tenant NAME as JSON."""
    show(config, Tenant, name)


@tenant.command("remove")
@config_option
@click.argument("name")
@click.option("--force", is_flag=True, help="Remove its users, keys and routes too.")
def tenant_remove(config: str | None, name: str, force: bool) -> None:
    """Remove the tenant NAME, which may have no users, keys and routes unless --force is given."""
    remove(config, Tenant, name, force)


@click.group()
def user() -> None:
    """Add, change, list and remove users: people and services of tenants, known by the `sub` of their tokens.

    \b
    roundhouse user add acme anna@idp --email anna@example.org
    roundhouse key add acme --user user_3f9c2a7b10d4e586
    """


@user.command("add")
@config_option
@click.argument("tenant")
@click.argument("subject")
@description_option
@click.option("--email", help="E-mail address; only a keyed digest of it is stored.")
@scope_option
def user_add(
    config: str | None, tenant: str, subject: str, description: str | None, email: str | None, scopes: tuple[Scope, ...]
) -> None:
    """Add the user that an identity provider calls SUBJECT to a TENANT; print its id, which `key add --user` takes."""

    async def write(directory: Directory, secret: bytes) -> User:
        record = User(
            id=new_id("user"),
            tenant=tenant,
            subject=subject,
            description=description or "",
            email_digest=email_digest(email, secret) if email else None,
            scopes=list(scopes) or None,
        )
        return await directory.write(record, actor=actor(), expected=0)

    if email is not None and "@" not in email:
        raise click.BadParameter(f"{email!r} is no address", param_hint="--email")
    click.echo(with_directory(config, write).id)


@user.command("set")
@config_option
@click.argument("id")
@description_option
@scope_option
@disabled_option
def user_set(config: str | None, id: str, **options: Any) -> None:
    """Change the given properties of the user ID; the others stay. Example: roundhouse user set ID --disable"""
    change(config, User, id, lambda before: changed(options, before))
    click.echo(f"{id} is changed")


@user.command("list")
@config_option
@tenant_option
@json_option
def user_list(config: str | None, tenant: str | None, as_json: bool) -> None:
    """List all users with their scopes, or those of one tenant."""
    print_list(
        everything(config, User, tenant),
        as_json,
        {
            "id": lambda one: one.id,
            "tenant": lambda one: one.tenant,
            "subject": lambda one: one.subject,
            "state": lambda one: state(one.disabled),
            "scopes": lambda one: "as its tokens and keys" if one.scopes is None else ", ".join(one.scopes),
            "description": lambda one: one.description,
        },
        "there are no users",
    )


@user.command("show")
@config_option
@click.argument("id")
def user_show(config: str | None, id: str) -> None:
    """Show the user ID as JSON."""
    show(config, User, id)


@user.command("remove")
@config_option
@click.argument("id")
@click.option("--force", is_flag=True, help="Remove its keys too.")
def user_remove(config: str | None, id: str, force: bool) -> None:
    """Remove the user ID, which may have no keys unless --force is given."""
    remove(config, User, id, force)
