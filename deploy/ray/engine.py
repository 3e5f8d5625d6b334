"""The engine of a replica: what it needs of the cluster, and its command line on a node. Knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gateway.config import checkpoints
from gateway.config.ray import RaySettings
from gateway.config.redis import without_secrets
from gateway.config.settings import PoolSettings, Settings, SettingsError
from gateway.engines.adapters import registry_url
from gateway.processes.commands import engine_command


class EngineStart(Struct, frozen=True, kw_only=True):
    """What the head node tells others of an engine. It holds no secret: whoever reads Ray's state may see it."""

    pool: PoolSettings
    ray: RaySettings
    adapters: str
    """Address of their registry."""
    drain_timeout: float
    register: str | None
    """Redis in which the engine announces itself; None: nodes know it, as it has a password."""


class RayNode(Struct, frozen=True):
    """The node that an engine runs on."""

    host: str
    """Address at which gateways reach it."""
    zone: str = ""
    spot: bool = False


def pools_of(settings: Settings) -> Sequence[PoolSettings]:
    """Return the pools whose engines the cluster runs: those that engines register in and a controller sizes.

    Raises:
        SettingsError: there is none, or what their engines need is not configured.
    """
    ray, pools = settings.ray, [pool for pool in settings.pools if pool.registered and pool.scaled]
    if not pools:
        raise SettingsError("pools: none has registered = true and max_replicas, so Ray has no engine to start")
    if settings.redis.url is None:
        raise SettingsError("redis.url: name the Redis of the gateways, in which engines announce themselves")
    if ray.register_key is None:
        raise SettingsError("ray.register_key: engines need the key that `roundhouse engine key` prints")
    tls = (ray.tls_cert, ray.tls_key, ray.tls_client_ca)
    if any(tls) and not all(tls):
        raise SettingsError("ray: tls_cert, tls_key and tls_client_ca belong together")
    own = (ray.register_cert, ray.register_cert_key)
    if any(own) and not (all(own) and ray.register_ca):
        raise SettingsError("ray: register_cert, register_cert_key and register_ca belong together")
    return pools


def bundle(pool: PoolSettings, settings: Settings) -> dict[str, float]:
    """Return the resources that Ray reserves for an engine, which runs on one device."""
    gpus = {"GPU": 1.0} if pool.device == "cuda" else {}
    return {"CPU": float(pool.threads), **gpus, **settings.ray.resources.get(pool.tier, {})}


def engine_start(settings: Settings, pool: PoolSettings) -> EngineStart:
    """
    Raises:
        SettingsError: the models of this node cannot be read.
    """
    url = settings.redis.url or ""
    return EngineStart(
        pool=msgspec.structs.replace(pool, sha256=checkpoints.expected_digest(pool, settings.models.open())),
        ray=settings.ray,
        adapters=registry_url(settings),
        drain_timeout=settings.scaling.drain_timeout,
        register=url if without_secrets(url) == url else None,
    )


def command(start: EngineStart, node: RayNode) -> list[str]:
    """Return the command line of an engine on a node."""
    ray = start.ray
    host = f"[{node.host}]" if ":" in node.host else node.host
    address = f"{'wss' if ray.tls_cert else 'ws'}://{host}:0"
    options = {
        "--register": start.register,
        "--register-key": ray.register_key,
        "--register-ca": ray.register_ca,
        "--register-cert": ray.register_cert,
        "--register-cert-key": ray.register_cert_key,
        "--tls-cert": ray.tls_cert,
        "--tls-key": ray.tls_key,
        "--tls-client-ca": ray.tls_client_ca,
        "--server-name": ray.server_name,
        "--drain-timeout": f"{start.drain_timeout:g}",
        "--zone": node.zone,
    }
    return [
        *engine_command(start.pool, address, start.adapters),
        *(word for name, value in options.items() if value for word in (name, value)),
        *(["--spot"] if node.spot else []),
    ]
