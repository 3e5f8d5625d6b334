"""A key's whole life over the admin API, with real gateway processes that share a Redis."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.gateway.turns.processes import ADMIN, OPERATOR, GatewayProcess, gateways

pytestmark = pytest.mark.anyio

TURN = {"model": "numbers", "input": "hi", "max_output_tokens": 2}


async def until(
    process: GatewayProcess, path: str, body: Any = None, *, key: str, status: int
) -> tuple[dict[str, str], Any]:
    """Ask until the answer has this status: gateways follow a change within a second."""
    async with asyncio.timeout(30):
        while True:
            got, headers, answer = await process.call(path, body, key=key)
            if got == status:
                return headers, answer
            assert got == 200, answer
            await asyncio.sleep(0.05)


async def test_a_key_works_is_limited_and_is_revoked_without_a_restart(model: Path, redis_url: str) -> None:
    """On both gateways, whichever was told; and the audit log of it is whole."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    async with gateways(2, model, redis_url, tables=OPERATOR) as ((told, other), _):
        status, _, _ = await told.call("/admin/v1/tenants", {"name": "bakery"}, key=ADMIN)
        assert status == 201
        status, _, made = await told.call("/admin/v1/tenants/bakery/keys", {"scopes": ["chat", "models"]}, key=ADMIN)
        assert status == 201
        key, id = made["key"], made["record"]["id"]
        for process in (told, other):  # at once: there is nothing to wait for
            assert (await process.call("/v1/models", key=key))[0] == 200
            assert (await process.call("/v1/responses", TURN, key=key))[0] == 200

        quota = {"quota": {"requests_per_minute": 1}}
        status, _, _ = await told.call(
            "/admin/v1/tenants/bakery/quotas", quota, key=ADMIN, method="PUT", **{"if-match": "*"}
        )
        assert status == 200
        for process in (told, other):
            headers, refused = await until(process, "/v1/responses", TURN, key=key, status=429)
            assert "requests_per_minute" in refused["error"]["message"]
            assert 0 < float(headers["retry-after"]) <= 60
            assert (await process.call("/v1/models", key=key))[0] == 200

        status, _, _ = await other.call(
            f"/admin/v1/tenants/bakery/keys/{id}", key=ADMIN, method="DELETE", **{"if-match": "*"}
        )
        assert status == 204
        for process in (told, other):
            await until(process, "/v1/models", key=key, status=401)
            assert (await process.call("/v1/responses", TURN, key=key))[0] == 401

        status, _, found = await told.call("/admin/v1/audit/verification", key=ADMIN)
        assert (status, found["intact"]) == (200, True), found
        _, _, entries = await told.call("/admin/v1/tenants/bakery/audit", key=ADMIN)
        actions = [each["action"] for each in entries["data"]]
        assert actions == ["key.delete", "tenant.update", "key.create", "tenant.create"]
        verify = [sys.executable, "-m", "gateway.cli", "audit", "verify"]
        environment = {**told.environment, "REDIS_URL": redis_url}
        run = await asyncio.create_subprocess_exec(*verify, env=environment, stdout=asyncio.subprocess.PIPE)
        said, _ = await run.communicate()
        assert run.returncode == 0 and b"the log is whole" in said
