"""Posts each new alert to the webhook of `[alerts]`, signed as Standard Webhooks has it.

All gateways look for alerts; Redis decides which of them sends one. It is remembered for as long as the alert lasts:
one that has gone and comes back is sent again. One that the receiver has not taken is sent again under the same id.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator
from typing import Final

import httpx2
import msgspec
from redis.exceptions import RedisError

from gateway.admin.alerts import Alert, alerts
from gateway.background import Periodic
from gateway.services import Gateway

log = logging.getLogger("roundhouse.alerts")

SENT_KEY: Final = "rh1:alert:{digest}"
CLAIM_KEY: Final = "rh1:alert-claim:{digest}"
_TIMEOUT = 10.0
"""Seconds that the receiver may take."""
_CLAIM = 30
"""Seconds after which another gateway may send an alert whose sender has died."""
_REMEMBERED = 3
"""Looks without an alert after which it counts as gone."""
_SENT = b"sent"


@contextlib.asynccontextmanager
async def alerting(gateway: Gateway) -> AsyncIterator[None]:
    """Send alerts while the block runs, if a webhook is configured."""
    settings = gateway.settings.alerts
    if settings.webhook is None:
        yield
        return
    async with httpx2.AsyncClient(timeout=None, follow_redirects=False) as client:
        webhook = AlertWebhook(gateway, client, settings.webhook, settings.secret(), settings.period)
        looking = Periodic("alerts", webhook.look, settings.period)
        await looking.start()
        try:
            yield
        finally:
            await looking.aclose()


class AlertWebhook:
    """Sends what needs attention."""

    def __init__(
        self, gateway: Gateway, client: httpx2.AsyncClient, address: str, secret: bytes, period: float
    ) -> None:
        self._gateway = gateway
        self._client = client
        self._address = address
        self._secret = secret
        self._life = math.ceil(_REMEMBERED * period)
        """Seconds for which an alert is remembered after it was last seen."""

    async def look(self) -> None:
        """Send the alerts that were not sent yet. What fails is tried again with the next look."""
        try:
            for alert in await alerts(self._gateway, None):
                await self._tell(alert)
        except (RedisError, OSError) as error:
            log.warning("no look for alerts", extra={"error": type(error).__name__})

    async def _tell(self, alert: Alert) -> None:
        digest, redis = _identity(alert), self._gateway.redis
        key, claim = SENT_KEY.format(digest=digest), CLAIM_KEY.format(digest=digest)
        if await redis.get(key) == _SENT:
            await redis.expire(key, self._life)
        elif await redis.set(claim, self._gateway.presence.id, nx=True, ex=_CLAIM):
            await redis.set(key, f"msg_{secrets.token_hex(12)}", nx=True, ex=self._life)
            id = await redis.get(key)
            await redis.expire(key, self._life)
            if isinstance(id, bytes) and id != _SENT and await self._taken(alert, id.decode()):
                await redis.set(key, _SENT, ex=self._life)
            await redis.delete(claim)

    async def _taken(self, alert: Alert, id: str) -> bool:
        """Send an alert; whether the receiver has taken it."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._send(alert, id)
        except (httpx2.HTTPError, TimeoutError) as error:
            log.warning("alert not sent", extra={"kind": alert.kind, "error": type(error).__name__})
            return False
        return True

    async def _send(self, alert: Alert, id: str) -> None:
        now = int(time.time())
        message = {"type": f"alert.{alert.kind}", "timestamp": now, "data": alert}
        body = msgspec.json.encode(message)
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._secret, id, now, body),
        }
        (await self._client.post(self._address, content=body, headers=headers)).raise_for_status()


def signature(secret: bytes, id: str, timestamp: int, body: bytes) -> str:
    """Sign a message as Standard Webhooks has it."""
    signed = f"{id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()


def _identity(alert: Alert) -> str:
    """What makes an alert the same one, whatever its figures."""
    parts = (alert.kind, alert.level, alert.tenant, alert.subject, alert.limit)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]
