"""Adapters: register, list, show, change (pin, swap, drain), delete."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET
from redis.exceptions import RedisError

from engine.adapters.format import CONFIG, WEIGHTS
from engine.adapters.manifest import Manifest
from engine.adapters.registry import RESERVED, AdapterRegistry, Pointer, RegistryError
from engine.checkpoint.opening import open_checkpoint
from gateway.admin.call import Access, Call
from gateway.admin.endpoints.adapter_access import (
    check_own,
    earlier_versions,
    in_registry,
    is_own,
    may_use,
    own_pointer_of,
    owner,
    pointer_of,
    pointers,
    sees,
)
from gateway.admin.endpoints.adapter_types import (
    AdapterChange,
    AdapterContent,
    AdapterDetails,
    AdapterForm,
    AdapterList,
    AdapterPath,
    AdapterRegistration,
    AdapterState,
    AdapterUpload,
    AdapterVersion,
    AdapterVersions,
)
from gateway.admin.endpoints.shapes import Page
from gateway.admin.kit import cursors
from gateway.admin.kit.conditions import IfMatch, entity_tag
from gateway.admin.kit.endpoints import Answer, Endpoints
from gateway.config.adapter_sources import allowed
from gateway.engines.heartbeat import turns_with
from gateway.engines.pool import Pool
from gateway.errors import ApiError, Conflict, Forbidden, InvalidRequest, invalid_value
from gateway.http.forms import FileSink, Form
from gateway.registration.job_state import RegistrationJob
from gateway.registration.registrar import MAX_CONFIG_BYTES, Registration
from gateway.registration.upload_room import Upload
from gateway.storage import presence

endpoints = Endpoints("adapters", "LoRA adapters, which clients name as `model`.")

_MOST_OF_TENANT = 1000
_MAX_REQUEST_BYTES = 64 * 1024


@endpoints.get("/adapters", access=Access.FILTERED)
async def list_adapters(call: Call, query: Page) -> Answer[AdapterList]:
    """List the adapters that the caller's tenant may use; all of them for operators."""
    names = await pointers(call)
    after = cursors.decode("adapters", query.cursor)
    shown = [name for name in sorted(names) if name > after and sees(call, names[name])]
    page, more = shown[: query.limit], len(shown) > query.limit
    states = [_state(call, name, names[name]) for name in page]
    return Answer(AdapterList(states, cursors.encode("adapters", page[-1]) if more else None))


@endpoints.get("/adapters/{adapter}", access=Access.FILTERED, versioned=True)
async def show_adapter(call: Call, path: AdapterPath) -> Answer[AdapterDetails]:
    """Show an adapter, and what its version contains."""
    pointer = await pointer_of(call, path.adapter)
    manifest = await in_registry(call.gateway.adapters.registry.manifest, pointer.version)
    return Answer(await _details(call, path.adapter, pointer, manifest), etag=_tag(pointer))


@endpoints.get("/adapters/{adapter}/versions", access=Access.FILTERED)
async def list_adapter_versions(call: Call, path: AdapterPath) -> Answer[AdapterVersions]:
    """List the version that a name leads to and those before it, the newest first; those before only to its owner."""
    pointer = await pointer_of(call, path.adapter)
    there = await in_registry(call.gateway.adapters.registry.versions)
    before = [
        AdapterVersion(each.version, False, int(each.until), each.version in there)
        for each in earlier_versions(call, pointer)
    ]
    return Answer(AdapterVersions([AdapterVersion(pointer.version, True, None, pointer.version in there), *before]))


@endpoints.post(
    "/adapters",
    access=Access.FILTERED,
    status=202,
    located=True,
    raises=[Conflict],
    body_type=AdapterRegistration,
    form_type=AdapterForm,
    example={"name": "pirate", "model": "llama-8b", "source": "s3://models/adapters/pirate", "pinned": True},
)
async def register_adapter(call: Call, body: AdapterRegistration | None) -> Answer[RegistrationJob]:
    """Register an adapter from a store, or by upload.

    Answers at once with a job, whose path is in `Location`. The job fetches the files, checks them against the base
    model, stores them as a version, has an engine answer one token with it, and only then gives it the name. An upload
    is a form with the parts `request` (JSON), `config` (adapter_config.json) and `weights` (adapter_model.safetensors).
    """
    registrar = call.gateway.registrar
    tenant = None if call.principal.operator else call.principal.tenant
    registrar.check_room(tenant)
    upload = registrar.room.begin(tenant)
    digest, taken = "", False
    try:
        if body is None:
            wanted, digest = await _receive(call, upload)
            source = None
        else:
            wanted, source = body, _source(call, body)
        pool = _base(call, wanted)
        wanted = await _permitted(call, wanted)
        once = call.once((wanted, digest))
        job = RegistrationJob(
            id=_job_id(call),
            kind="adapter.register",
            tenant=tenant,
            adapter=wanted.name,
        )
        changes = {"model": pool.name, "source": source, "replace": wanted.replace}
        await call.note("adapter.register", wanted.name, job.tenant, changes=changes, once=once)
        if (known := await call.gateway.jobs.create(job)) is not None:
            return Answer(known, location=f"/jobs/{job.id}", replayed=True)
        registration = Registration(
            name=wanted.name,
            upload=upload,
            source=source,
            pool=pool,
            tenants=tuple(wanted.tenants) if wanted.tenants is not None else None,
            pinned=wanted.pinned,
            description=wanted.description,
            replace=wanted.replace,
        )
        await registrar.submit(job, registration)
        taken = True
        return Answer(job, location=f"/jobs/{job.id}")
    finally:
        if not taken:
            await upload.remove()


