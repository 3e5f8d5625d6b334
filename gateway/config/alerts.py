"""The `[alerts]` section: where alerts are sent."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from msgspec import Meta

from gateway.config.identity import safe_url
from gateway.config.secret_file import read_secret
from gateway.records.section import Seconds, Section, SettingsError

_PREFIX = "whsec_"


class AlertSettings(Section, frozen=True):
    """Where alerts are sent, see [admin-api.md](admin-api.md#alerts-to-a-webhook)."""

    webhook: Annotated[
        str | None,
        Meta(description="Address that each new alert is posted to: https, or on this machine; empty: none is sent."),
    ] = None
    secret_file: Annotated[
        str | None, Meta(description="File with the secret that signs them: `whsec_` and 24 bytes or more as base64.")
    ] = None
    period: Annotated[Seconds, Meta(description="Seconds between two looks for alerts.")] = 60.0

    def secret(self) -> bytes:
        """The secret that signs.

        Raises:
            SettingsError: its file cannot be read, or holds something else.
        """
        text = read_secret(self.secret_file or "", "alerts.secret_file")
        try:
            secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if not text.startswith(_PREFIX) or len(secret) < 24:
            raise SettingsError(
                f"alerts.secret_file: {self.secret_file} must hold {_PREFIX} and at least 24 bytes as base64"
            )
        return secret


def check_alerts(alerts: AlertSettings) -> None:
    """
    Raises:
        SettingsError: the address is not safe, or the secret is missing.
    """
    if alerts.webhook is None:
        return
    if not safe_url(alerts.webhook):
        raise SettingsError(f"alerts.webhook: {alerts.webhook!r} must be an https:// address, or one of this machine")
    if alerts.secret_file is None:
        raise SettingsError("alerts: webhook needs secret_file, whose secret signs what is sent")
    alerts.secret()  # refused now rather than at the first alert
