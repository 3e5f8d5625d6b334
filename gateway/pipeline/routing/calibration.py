"""Which model of success speaks for the pools of a configuration.

A model knows the models whose answers it was learnt from (`PoolSettings.weights`). For others it is not used: their
order of questions was worse than chance on every strong pair of models that it was tried on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from gateway.config.pools import PoolSettings
from gateway.config.settings import Settings, SettingsError
from gateway.config.tiers import first_pools
from router.expense import Rates, Three, TokenRates, flat
from router.success import SuccessModel
from router.tier import TIERS, relative

RELEASED = Path(__file__).resolve().parents[3] / "router" / "real.safetensors"
"""The model of this release, learnt from the catalogue's three models."""


class Calibration(Struct, frozen=True):
    """The model of success in use, or why there is none."""

    model: SuccessModel | None
    why: str = ""
    """Why `auto` goes by no model, for people; empty if it does."""


def calibration(settings: Settings) -> Calibration:
    """Find the model of success for the pools: the one that is named, installed, or of this release.

    Raises:
        SettingsError: the file that is named holds none.
    """
    router = settings.router
    if not router.learnt:
        return Calibration(None, "router.learnt is off")
    if router.model is not None:
        model = read_model(router.model)
        why = f"router.model: {router.model} was learnt from {_named(model)}"
        return Calibration(model) if speaks_for(model, settings.pools) else Calibration(None, why)
    for path in (installed(settings), RELEASED):
        if path.exists() and speaks_for(found := read_model(str(path)), settings.pools):
            return Calibration(found)
    return Calibration(None, "nothing was learnt from these models")


def installed(settings: Settings) -> Path:
    """Return the file that holds what was learnt from the models of these pools, once it is."""
    names = "\0".join(f"{pool.tier}\0{pool.weights}" for pool in sorted(settings.pools, key=lambda pool: pool.tier))
    digest = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
    return Path(settings.redis.data) / "router" / f"{digest}.safetensors"


def speaks_for(model: SuccessModel, pools: Sequence[PoolSettings]) -> bool:
    """Return whether a model was learnt from the models of these pools; it may know further tiers.

    Pools that only stand in for another one of their tier may have any model.
    """
    known, first = dict(zip(TIERS, model.metadata.models, strict=False)), first_pools(pools)
    answering = [pool for pool in pools if pool.weight or pool is first[pool.tier]]
    return all(known.get(pool.tier) == pool.weights for pool in answering)


def rates(settings: Settings) -> tuple[Rates, Three]:
    """Return what tokens cost at each tier, and the mean cost of a token relative to the dearest tier's.

    The configured prices of the three models count if each has one and they rise with the tier, else the pools' costs;
    of several pools of a tier those of the first one.
    """
    pools = first_pools(settings.pools)
    prices = {price.name: price for price in settings.prices}
    priced = [prices[pools[tier].name] for tier in TIERS if tier in pools and pools[tier].name in prices]
    sums = [float(price.input + price.output) for price in priced]
    if len(sums) == len(TIERS) and sums == sorted(set(sums)) and sums[0] > 0:
        small, medium, large = (
            TokenRates(each.input, each.input if each.cached_input is None else each.cached_input, each.output)
            for each in priced
        )
        return (small, medium, large), relative(sums)
    costs = relative([pools[tier].cost for tier in TIERS if tier in pools])
    return flat(costs), costs


@lru_cache(maxsize=4)
def _read(path: str, changed: int) -> SuccessModel:
    """Args: changed: time of the file's last change."""
    return SuccessModel.read(Path(path).read_bytes())


def read_model(path: str) -> SuccessModel:
    """Read a model of success from a file.

    Raises:
        SettingsError: there is none in the file.
    """
    try:
        return _read(path, Path(path).stat().st_mtime_ns)
    except (OSError, ValueError) as error:
        raise SettingsError(f"router.model: {path}: {error}") from error


def _named(model: SuccessModel) -> str:
    return ", ".join(model.metadata.models) or f"{model.metadata.trained_on}, of no models that it names"
