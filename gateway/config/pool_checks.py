"""Whether the fields of `[[pools]]` agree with each other."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from gateway.config.pools import LOADING_DIALECTS, PoolSettings
from gateway.config.redis import without_secrets
from gateway.config.windows import PoolWindow
from gateway.records.section import SettingsError
from scale.signals import PoolBounds


def check_pools(pools: Sequence[PoolSettings]) -> None:
    """Raises SettingsError: there is none, or the fields of one contradict each other."""
    if not pools:
        raise SettingsError("pools: at least one pool is needed")
    for pool in pools:
        _check_engines(pool)
        _check_replicas(pool)
        if pool.quantize != "off" and pool.dtype != "bfloat16":
            raise SettingsError(
                f'pools: quantize of the {pool.tier} pool is {pool.quantize!r}, which needs dtype = "bfloat16"'
            )
        if pool.step_tokens < pool.max_running:
            raise SettingsError(
                f"pools: step_tokens ({pool.step_tokens}) of the {pool.tier} pool must be at least its max_running "
                f"({pool.max_running})"
            )


def _check_engines(pool: PoolSettings) -> None:
    """Raises SettingsError: an address is none, or its engines are of another dialect than it says."""
    schemes: tuple[str, ...]
    if pool.dialect == "roundhouse":
        schemes, form = ("ws", "wss", "unix"), "ws(s)://host:port or unix:///path"
        if pool.api_key_file is not None:
            raise SettingsError(f"pools: api_key_file of the {pool.tier} pool needs another dialect")
    else:
        schemes, form = ("http", "https"), "http(s)://host:port"
        if not pool.engines or pool.registered:
            raise SettingsError(
                f"pools: the {pool.tier} pool is of {pool.dialect} servers, which `serve` does not start and which do "
                "not announce themselves: name their addresses in engines, and leave out registered"
            )
        _ = pool.api_key  # refused now rather than at the first request
    if pool.adapter_folder is not None and pool.dialect not in LOADING_DIALECTS:
        raise SettingsError(f"pools: adapter_folder of the {pool.tier} pool needs another dialect")
    if pool.takes_messages and pool.sha256 is not None:
        raise SettingsError(f"pools: sha256 of the {pool.tier} pool: its servers have its checkpoint; leave it out")
    if pool.tells_context == (pool.context is not None):
        raise SettingsError(
            f"pools: context of the {pool.tier} pool: its model says how many tokens it takes; leave it out"
            if pool.tells_context
            else f"pools: context of the {pool.tier} pool: say how many tokens its model takes, which {pool.dialect} "
            "servers do not tell"
        )
    for address in pool.engines:
        if not _is_address(address, schemes):
            raise SettingsError(f"pools: engines: {without_secrets(address)!r} is no address; use {form}")
        if pool.dialect != "roundhouse" and urlsplit(address).path.rstrip("/").endswith("/v1"):
            raise SettingsError(f"pools: engines: {address!r}: leave out /v1, which requests add themselves")


def _is_address(address: str, schemes: Sequence[str]) -> bool:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and "@" not in parts.netloc and bool(parts.hostname or parts.scheme == "unix")


def _check_replicas(pool: PoolSettings) -> None:
    """Raises SettingsError: how many engines it may have is contradictory."""
    try:
        bounds = pool.bounds
        for window in pool.windows:
            _check_window(pool, window, bounds)
    except ValueError as error:
        raise SettingsError(f"pools: the {pool.tier} pool: {error}") from error
    if pool.max_replicas is None:
        if pool.on_demand_replicas:
            raise SettingsError(f"pools: on_demand_replicas of the {pool.tier} pool needs max_replicas")
        if pool.own and pool.min_replicas != 1:
            raise SettingsError(
                f"pools: min_replicas of the {pool.tier} pool is {pool.min_replicas}, but `serve` starts one engine: "
                "set max_replicas too, or registered, or name engines that run elsewhere"
            )
    elif pool.engines:
        raise SettingsError(
            f"pools: max_replicas of the {pool.tier} pool has no effect on the engines that it names; leave out either"
        )


def _check_window(pool: PoolSettings, window: PoolWindow, bounds: PoolBounds) -> None:
    """Raises ValueError: it contradicts itself, or its pool."""
    if not pool.scaled:
        raise ValueError("windows need max_replicas")
    if window.min_replicas == 0 < pool.min_replicas:
        raise ValueError("a window in which it may sleep needs min_replicas = 0 of the pool, so that turns wait for it")
    high = window.bounds.max_replicas
    low = pool.min_replicas if window.min_replicas is None else window.min_replicas
    if high is not None and max(low, pool.on_demand_replicas) > high:
        raise ValueError(f"max_replicas of a window is {high}, below min_replicas or on_demand_replicas")
    if low > bounds.affordable:
        raise ValueError(f"the budget pays {bounds.affordable:g} replicas, fewer than min_replicas of a window, {low}")
