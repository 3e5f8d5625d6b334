"""What is known of a server's load, by its `/metrics` page among others. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from engine.wire import Load


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


def load_of(counts: Mapping[str, int], *, blocks: int, **known: Any) -> Load:
    """Return a server's load in the form of our engines', which tell more.

    Args:
        counts: by our names; `running` and the tokens at least.
        blocks: KV blocks that it holds.
        known: further fields of `Load`.
    """
    return Load(
        running=counts["running"],
        waiting=counts.get("waiting", 0),
        waiting_tokens=0,
        total_blocks=blocks,
        free_blocks=blocks,
        cached_blocks=0,
        prefix_hit_tokens=0,
        prompt_tokens=counts["prompt_tokens"],
        output_tokens=counts["output_tokens"],
        preemptions=counts.get("preemptions", 0),
        step_seconds=0.0,
        **known,
    )
