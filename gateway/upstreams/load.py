"""What a server's `/metrics` page says of its load. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


def read_metrics(page: str, names: Mapping[str, str]) -> dict[str, int]:
    """Return the sum of each metric over all its labels, by our name for it; what is not on the page, or not finite, is
    left out.

    Args:
        names: the server's names by ours.

    Raises:
        ValueError: the page cannot be read.
    """
    ours = {theirs: name for name, theirs in names.items()}
    # Servers show hundreds of series; reading all of them each second would cost more than a turn.
    lines = (line for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] in ours)
    found: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if math.isfinite(sample.value):
                found[ours[sample.name]] += sample.value
    return {name: int(value) for name, value in found.items()}