@endpoints.patch(
    "/adapters/{adapter}",
    access=Access.FILTERED,
    versioned=True,
    raises=[Conflict],
    example={"pinned": True},
)
async def change_adapter(call: Call, path: AdapterPath, body: AdapterChange) -> Answer[AdapterDetails]:
    """Pin, swap, drain or describe an adapter.

    Running turns keep the version that they began with.
    """
    pointer = await own_pointer_of(call, path.adapter)
    fields = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    if not call.principal.operator and (reserved := sorted({"pinned", "tenants"} & fields.keys())):
        raise Forbidden(f"{reserved[0]}: only operators may set it", param=reserved[0])
    match = call.match()
    match.check(_tag(pointer))
    version = fields.get("version", pointer.version)
    if version != pointer.version and not await may_use(call, version):
        raise _no_such_version()
    manifest = await _fitting(call, version, pointer)
    if fields.get("tenants") is not None:
        fields["tenants"] = tuple(fields["tenants"])

    def changed(current: Pointer) -> Pointer:
        return msgspec.structs.replace(current, **fields)

    before = msgspec.to_builtins(pointer)
    changes = {name: [before.get(name), value] for name, value in fields.items()}
    after = await _edit(call, "adapter.update", path.adapter, pointer, match, changed, changes)
    assert after is not None
    return Answer(await _details(call, path.adapter, after, manifest), etag=_tag(after))


@endpoints.delete("/adapters/{adapter}", access=Access.FILTERED, versioned=True, raises=[Conflict])
async def delete_adapter(call: Call, path: AdapterPath) -> Answer[None]:
    """Delete a name.

    Running turns finish. The version stays in the registry until it is pruned there.
    """
    pointer = await own_pointer_of(call, path.adapter)
    match = call.match()
    match.check(_tag(pointer))
    changes = {"version": [pointer.version, None]}
    await _edit(call, "adapter.delete", path.adapter, pointer, match, lambda current: None, changes)
    return Answer(None)


async def _edit(
    call: Call,
    action: str,
    name: str,
    pointer: Pointer,
    match: IfMatch,
    change: Callable[[Pointer], Pointer | None],
    changes: dict[str, Any],
) -> Pointer | None:
    """Change a name's pointer. The change is logged before it is made, and once more if it fails."""

    def allowed(current: Pointer) -> Pointer | None:
        # The name may have been changed, or shared with others, since it was read.
        check_own(call, current)
        match.check(_tag(current))
        return change(current)

    await call.note(action, name, owner(pointer), changes=changes)
    try:
        after = await in_registry(call.gateway.adapters.registry.edit, name, allowed)
    except ApiError:
        with contextlib.suppress(ApiError):
            await call.note(f"{action}.failed", name, owner(pointer))
        raise
    await call.gateway.adapters.refresh()
    return after


async def _receive(call: Call, upload: Upload) -> tuple[AdapterUpload, str]:
    """Write an upload's files into its folder; returns its request and a digest of the files."""
    await asyncio.to_thread(upload.folder.mkdir, parents=True, mode=0o700)
    sinks = {"config": FileSink(upload.folder / CONFIG), "weights": FileSink(upload.folder / WEIGHTS)}
    form = Form(
        call.request.headers["content-type"],
        sinks=sinks,
        limits={"request": _MAX_REQUEST_BYTES, "config": MAX_CONFIG_BYTES, "weights": call.gateway.registrar.max_bytes},
        observe=upload.add,
    )
    try:
        await form.read(call.request.stream(), patience=call.gateway.settings.server.send_timeout)
    finally:
        for sink in sinks.values():
            sink.close()
    upload.received()
    digest = " ".join(f"{name}:{sink.digest}" for name, sink in sinks.items())
    try:
        return msgspec.json.decode(form.values["request"], type=AdapterUpload), digest
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise invalid_value("request", f"{error}") from None


def _source(call: Call, body: AdapterRegistration) -> str:
    """Return the normalised address to fetch from.

    Raises:
        Forbidden, InvalidRequest: the caller may not have this fetched.
    """
    if not call.principal.operator:
        # A store holds the files of many tenants.
        raise Forbidden("source: only operators may set it; upload the files", param="source")
    return allowed(body.source, call.gateway.settings.adapters.sources)


