"""Posts each new alert to the webhook of `[alerts]`, signed as Standard Webhooks has it.

All gateways look for alerts; Redis decides which of them sends one. It is remembered for as long as the alert lasts:
one that has gone and comes back is sent again, and so is one that the receiver has not taken.
"""

from __future__ import annotations

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
    async with httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as client:
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
        key, redis = SENT_KEY.format(digest=_identity(alert)), self._gateway.redis
        if await redis.get(key) == _SENT:
            await redis.expire(key, self._life)
        elif await redis.set(key, "sending", nx=True, ex=_CLAIM):
            try:
                await self._send(alert)
            except httpx2.HTTPError as error:
                log.warning("alert not sent", extra={"kind": alert.kind, "error": type(error).__name__})
                await redis.delete(key)
            else:
                await redis.set(key, _SENT, ex=self._life)

    async def _send(self, alert: Alert) -> None:
        id, now = f"msg_{secrets.token_hex(12)}", int(time.time())
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
