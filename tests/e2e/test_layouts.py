"""How much two pictures differ."""

from __future__ import annotations

import pytest
from PIL import Image

from tests.e2e.layouts import MOST_DIFFERENT, ROUNDED, different

SIZE = (50, 40)
PAPER = (251, 250, 247)


@pytest.mark.parametrize("channel", range(3))
def test_a_change_of_one_channel_is_seen(channel: int) -> None:
    """Blue as well as green; what was only rounded is not."""
    recorded = Image.new("RGB", SIZE, PAPER)
    for step, part in ((ROUNDED, 0.0), (ROUNDED + 1, 1.0)):
        changed = list(PAPER)
        changed[channel] -= step
        assert different(recorded, Image.new("RGB", SIZE, tuple(changed))) == part


def test_pixels_are_counted() -> None:
    """Four of two thousand may differ, five may not."""
    recorded, shown = (Image.new("RGB", SIZE, PAPER) for _ in range(2))
    for x in range(4):
        shown.putpixel((x, 0), (251, 250, 0))
    assert different(recorded, shown) <= MOST_DIFFERENT
    shown.putpixel((4, 0), (251, 250, 0))
    assert different(recorded, shown) > MOST_DIFFERENT


def test_changes_of_several_channels_count_once() -> None:
    assert different(Image.new("RGB", SIZE), Image.new("RGB", SIZE, (255, 255, 255))) == 1.0
