"""Catalogues of models that a test's server has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from tests.gateway.models.servers import REPOSITORY


def write_catalogue(path: Path, files: Mapping[str, bytes], **more: str) -> Path:
    """Write a catalogue with a model for each tier, whose file the hub's repository has as `<tier>.gguf`.

    Args:
        files: contents by tier.
        more: more lines of a tier's model.
    """
    path.write_text(
        "\n".join(
            f'[[models]]\nname = "tiny-{tier}"\ntitle = "Tiny {tier}"\ntier = "{tier}"\nlicence = "Apache-2.0"\n'
            f'file = "{tier}.gguf"\nbytes = {len(data)}\nsha256 = "{hashlib.sha256(data).hexdigest()}"\n'
            f"{more.get(tier, '')}\n"
            f'hub = {{ repository = "{REPOSITORY}", file = "{tier}.gguf" }}\n'
            for tier, data in files.items()
        )
    )
    return path
