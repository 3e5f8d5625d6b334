"""The diagram of docs/engine.md draws the transitions that the code allows, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from engine.adapters.states import TRANSITIONS, AdapterVersionState

DIAGRAM = Path(__file__).parents[3] / "docs" / "diagrams" / "adapter-states.dot"


def test_the_diagram_draws_every_transition_with_its_cause() -> None:
    drawn = re.findall(r"^    ([A-Z]+) -> ([A-Z]+) \[label=\"\w.+\"\];$", DIAGRAM.read_text("utf-8"), flags=re.M)
    allowed = [(state.name, after.name) for state, afters in TRANSITIONS.items() for after in afters]
    assert sorted(drawn) == sorted(allowed)


def test_every_state_can_be_reached_and_left() -> None:
    assert (
        TRANSITIONS.keys() == set(AdapterVersionState) == {after for afters in TRANSITIONS.values() for after in afters}
    )
