"""Which model of success speaks for the pools, and what tokens cost at them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.cli.calibrate import EXAM
from gateway.config.billing import PriceSettings
from gateway.config.pools import PoolSettings
from gateway.config.redis import RedisSettings
from gateway.config.routing import RouterSettings
from gateway.config.settings import Settings, SettingsError, load
from gateway.models.catalogue import catalogue
from gateway.pipeline.routing.calibration import RELEASED, calibration, installed, rates, read_model, speaks_for
from router.questions import read_questions
from router.tier import NOMINAL, TIERS, relative
from tests.gateway.pipeline.routing.learnt import TINY, learnt_from


def settings(folder: Path, names: tuple[str, ...] = TINY, **changes: object) -> Settings:
    pools = [
        PoolSettings(tier=tier, name=name, model="m", cost=cost)
        for tier, name, cost in zip(("small", "medium", "large"), names, (1.0, 2.0, 4.0), strict=False)
    ]
    return msgspec.structs.replace(Settings(pools=pools, redis=RedisSettings(data=str(folder))), **changes)


def test_what_is_installed_for_the_models_is_used_and_for_others_is_not(tmp_path: Path) -> None:
    """The file's name holds which models it is for; what is written into it decides."""
    ours, others = settings(tmp_path), settings(tmp_path, ("tiny-small", "tiny-medium", "another"))
    assert calibration(ours).why == "nothing was learnt from these models"
    installed(ours).parent.mkdir()
    Path(learnt_from(tmp_path)).rename(installed(ours))
    assert calibration(ours).model is not None and not calibration(ours).why
    assert installed(others) != installed(ours) and calibration(others).model is None
    installed(ours).rename(installed(others))
    assert calibration(others).model is None


@pytest.mark.parametrize(
    "changed", [{"name": "another"}, {"sha256": "0" * 64}, {"quantize": "int8", "dtype": "bfloat16"}]
)
def test_another_checkpoint_another_digest_or_rounding_is_another_model(
    tmp_path: Path, changed: dict[str, str]
) -> None:
    ours = settings(tmp_path, router=RouterSettings(model=learnt_from(tmp_path)))
    assert calibration(ours).model is not None
    pools = [*ours.pools[:2], msgspec.structs.replace(ours.pools[2], **changed)]
    found = calibration(msgspec.structs.replace(ours, pools=pools))
    assert found.model is None and "was learnt from tiny-small, tiny-medium, tiny-large" in found.why


def test_some_of_the_models_are_enough(tmp_path: Path) -> None:
    ours = settings(tmp_path, router=RouterSettings(model=learnt_from(tmp_path)))
    for pools in (ours.pools[:2], ours.pools[2:]):
        assert calibration(msgspec.structs.replace(ours, pools=pools)).model is not None


def test_it_may_be_off_and_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    off = settings(tmp_path, router=RouterSettings(model=learnt_from(tmp_path), learnt=False))
    assert calibration(off).why == "router.learnt is off"
    with pytest.raises(SettingsError, match=r"router\.model: /nowhere"):
        calibration(settings(tmp_path, router=RouterSettings(model="/nowhere")))


def test_a_file_that_names_no_models_speaks_for_none(tmp_path: Path) -> None:
    found = calibration(settings(tmp_path, router=RouterSettings(model=learnt_from(tmp_path, ()))))
    assert found.model is None and "of no models that it names" in found.why


def test_the_catalogues_models_have_one_of_this_release() -> None:
    """Learnt from the questions of the exam, in part kept apart; some of the models do as well."""
    model = read_model(str(RELEASED))
    asked = {question.digest for question in read_questions(EXAM.read_bytes())}
    assert {*model.metadata.digests} <= asked
    assert model.metadata.models == tuple(each.sha256 for each in catalogue())
    for served in ("small,medium,large", "small,large"):
        found = load(environ={"ROUNDHOUSE_MODELS_SERVE": served})
        assert speaks_for(model, found.pools) and calibration(found).model is not None
    assert calibration(load(environ={"ROUNDHOUSE_MODELS_SERVE": ""})).model is None


def test_configured_prices_count_where_they_rise_with_the_tier(tmp_path: Path) -> None:
    """Else the costs of the pools, and where these do not rise those of models of three sizes."""
    prices = [
        PriceSettings(name=name, input=10 * factor, output=40 * factor, cached_input=factor)
        for name, factor in zip(TINY, (1, 2, 10), strict=True)
    ]
    found, costs = rates(settings(tmp_path, prices=prices))
    assert costs == (0.1, 0.2, 1.0) and found[2].cost(10, 4, 2) == 6 * 100 + 4 * 10 + 2 * 400
    for incomplete in (prices[:2], prices[::-1], [msgspec.structs.replace(each, input=0, output=0) for each in prices]):
        named = [msgspec.structs.replace(each, name=name) for each, name in zip(incomplete, TINY, strict=False)]
        found, costs = rates(settings(tmp_path, prices=named))
        assert costs == (0.25, 0.5, 1.0) and found[0].cost(10, 4, 2) == 0.25 * 12
    level = [msgspec.structs.replace(pool, cost=1.0) for pool in settings(tmp_path).pools]
    assert rates(settings(tmp_path, pools=level))[1] == relative(NOMINAL)
    assert len(TIERS) == 3
