"""Quotas: bounds and defaults."""

import msgspec
import pytest

from gateway.config.settings import QuotaSettings
from gateway.records.quota import Quota


def test_a_quota_is_kept_as_json_with_the_fields_that_were_set() -> None:
    quota = Quota(requests_per_minute=60, mode="expected")
    assert msgspec.json.encode(quota) == b'{"requests_per_minute":60,"mode":"expected"}'
    assert msgspec.json.decode(msgspec.json.encode(quota), type=Quota) == quota


def test_fields_left_out_come_from_the_quota_behind() -> None:
    behind = Quota(requests_per_minute=60, spend_per_day=5)
    assert Quota(requests_per_minute=1).over(behind) == Quota(requests_per_minute=1, spend_per_day=5)
    assert Quota(spend_per_day=0).over(behind) == Quota(requests_per_minute=60, spend_per_day=0)


def test_the_stricter_of_two_quotas_has_the_lower_of_each_limit() -> None:
    one = Quota(requests_per_minute=60, spend_per_day=0, mode="expected")
    other = Quota(requests_per_minute=5, concurrent_turns=2, spend_per_day=7, mode="strict")
    both = Quota(requests_per_minute=5, concurrent_turns=2, spend_per_day=0, mode="strict")
    assert one.within(other) == other.within(one) == both
    assert one.within(Quota()) == Quota().within(one) == one


@pytest.mark.parametrize("field", sorted(set(Quota.__struct_fields__) - {"mode"}))
def test_a_limit_outside_its_bounds_is_refused_by_name(field: str) -> None:
    for wrong in (-1, 10**16, "1"):
        with pytest.raises(msgspec.ValidationError, match=field):
            msgspec.convert({field: wrong}, Quota)


def test_the_largest_bucket_stays_an_exact_number_in_lua() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"input_tokens_per_minute": 100_000_001}, Quota)
    assert 100_000_000 * 86_400 * 1000 < 2**53


def test_an_unknown_field_is_refused_by_name_in_the_configuration_only() -> None:
    """A newer gateway may have written it elsewhere."""
    assert msgspec.convert({"tokens_per_minute": 5, "spend_per_day": 5}, Quota) == Quota(spend_per_day=5)
    with pytest.raises(msgspec.ValidationError, match="tokens_per_minute"):
        msgspec.convert({"tokens_per_minute": 5}, QuotaSettings)