async def _permitted(call: Call, body: AdapterUpload) -> AdapterUpload:
    """Return the registration as it will be done: an admin's is for its own tenant.

    Raises:
        ApiError: the caller may not register this.
    """
    tenant, names = call.principal.tenant, await pointers(call)
    pointer = names.get(body.name)
    if not call.principal.operator:
        for field in ("pinned", "tenants"):
            if getattr(body, field):
                raise Forbidden(f"{field}: only operators may set it", param=field)
        if not body.name.startswith(f"{tenant}:"):
            # Names are shared by all tenants: so none can take another's, or learn that it exists.
            raise Forbidden(f"name: must begin with {tenant}:, such as {tenant}:{body.name[:32]}", param="name")
        if pointer is not None and owner(pointer) != tenant:
            raise Conflict(f"an adapter is named {body.name!r} already", param="name", code="already_exists")
        if pointer is None and sum(name.startswith(f"{tenant}:") for name in names) >= _MOST_OF_TENANT:
            raise Conflict(f"there are {_MOST_OF_TENANT} adapters already; delete some", code="too_many_adapters")
        body = msgspec.structs.replace(body, tenants=[tenant])
    if body.name in RESERVED or any(pool.name == body.name for pool in call.gateway.engines.pools):
        raise invalid_value("name", "a model or tier is named so")
    if pointer is not None and not body.replace:
        raise Conflict(
            f"an adapter is named {body.name!r} already; set replace to have the name lead to this one",
            param="name",
            code="already_exists",
        )
    return body


def _base(call: Call, body: AdapterUpload) -> Pool:
    pools = call.gateway.engines.pools
    found = [pool for pool in pools if body.model in (None, pool.name)]
    if len(found) != 1:
        known = ", ".join(pool.name for pool in pools)
        raise invalid_value("model", f"name the base model, one of {known}")
    if found[0].takes_messages:
        raise invalid_value("model", f"the servers of {found[0].name} take no adapters; name another base model")
    return found[0]


def _job_id(call: Call) -> str:
    """Return an id for the job, the same one when the request is repeated with its idempotency key."""
    if call.idempotency_key is None:
        return f"job_{secrets.token_hex(16)}"
    return f"job_{hashlib.sha256(f'{call.actor} {call.idempotency_key}'.encode()).hexdigest()[:32]}"


def _no_such_version() -> InvalidRequest:
    return invalid_value("version", "no adapter that you may use leads to it; register its files again")


async def _fitting(call: Call, version: str, pointer: Pointer) -> Manifest:
    """Return the manifest of a version.

    Raises:
        InvalidRequest: there is no such version, or it was checked against another base model.
    """
    registry = call.gateway.adapters.registry
    manifest = await asyncio.to_thread(_manifest_or_none, registry, version)
    if manifest is None:
        raise _no_such_version()
    pools = [pool for pool in call.gateway.engines.pools if pool.name == pointer.model]
    if version != pointer.version and pools:
        revision = await asyncio.to_thread(lambda: open_checkpoint(pools[0].path).revision)
        if revision not in manifest.bases:
            raise invalid_value(
                "version", f"it was not checked against {pointer.model} as it is now; register its files again"
            )
    return manifest


def _manifest_or_none(registry: AdapterRegistry, version: str) -> Manifest | None:
    try:
        return registry.manifest(version)
    except RegistryError:
        return None


def _tag(pointer: Pointer) -> str:
    return entity_tag(hashlib.blake2b(msgspec.json.encode(pointer), digest_size=12).hexdigest())


def _state(call: Call, name: str, pointer: Pointer) -> AdapterState:
    return AdapterState(**_fields(call, name, pointer))


async def _details(call: Call, name: str, pointer: Pointer, manifest: Manifest) -> AdapterDetails:
    modules = sorted({target.module for target in manifest.targets})
    content = AdapterContent(
        manifest.size, manifest.max_rank, list(manifest.dtypes), manifest.architecture, list(modules)
    )
    running = await _running_turns(call, name) if is_own(call, pointer) else None
    return AdapterDetails(content=content, running_turns=running, **_fields(call, name, pointer))


async def _running_turns(call: Call, name: str) -> int | None:
    try:
        heartbeats = await presence.read(call.gateway.redis)
    except (RedisError, OSError):
        return None
    heartbeats.pop(call.gateway.presence.id, None)
    others = turns_with(name, heartbeats)
    return None if others is None else call.gateway.metrics.activity.adapters[name] + others


def _fields(call: Call, name: str, pointer: Pointer) -> dict[str, Any]:
    tenants = None if pointer.tenants is None else list(pointer.tenants)
    if tenants is not None and not call.principal.operator:
        tenants = [call.principal.tenant]  # who else may use it is not the caller's business
    resident = [
        engine.name
        for pool in call.gateway.engines.pools
        for engine in pool.engines
        if engine.client.load is not None and pointer.version in (engine.client.load.adapters or ())
    ]
    return {
        "name": name,
        "model": pointer.model,
        "version": pointer.version,
        "tenants": tenants,
        "pinned": pointer.pinned,
        "drained": pointer.drained,
        "description": pointer.description,
        "updated_at": int(pointer.updated),
        "resident_on": resident,
    }
