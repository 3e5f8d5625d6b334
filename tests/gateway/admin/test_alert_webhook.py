"""Alerts that are posted to a webhook: once each, signed, and again after they were gone."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from cache.semantic.evidence import Comparisons, Evidence
from cache.semantic.keys import evidence_key
from gateway.admin import alert_webhook
from gateway.admin.alert_webhook import CLAIM_KEY, SENT_KEY, signature
from gateway.config.alerts import AlertSettings, check_alerts
from gateway.config.settings import SemanticCacheSettings
from gateway.records.section import SettingsError
from tests.gateway.access.identity.provider import ProviderServer
from tests.gateway.admin.conftest import Administer, Administered
from tests.gateway.conftest import eventually

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Receiver(ProviderServer):
    """Takes what is posted; `status` is what it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 204
        self.messages: list[tuple[dict[str, str], bytes]] = []

    def answer(self, path: str, headers: Message, body: bytes) -> tuple[int, str, bytes]:
        self.messages.append(({name.lower(): value for name, value in headers.items()}, body))
        return self.status, "", b""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with receiver:
        yield receiver


@pytest.fixture
def settings(receiver: Receiver, tmp_path: Path) -> AlertSettings:
    (tmp_path / "webhook.secret").write_text(f"{SECRET}\n")
    return AlertSettings(webhook=receiver.url, secret_file=str(tmp_path / "webhook.secret"), period=0.5)


async def trip(api: Administered) -> None:
    """Something that needs attention."""
    wrong = msgspec.json.encode(Evidence(bands=(Comparisons(50.0, 50.0),)))
    await api.served.gateway.redis.hset(evidence_key("acme"), "state", wrong)


async def remembered(redis: Redis) -> list[bytes]:
    """What Redis holds of alerts that were told."""
    return [await redis.get(key) async for key in redis.scan_iter(SENT_KEY.format(digest="*"))]


@pytest.mark.anyio
async def test_an_alert_is_posted_once_and_signed(
    administer: Administer, receiver: Receiver, settings: AlertSettings
) -> None:
    """And once more when it comes back."""
    async with administer(alerts=settings, semantic_cache=SemanticCacheSettings(enabled=True)) as api:
        assert receiver.messages == []
        await trip(api)
        await eventually(lambda: receiver.messages)
        headers, body = receiver.messages[0]
        told: dict[str, Any] = json.loads(body)
        (alert,) = (await api.operator.get("/alerts")).json()["data"]
        assert (told["type"], told["data"]) == ("alert.cache_tripped", alert)
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(key, signed, "sha256").digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        redis = api.served.gateway.redis
        async with asyncio.timeout(20):
            while await remembered(redis) != [b"sent"]:
                pass
            await redis.delete(evidence_key("acme"))
            while await remembered(redis):
                pass
        assert len(receiver.messages) == 1
        await trip(api)
        await eventually(lambda: len(receiver.messages) == 2)


@pytest.mark.anyio
async def test_what_the_receiver_does_not_take_is_sent_again(
    administer: Administer, receiver: Receiver, settings: AlertSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the same id, by which a receiver knows what it has got."""
    monkeypatch.setattr(alert_webhook, "_REMEMBERED", 100)  # looks may be late
    receiver.status = 503
    async with administer(alerts=settings, semantic_cache=SemanticCacheSettings(enabled=True)) as api:
        await trip(api)
        await eventually(lambda: len(receiver.messages) >= 3)
        receiver.status = 204
        before = len(receiver.messages)
        await eventually(lambda: len(receiver.messages) > before)
    assert len({headers["webhook-id"] for headers, _ in receiver.messages}) == 1


@pytest.mark.parametrize("key", [SENT_KEY, CLAIM_KEY])
def test_the_keys_are_documented(key: str) -> None:
    assert f"`{key.format(digest='<digest>')}`" in Path("docs/redis-keys.md").read_text("utf-8")


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """Of the example in its documentation."""
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    body = b'{"test": 2432232314}'
    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"webhook": "http://example.com/hook"}, "https"),
        ({"secret_file": None}, "needs secret_file"),
        ({"secret_file": "/nonexistent"}, "cannot be read"),
        ({"secret_file": __file__}, "24 bytes"),
    ],
)
def test_an_unsafe_webhook_is_refused(settings: AlertSettings, changes: dict[str, Any], said: str) -> None:
    check_alerts(settings)
    with pytest.raises(SettingsError, match=said):
        check_alerts(msgspec.structs.replace(settings, **changes))
