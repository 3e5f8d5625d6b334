"""Determines the subjects whose limits a turn or socket counts against. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gateway.access.identity import Principal
from gateway.records.directory import Key, Tenant
from gateway.records.quota import LimitSubject, Mode, Quota


@lru_cache(maxsize=10_000)
def _over(own: Quota | None, behind: Quota) -> Quota:
    whole = behind if own is None else own.over(behind)
    return whole.over(Quota())  # without what the section of the configuration has beside limits


@lru_cache(maxsize=10_000)
def _limits(quota: Quota) -> bool:
    return any(getattr(quota, name) is not None for name in Quota.__struct_fields__ if name not in _NO_LIMIT)


_NO_LIMIT = ("burst_seconds", "mode")


def subjects_of(
    default: Quota, tenant: Tenant | None, principal: Principal, model: str | None, adapter: str | None
) -> tuple[LimitSubject, ...]:
    """Return the tenant, its key, its user, and the model and adapter that answer: those that have a limit.

    Args:
        default: limits of a tenant that has none of its own.
        model: the base model that answers; None if only sockets or keys matter.
    """
    whole = _over(tenant.quota if tenant else None, default)
    found = [LimitSubject("tenant", whole)]
    if principal.quota is not None:
        found.append(LimitSubject(f"key:{principal.counts_as or principal.key}", principal.quota))
    user = principal.user_id or principal.user
    if tenant is not None and user is not None and user in tenant.user_quotas:
        found.append(LimitSubject(f"user:{user}", tenant.user_quotas[user]))
    if tenant is not None and model is not None and model in tenant.model_quotas:
        found.append(LimitSubject(f"model:{model}", tenant.model_quotas[model]))
    if tenant is not None and adapter is not None and (quota := _adapter_quota(tenant, adapter)) is not None:
        found.append(LimitSubject(f"adapter:{adapter}", quota))
    return tuple(subject for subject in found if _limits(subject.quota))


def every_subject(default: Quota, tenant: Tenant, keys: Iterable[Key]) -> tuple[LimitSubject, ...]:
    """Return the tenant, its keys, users, models and adapters: those that have a limit.

    Args:
        keys: of the tenant; those that count together, because one has replaced the other, are one subject.
    """
    found = {"tenant": _over(tenant.quota, default)}
    found |= {f"key:{key.counts_as or key.id}": key.quota for key in keys if key.quota is not None}
    found |= {f"user:{id}": quota for id, quota in tenant.user_quotas.items()}
    found |= {f"model:{name}": quota for name, quota in tenant.model_quotas.items()}
    for name in tenant.adapter_quotas | tenant.own_adapter_quotas:
        if (quota := _adapter_quota(tenant, name)) is not None:
            found[f"adapter:{name}"] = quota
    return tuple(LimitSubject(name, quota) for name, quota in found.items() if _limits(quota))


def _adapter_quota(tenant: Tenant, adapter: str) -> Quota | None:
    """Return what a tenant may use of an adapter: the stricter of what operators and its own admins have set."""
    by_operators, own = tenant.adapter_quotas.get(adapter), tenant.own_adapter_quotas.get(adapter)
    return own.within(by_operators) if own is not None and by_operators is not None else own or by_operators


def socket_subjects(default: Quota, tenant: Tenant | None, principal: Principal) -> tuple[LimitSubject, ...]:
    """Return those that limit the number of open sockets."""
    return tuple(
        subject
        for subject in subjects_of(default, tenant, principal, None, None)
        if subject.quota.open_sockets is not None
    )


def mode_of(subjects: tuple[LimitSubject, ...]) -> Mode:
    """Return the mode: strict if a key, user, model or adapter says so, else what one of them says, else what the
    tenant says."""
    own = [subject.quota.mode for subject in subjects if subject.name != "tenant" and subject.quota.mode]
    if own:
        return "strict" if "strict" in own else own[0]
    return next((subject.quota.mode for subject in subjects if subject.quota.mode), "strict")


@lru_cache(maxsize=10_000)
def share_of_quota(quota: Quota, gateways: int) -> Quota:
    """Return one gateway's part of a quota while gateways cannot count together; at least one of everything but
    money."""
    changes: dict[str, int] = {}
    for name in Quota.__struct_fields__:
        value = getattr(quota, name)
        if isinstance(value, int) and name not in _NO_LIMIT:
            changes[name] = value // gateways if name.startswith("spend") else max(1, value // gateways)
    return Quota(**changes, burst_seconds=quota.burst_seconds, mode=quota.mode)
