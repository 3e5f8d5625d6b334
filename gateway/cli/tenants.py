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
from gateway.records.directory import Scope, Tenant, User, email_digest, new_id

_SERVICES = get_args(ServiceClass)

_weight = click.option("--weight", type=float, help="Share of an engine beside other tenants of its class.")
_service = click.option("--service", type=click.Choice(_SERVICES), help="Class of requests that ask for none.")
_services = click.option(
    "--allow-service", "services", type=click.Choice(_SERVICES), multiple=True, help="A class it may ask for."
)
_models = click.option("--model", "models", multiple=True, help="A model or adapter it may use; `all` for all.")


@click.group()
def tenant() -> None:
    """Customers and teams. Running gateways see changes within a second.

    \b
    A tenant with a budget of 5 dollars a day, and a key for it:
        roundhouse tenant add acme --quota requests_per_minute=600 --quota spend_per_day=5000000
        roundhouse key add acme --description ci
    Change one limit, take another one away:
        roundhouse tenant set acme --quota requests_per_minute=900 --quota spend_per_day=
    """


@tenant.command("add")
@config_option
@click.argument("name")
@description_option
@_weight
@_service
@_services
@_models
@quota_option
@model_quota_option
@adapter_quota_option
def tenant_add(config: str | None, name: str, **options: Any) -> None:
    """Add the tenant NAME."""
    add(config, _changed(options | {"name": name}, Tenant(name=name)))
    click.echo(f"{name} is a tenant now; give it a key with: roundhouse key add {name}")


@tenant.command("set")
@config_option
@click.argument("name")
@description_option
@_weight
@_service
@_services
@_models
@quota_option
@model_quota_option
@adapter_quota_option
@disabled_option
def tenant_set(config: str | None, name: str, **options: Any) -> None:
    """Change what is given of the tenant NAME; the rest stays."""
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
    """All tenants, those of the configuration file among them."""
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
    """The tenant NAME as JSON."""
    show(config, Tenant, name)


@tenant.command("remove")
@config_option
@click.argument("name")
@click.option("--force", is_flag=True, help="With its users and keys.")
def tenant_remove(config: str | None, name: str, force: bool) -> None:
    """Remove the tenant NAME."""
    remove(config, Tenant, name, force)


@click.group()
def user() -> None:
    """People and services of tenants, known by the subject of an identity provider's tokens."""


@user.command("add")
@config_option
@click.argument("tenant")
@click.argument("subject")
@description_option
@click.option("--email", help="Kept as a keyed digest only.")
@scope_option
def user_add(
    config: str | None, tenant: str, subject: str, description: str | None, email: str | None, scopes: tuple[Scope, ...]
) -> None:
    """Add what an identity provider calls SUBJECT to a TENANT; prints its id."""

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
    """Change what is given of the user ID; the rest stays."""
    change(config, User, id, lambda before: changed(options, before))
    click.echo(f"{id} is changed")


@user.command("list")
@config_option
@tenant_option
@json_option
def user_list(config: str | None, tenant: str | None, as_json: bool) -> None:
    """All users."""
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
    """The user ID as JSON."""
    show(config, User, id)


@user.command("remove")
@config_option
@click.argument("id")
@click.option("--force", is_flag=True, help="With its keys.")
def user_remove(config: str | None, id: str, force: bool) -> None:
    """Remove the user ID."""
    remove(config, User, id, force)
