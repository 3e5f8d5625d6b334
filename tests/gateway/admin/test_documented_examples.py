"""The commands in docs/admin-api.md, run as they stand."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.text.processor import TextProcessor
from gateway.records.directory import Key
from tests.engine.adapters.zoo import write_adapter
from tests.gateway.admin.conftest import OPERATOR, Administer
from tests.gateway.frame_engine import FrameEngine

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        shutil.which("curl") is None or shutil.which("jq") is None,
        reason="no curl or jq on the PATH: the examples were not run",
    ),
]

PAGE = Path(__file__).parents[3] / "docs" / "admin-api.md"
_STRICT = """set -euo pipefail
curl() { command curl --fail-with-body "$@"; }
"""


@pytest.fixture
async def frames(tmp_path: Path, model: Path) -> AsyncIterator[FrameEngine]:
    token = TextProcessor.from_path(model).encode("a")[-1]
    async with FrameEngine(tmp_path / "one.sock", defaultdict(lambda: token)).serving() as engine:
        yield engine


async def test_the_commands_of_the_page_work(
    administer: Administer, frames: FrameEngine, model: Path, tmp_path: Path
) -> None:
    """One after the other, as a reader would; any answer that is an error ends it."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fenced if not language]
    assert len(blocks) >= 8
    write_adapter(tmp_path / "runs" / "pirate", model, "only q_proj", seed=1)
    async with administer(engines={"small": [frames.address]}) as api:
        script = _STRICT + "\n".join(blocks)
        for written, meant in (
            ("export KEY=...", f"export KEY={OPERATOR}"),
            ("http://127.0.0.1:8080", api.served.url),
            ("llama-8b", "tiny-small"),
        ):
            assert written in script
            script = script.replace(written, meant)
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        gateway = api.served.gateway
        tenant = await gateway.directory.page(Key, tenant="bakery")
        assert len(tenant.records) == 1
        assert (await gateway.directory.audit.verify())[1] is None
        assert len((tmp_path / "audit.jsonl").read_text("utf-8").splitlines()) > 8
