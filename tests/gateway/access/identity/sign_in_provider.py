"""A small identity provider with a sign-in: OpenID Connect's authorization code flow with PKCE, over real HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from gateway.config.identity import IssuerSettings
from tests.gateway.access.identity.provider import AUDIENCE, ProviderServer

CLIENT, SECRET = "roundhouse web", "s3cret:+%"
"""Id and secret of the gateway as a client, which have to be encoded for its header."""


class SignInProviderServer(ProviderServer):
    """Somebody has signed in there already, and agrees at once."""

    def __init__(self) -> None:
        super().__init__()
        self.person: dict[str, Any] = {"sub": "ann"}
        """Claims of the ID token that a test sets; None takes one away."""
        self.refusal = ""
        """An error to send browsers back with."""
        self.issued: list[str] = []
        """All ID tokens."""
        self._codes: dict[str, dict[str, str]] = {}
        """What was asked for, by code; each works once."""
        self.discover()

    def discover(self, **changes: Any) -> None:
        """Publish what it says of itself."""
        document = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/authorize?realm=main",
            "token_endpoint": f"{self.url}/token",
            "authorization_response_iss_parameter_supported": True,
            **changes,
        }
        self.pages["/.well-known/openid-configuration"] = json.dumps(document).encode()

    def issuer(self, secret_file: str | None, **fields: Any) -> IssuerSettings:
        """Settings of a gateway that trusts it."""
        given = {"name": "idp", "issuer": self.url, "audience": [AUDIENCE], "tenant": "demo", "client_id": CLIENT}
        return IssuerSettings(**{**given, "client_secret_file": secret_file, **fields})

    def answer(self, path: str, headers: Message, body: bytes) -> tuple[int, str, bytes]:
        match urlsplit(path).path:
            case "/authorize":
                return self._authorize(dict(parse_qsl(urlsplit(path).query)))
            case "/token" if "/token" not in self.pages:
                answer = self._token(dict(parse_qsl(body.decode())), headers.get("authorization", ""))
                return 400 if "error" in answer else 200, "", json.dumps(answer).encode()
            case _:
                return super().answer(path, headers, body)

    def _authorize(self, asked: dict[str, str]) -> tuple[int, str, bytes]:
        expected = {"realm": "main", "response_type": "code", "client_id": CLIENT, "code_challenge_method": "S256"}
        if not (expected.items() <= asked.items() and "openid" in asked["scope"].split()):
            return 400, "", b""
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        given = {"error": self.refusal} if self.refusal else {"code": code}
        answer = {**given, "state": asked["state"], "iss": self.url}
        return 302, f"{asked['redirect_uri']}?{urlencode(answer)}", b""

    def _token(self, form: dict[str, str], authorization: str) -> dict[str, Any]:
        client = form.get("client_id", ""), form.get("client_secret", "")
        if authorization.startswith("Basic "):
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode().split(":")
            client = unquote_plus(pair[0]), unquote_plus(pair[1])
        if client != (CLIENT, SECRET):
            return {"error": "invalid_client"}
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = (
            base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        )
        if (
            asked is None
            or form["grant_type"] != "authorization_code"
            or form["redirect_uri"] != asked["redirect_uri"]
            or challenge != asked["code_challenge"]
        ):
            return {"error": "invalid_grant"}
        claims = {"aud": CLIENT, "nonce": asked["nonce"], **self.person}
        self.issued.append(self.token(**claims))
        return {"access_token": "unused", "token_type": "Bearer", "id_token": self.issued[-1]}
