"""Loads the configuration: defaults, then a TOML file, then environment variables.

`docs/configuration.md` is generated from the sections and a test compares them. Environment variables are named
`ROUNDHOUSE_<SECTION>_<FIELD>`, for example `ROUNDHOUSE_SERVER_PORT=9000`; lists of tables (tenants, pools) come from
the file. `REDIS_URL` is read too, because every host sets it.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.wire import ServiceClass
from gateway.config.adapter_sources import normalise
from gateway.config.adapters import AdapterSettings as AdapterSettings
from gateway.config.alerts import AlertSettings, check_alerts
from gateway.config.batches import BatchSettings as BatchSettings
from gateway.config.billing import PriceSettings as PriceSettings
from gateway.config.billing import UsageSettings as UsageSettings
from gateway.config.chat import ChatSettings
from gateway.config.default_pools import DEMO as DEMO
from gateway.config.default_pools import default_pools, own_pools
from gateway.config.identity import EngineTlsSettings, IdentitySettings, check_issuers
from gateway.config.judge import JudgeSettings, check_judge
from gateway.config.model_store import ModelStoreSettings
from gateway.config.origin import LOOPBACK
from gateway.config.pool_checks import check_pools
from gateway.config.pools import TIERS as TIERS
from gateway.config.pools import PoolSettings as PoolSettings
from gateway.config.pools import Tier as Tier
from gateway.config.ray import RaySettings
from gateway.config.redis import RedisSettings as RedisSettings
from gateway.config.redis import check_redis
from gateway.config.removed import refuse_removed
from gateway.config.response_cache import CacheSettings
from gateway.config.routing import RouterSettings as RouterSettings
from gateway.config.safety import SafetySettings, check_safety
from gateway.config.scaling import ScalingSettings as ScalingSettings
from gateway.config.semantic_cache import EmbedderSettings as EmbedderSettings
from gateway.config.semantic_cache import SemanticCacheSettings as SemanticCacheSettings
from gateway.config.semantic_cache import check_embedder
from gateway.config.telemetry import LogSettings as LogSettings
from gateway.config.telemetry import TelemetrySettings as TelemetrySettings
from gateway.config.tiers import check_tiers
from gateway.records.directory import Scope
from gateway.records.quota import Quota, Rate
from gateway.records.quota import Seconds as BurstSeconds
from gateway.records.section import Positive, Seconds, apply_environment
from gateway.records.section import Section as Section
from gateway.records.section import SettingsError as SettingsError

DEMO_KEY = "roundhouse-demo"
"""The API key of the embedded default, which anybody may know: it opens nothing beyond this machine."""
NO_TENANTS = "make the first while `roundhouse serve` runs: roundhouse tenant add NAME, then roundhouse key add NAME"
"""Advice to a user while no tenant exists."""


class ServerSettings(Section, frozen=True):
    """Where the gateway listens and how large or slow a client may be."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 picks a free one.")] = 8080
    gateways: Annotated[
        int, Meta(ge=1, le=256, description="Gateway processes of `serve` that share the port, one for each core.")
    ] = 1
    allowed_origins: Annotated[
        list[str],
        Meta(
            description="Origins whose pages may call the API, besides the server's own; `*` is all. A server that"
            " listens on a loopback address also answers to these names, for a proxy in front of it."
        ),
    ] = []
    max_message_bytes: Annotated[Positive, Meta(description="Largest WebSocket message or request body.")] = 1_048_576
    max_connections: Annotated[Positive, Meta(description="Most WebSockets of this process; more get 503.")] = 10_000
    max_connections_per_tenant: Annotated[Positive, Meta(description="Most open WebSockets of one tenant.")] = 1_000
    idle_timeout: Annotated[Seconds, Meta(description="Seconds a socket without a turn may stay silent.")] = 600.0
    first_message_timeout: Annotated[
        Seconds, Meta(description="Seconds a new socket may wait before its first message.")
    ] = 60.0
    connection_lifetime: Annotated[Seconds, Meta(description="Seconds until a socket must be opened anew.")] = 3600.0
    send_timeout: Annotated[
        Seconds, Meta(description="Seconds a client may leave its socket unread before it is closed with 4503.")
    ] = 30.0
    trusted_proxies: Annotated[
        list[str],
        Meta(
            description="Addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are "
            "trusted. All clients of another proxy count as one address."
        ),
    ] = []
    failed_keys_per_minute: Annotated[
        Positive, Meta(description="Wrong keys or tokens that one client address may send before it has to wait.")
    ] = 30
    drain_timeout: Annotated[Seconds, Meta(description="Seconds running turns may take to finish after SIGTERM.")] = (
        30.0
    )
    watch_config: Annotated[
        bool, Meta(description="Read the configuration file again whenever it changes, as after SIGHUP.")
    ] = False


