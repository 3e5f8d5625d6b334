"""Engines that `serve` starts and ends as a controller decides: real engine processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.access.identity.secret import derive, installation_secret
from gateway.config.settings import PoolSettings, RedisSettings, Settings, SettingsError, demo_settings
from gateway.processes.child import ChildFailed
from gateway.processes.replicas import LocalReplicas, _gpu, key_file
from tests.gateway.conftest import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def installation() -> Iterator[Settings]:
    """Settings with a data folder whose path is short enough for sockets; nothing runs there."""
    folder = tempfile.mkdtemp(prefix="rh-replicas-")
    try:
        yield msgspec.structs.replace(demo_settings(), redis=RedisSettings(data=folder))
    finally:
        shutil.rmtree(folder)


def elastic(settings: Settings, **fields: object) -> PoolSettings:
    return msgspec.structs.replace(settings.pools[0], **{"max_replicas": 2, **fields})


async def test_engines_that_say_that_they_cannot_run_take_their_pool_out(
    installation: Settings, tmp_path: Path
) -> None:
    replicas = LocalReplicas(installation)
    with pytest.raises(ChildFailed, match="cannot run as configured"):
        await replicas.serve(elastic(installation, model=str(tmp_path)))
    assert replicas.pools == frozenset()
    [failed] = await replicas.replicas()
    assert failed.state == "failed"
    await replicas.stop(failed.name, 0)
    assert await replicas.replicas() == []
    await replicas.aclose()


async def test_an_engine_that_ends_before_it_answers_has_failed(installation: Settings) -> None:
    """It is not started again, and its pool stays."""
    replicas = LocalReplicas(installation)
    serving = asyncio.create_task(replicas.serve(elastic(installation)))

    def pids() -> list[int]:
        children = [replica.child for replica in replicas._replicas.values()]
        return [child.pid for child in children if child is not None and child.pid is not None]

    await eventually(lambda: pids() != [])
    os.kill(pids()[0], signal.SIGKILL)
    await eventually(lambda: [each.state for each in replicas._replicas.values()] == ["failed"])
    [failed] = await replicas.replicas()
    assert "status -9" in failed.reason
    assert replicas.pools == {"small"}
    await replicas.aclose()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def test_the_key_of_leases_is_written_for_this_user_alone(installation: Settings) -> None:
    path = key_file(installation)
    assert path.read_text() == derive(installation_secret(installation), "engines").hex()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("another installation's")
    assert key_file(installation).read_text() == derive(installation_secret(installation), "engines").hex()


def test_each_engine_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [_gpu(1), _gpu(3)] == ["0", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert [_gpu(1), _gpu(2)] == ["GPU-a", "GPU-b"]
    with pytest.raises(SettingsError, match="no GPU for engine 3"):
        _gpu(3)
