"""Which adapters a caller may see and change, read from the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from engine.adapters.registry import EarlierVersion, Pointer, RegistryError
from gateway.admin.call import Call
from gateway.errors import Forbidden, NotFound, Unavailable

T = TypeVar("T")


async def in_registry(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function of the registry, which reads files, in a thread.

    Raises:
        Unavailable: the registry cannot be read or written.
    """
    try:
        return await asyncio.to_thread(function, *arguments)
    except RegistryError as error:
        raise Unavailable(str(error)) from None


async def pointers(call: Call) -> dict[str, Pointer]:
    """Return all names of adapters, with their pointers."""
    return await in_registry(call.gateway.adapters.registry.names)


async def pointer_of(call: Call, name: str) -> Pointer:
    """Return the pointer of a name that the caller may see. Raises NotFound: there is none."""
    pointer = (await pointers(call)).get(name)
    if pointer is None or not sees(call, pointer):
        raise NotFound(f"no adapter is named {name!r}")
    return pointer


async def own_pointer_of(call: Call, name: str) -> Pointer:
    """Return the pointer of a name that the caller may change. Raises NotFound, Forbidden."""
    pointer = await pointer_of(call, name)
    check_own(call, pointer)
    return pointer


def check_own(call: Call, pointer: Pointer) -> None:
    """Raise Forbidden if others may use the adapter too and the caller is no operator."""
    if not is_own(call, pointer):
        raise Forbidden("it is not this tenant's alone; only operators may change it")


def is_own(call: Call, pointer: Pointer) -> bool:
    """Whether the caller may change an adapter."""
    return call.principal.operator or owner(pointer) == call.principal.tenant


def sees(call: Call, pointer: Pointer) -> bool:
    """Whether the caller may see an adapter's name."""
    return call.principal.operator or pointer.allows(call.principal.tenant)


def owner(pointer: Pointer) -> str | None:
    """Return the only tenant that may use an adapter; None if there are several."""
    return pointer.tenants[0] if pointer.tenants is not None and len(pointer.tenants) == 1 else None


async def may_use(call: Call, version: str) -> bool:
    """Whether a name that the caller's tenant may use leads to a version, or one of its own has led there. A digest
    alone is no permission."""
    if call.principal.operator:
        return True
    tenant = call.gateway.view.tenant(call.principal.tenant)
    return any(
        version in (pointer.version, *(each.version for each in earlier_versions(call, pointer)))
        and pointer.allows(call.principal.tenant)
        and tenant is not None
        and tenant.may_use(name)
        for name, pointer in (await pointers(call)).items()
    )


def earlier_versions(call: Call, pointer: Pointer) -> tuple[EarlierVersion, ...]:
    """Return what a name led to before, if the caller may change it."""
    return pointer.earlier if is_own(call, pointer) else ()