class TurnSettings(Section, frozen=True):
    """How long turns run, wait and are kept, and how many."""

    orphan_timeout: Annotated[Seconds, Meta(description="Seconds a turn runs on after its last viewer has gone.")] = (
        30.0
    )
    retention: Annotated[
        Seconds, Meta(description="Seconds a gateway process keeps a finished response in its memory.")
    ] = 600.0
    max_retained: Annotated[Positive, Meta(description="Most finished responses that a gateway keeps.")] = 10_000
    store_ttl: Annotated[
        Seconds,
        Meta(description="Seconds Redis keeps a response or conversation, which any gateway can read and continue."),
    ] = 86_400.0
    max_stored_per_tenant: Annotated[
        Positive, Meta(description="Most stored responses of one tenant, and most conversations; the oldest go first.")
    ] = 10_000
    max_stored_bytes_per_tenant: Annotated[
        int, Meta(ge=4 * 1024 * 1024, description="Bytes of either; the oldest go first. One has 4 MiB at most.")
    ] = 64 * 1024 * 1024
    checkpoint_interval: Annotated[
        Seconds,
        Meta(description="Seconds between checkpoints of a long answer, for other gateways if this one dies."),
    ] = 2.0
    max_concurrent_per_connection: Annotated[Positive, Meta(description="Most running turns of one WebSocket.")] = 32
    coalesce_window: Annotated[
        float,
        Meta(
            ge=0, le=1, description="Seconds in which deltas merge for pages, and while a client or the loop is behind."
        ),
    ] = 0.03
    queue_timeout: Annotated[
        Seconds | None,
        Meta(
            description="Seconds a request may wait in an engine for its first step; one that would wait longer is "
            "refused at once with 503 and `Retry-After`."
        ),
    ] = 120.0
    move_timeout: Annotated[
        Seconds,
        Meta(description="Seconds a turn whose engine is lost waits for one that can go on with it, or begin it."),
    ] = 10.0
    default_max_output_tokens: Annotated[
        Positive, Meta(description="Output limit of a request that names none (never beyond the context).")
    ] = 1024


class QuotaSettings(Section, Quota, frozen=True):
    """Limits of one subject, as the configuration has them."""


class LimitSettings(QuotaSettings, frozen=True, omit_defaults=False):
    """What a tenant may use; a tenant, key, model or adapter may have a quota of its own."""

    input_tokens_per_minute: Annotated[Rate | None, Meta(description="Input tokens per minute.")] = 600_000
    output_tokens_per_minute: Annotated[Rate | None, Meta(description="Output tokens per minute.")] = 600_000
    burst_seconds: Annotated[
        BurstSeconds | None,
        Meta(description="Seconds of the rates that may be used at once."),
    ] = 60
    on_redis_down: Annotated[
        Literal["allow_local", "deny"],
        Meta(description="Without Redis: limit within this process (allow_local) or refuse (deny)."),
    ] = "allow_local"
    soft_limit: Annotated[
        float, Meta(gt=0, le=1, description="Part of a limit that may be used before clients are warned.")
    ] = 0.8
    expected_quantile: Annotated[
        float, Meta(gt=0, le=1, description="Share of answers that are no longer than what the mode expected reserves.")
    ] = 0.95


