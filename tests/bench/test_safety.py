"""The benchmark of safety rules: its generator makes what it says, and rules find nearly all of it."""

from __future__ import annotations

import pytest

from bench.safety import RULES, accuracy, labelled, per_delta, prose, speed
from gateway.config.safety import SafetySettings
from gateway.safety.hook import recognisers


def test_labels_are_in_their_texts_in_order() -> None:
    for text, labels in labelled(3, 100):
        at = 0
        for _, secret in labels:
            at = text.index(secret, at) + len(secret)


def test_rules_find_nearly_all_and_little_else() -> None:
    by_rule = {rule: (count, recall, precision) for rule, count, recall, precision in accuracy(600)}
    assert by_rule.keys() == set(RULES)
    for rule, (count, recall, precision) in by_rule.items():
        assert count > 50
        assert recall > (0.8 if rule == "phone" else 0.99), rule
        assert precision > (0.9 if rule == "phone" else 0.99), rule


@pytest.mark.parametrize("measure", [speed, per_delta])
def test_speed_is_measured(measure: object) -> None:
    assert callable(measure)
    assert measure(prose(1, 2000), recognisers(SafetySettings(), {}, b"")) > 0
