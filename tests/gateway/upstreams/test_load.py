"""What is read of a server's metrics."""

import pytest

from gateway.upstreams.load import read_metrics

NAMES = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}


def test_metrics_are_summed_over_their_labels() -> None:
    page = (
        "# HELP vllm:num_requests_running Number of requests.\n"
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0"} 3.0\n'
        'vllm:num_requests_running{engine="1"} 4.0\n'
        'vllm:num_requests_running_total{engine="1"} 100.0\n'
        "vllm:num_requests_waiting 2\n"
    )
    assert read_metrics(page, NAMES) == {"running": 7, "waiting": 2}


def test_what_is_not_on_the_page_is_left_out() -> None:
    assert read_metrics("", NAMES) == {}
    assert read_metrics("<html>not found</html>", NAMES) == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_value_that_is_not_finite_is_left_out(value: str) -> None:
    page = f"vllm:num_requests_waiting {value}\nvllm:num_requests_running 2\n"
    assert read_metrics(page, NAMES) == {"running": 2}


def test_a_value_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError):
        read_metrics("vllm:num_requests_waiting many\n", NAMES)