class ApiKeySettings(Section, frozen=True):
    """One API key, stored as a digest only."""

    id: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9_.-]{1,64}$", description="Name of the key in logs; no other key of any tenant has it."
        ),
    ]
    sha256: Annotated[
        str, Meta(pattern="^[0-9a-f]{64}$", description="Hex SHA-256 of the key: `printf %s KEY | sha256sum`.")
    ]
    scopes: Annotated[list[Scope], Meta(description="Scopes of the key, see [identity.md](identity.md#scopes).")] = (
        msgspec.field(default_factory=lambda: ["chat", "models", "adapters"])
    )
    operator: Annotated[bool, Meta(description="Whether its admin scopes reach every tenant, not only its own.")] = (
        False
    )


class TenantSettings(Section, frozen=True):
    """A customer or team: its keys and limits."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,64}$", description="Name in logs, statistics and Redis keys.")]
    keys: Annotated[list[ApiKeySettings], Meta(description="Keys that act for this tenant.")] = []
    limits: Annotated[
        QuotaSettings | None, Meta(description="Limits of this tenant; those that are left out are as in `[limits]`.")
    ] = None
    unknown_parameters: Annotated[
        Literal["refuse", "ignore"],
        Meta(description="What to do with parameters that no request has: refuse them as OpenAI does, or ignore them."),
    ] = "refuse"
    weight: Annotated[
        float, Meta(ge=0.01, le=100, description="Share of an engine, relative to other tenants of the same class.")
    ] = 1.0
    service: Annotated[
        ServiceClass,
        Meta(description="Class of requests that name no `service_tier`: premium goes first, batch last."),
    ] = "standard"
    services: Annotated[
        list[ServiceClass],
        Meta(description="Classes to ask for beside its own: `service_tier` `priority` is premium, `flex` batch."),
    ] = msgspec.field(default_factory=lambda: ["standard", "batch"])


class AdminSettings(Section, frozen=True):
    """The admin API, see [admin-api.md](admin-api.md)."""

    listen: Annotated[
        str | None,
        Meta(
            description="Listener of the admin API alone (`host:port` or `unix:/path`); empty: it is served at "
            "`/admin` beside everything else."
        ),
    ] = None


class Settings(Section, frozen=True):
    """The whole configuration of a Roundhouse."""

    server: ServerSettings = ServerSettings()
    turns: TurnSettings = TurnSettings()
    redis: RedisSettings = RedisSettings()
    limits: LimitSettings = LimitSettings()
    cache: CacheSettings = CacheSettings()
    embedder: EmbedderSettings = EmbedderSettings()
    semantic_cache: SemanticCacheSettings = SemanticCacheSettings()
    usage: UsageSettings = UsageSettings()
    batches: BatchSettings = BatchSettings()
    chat: ChatSettings = ChatSettings()
    router: RouterSettings = RouterSettings()
    judge: JudgeSettings = JudgeSettings()
    scaling: ScalingSettings = ScalingSettings()
    adapters: AdapterSettings = AdapterSettings()
    models: ModelStoreSettings = ModelStoreSettings()
    admin: AdminSettings = AdminSettings()
    alerts: AlertSettings = AlertSettings()
    identity: IdentitySettings = IdentitySettings()
    engine_tls: EngineTlsSettings = EngineTlsSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    ray: RaySettings = RaySettings()
    safety: SafetySettings = SafetySettings()
    tenants: list[TenantSettings] = []
    pools: list[PoolSettings] = []
    prices: list[PriceSettings] = []


_DEMO_DIGEST = hashlib.sha256(DEMO_KEY.encode()).hexdigest()


def demo_settings() -> Settings:
    """The repository's own model, and one tenant whose key is `roundhouse-demo`."""
    tenants = [TenantSettings(name="demo", keys=[ApiKeySettings(id="demo", sha256=_DEMO_DIGEST)])]
    return Settings(tenants=tenants, pools=own_pools())


def file_of(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Path of the file that `load` reads if it exists."""
    return Path(path or environ.get("ROUNDHOUSE_CONFIG") or "roundhouse.toml")


def load(
    path: str | Path | None = None,
    environ: Mapping[str, str] = os.environ,
    options: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
) -> Settings:
    """Read the configuration.

    `path`, else `ROUNDHOUSE_CONFIG`, else `roundhouse.toml` in the working directory if there is one. Without pools
    those of `models.serve` are used, and the demo's tenant with its public key only without pools and tenants.

    Args:
        options: fields by section that override the file and the environment.

    Raises:
        SettingsError: a file is missing or a value is wrong; the message names it.
    """
    explicit = path or environ.get("ROUNDHOUSE_CONFIG")
    file = file_of(path, environ)
    raw: dict[str, Any] = {}
    if file.is_file():
        try:
            raw = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{file}: not valid TOML: {error}") from error
        except RecursionError:
            raise SettingsError(f"{file}: not valid TOML: nested too deep") from None
    elif explicit:
        raise SettingsError(f"{file}: no such configuration file")
    refuse_removed(raw, environ)
    apply_environment(raw, Settings, environ)
    if environ.get("REDIS_URL"):
        raw.setdefault("redis", {}).setdefault("url", environ["REDIS_URL"])
    for section, fields in options.items():
        raw.setdefault(section, {}).update(fields)
    if "tenants" not in raw and "pools" not in raw:
        raw["tenants"] = msgspec.to_builtins(demo_settings().tenants)
    _choose_models(raw)
    try:
        settings = msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"configuration: {error}") from error
    _check(settings)
    return settings


def _choose_models(raw: dict[str, Any]) -> None:
    """Add the default pools where there are none.

    Raises:
        SettingsError: they cannot be made, or pools and models to serve are both named.
    """
    try:
        models = msgspec.convert(raw.get("models", {}), ModelStoreSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"configuration: models: {error}") from error
    if "pools" not in raw:
        raw["pools"] = msgspec.to_builtins(default_pools(models))
    elif raw.get("models", {}).get("serve"):
        raise SettingsError(
            "models.serve: the configuration names pools, which are what is served; leave out one of both "
            "(--models none, if the option names them)"
        )


def _check(settings: Settings) -> None:
    names = [tenant.name for tenant in settings.tenants]
    if len(set(names)) != len(names):
        raise SettingsError("tenants: two tenants have the same name")
    digests = [key.sha256 for tenant in settings.tenants for key in tenant.keys]
    if len(set(digests)) != len(digests):
        raise SettingsError("tenants: two keys have the same sha256")
    ids = [key.id for tenant in settings.tenants for key in tenant.keys]
    if twice := {id for id in ids if ids.count(id) > 1}:  # a key is read, logged and billed by its id alone
        raise SettingsError(f"tenants: two keys have the id '{min(twice)}'; give each key of all tenants its own")
    _check_demo_key(settings)
    check_safety(settings.safety)
    check_embedder(settings.embedder)
    check_redis(settings.redis)
    check_issuers(settings.identity.issuers)
    check_alerts(settings.alerts)
    priced = [price.name for price in settings.prices]
    if len(set(priced)) != len(priced):
        raise SettingsError("prices: two prices have the same name")
    check_pools(settings.pools)
    check_tiers(settings.pools)
    check_judge(settings.judge, settings.pools, settings.router)
    for source in settings.adapters.sources:
        try:
            normalise(source)
        except ValueError as error:
            raise SettingsError(f"adapters.sources: {source!r}: {error}") from None
    if settings.router.medium_from > settings.router.large_from:
        raise SettingsError("router.medium_from must not be above router.large_from")


def _check_demo_key(settings: Settings) -> None:
    """
    Raises:
        SettingsError: other machines can use the key that everybody knows.
    """
    demo = [key for tenant in settings.tenants for key in tenant.keys if key.sha256 == _DEMO_DIGEST]
    ways = {"server.host": settings.server.host} if demo else {}
    listen = settings.admin.listen or ""
    if listen and not listen.startswith("unix:") and any({"admin:read", "admin:write"} & {*key.scopes} for key in demo):
        ways["admin.listen"] = listen.rpartition(":")[0].strip("[]")
    for field, host in ways.items():
        if host not in LOOPBACK:  # an empty one is every address of this machine
            raise SettingsError(
                f"{field}: {host or 'every address'} is reachable from other machines, and tenants have the demo's key "
                f"{DEMO_KEY}, which everybody knows; give `[[tenants]]` keys of your own, or listen on 127.0.0.1"
            )
