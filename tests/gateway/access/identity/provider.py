"""A small identity provider: a real HTTP server that publishes keys, and tokens signed with them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from email.message import Message
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "roundhouse"

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def private_key(kind: str, name: str = "") -> Private:
    """Return a key of this kind; the same one for the same name."""
    return _private_key(kind, name)


@cache
def _private_key(kind: str, name: str) -> Private:
    match kind:
        case "RSA":
            return rsa.generate_private_key(65537, 2048)
        case "weak RSA":
            return rsa.generate_private_key(65537, 1024)
        case "P-256":
            return ec.generate_private_key(ec.SECP256R1())
        case "P-384":
            return ec.generate_private_key(ec.SECP384R1())
        case "P-521":
            return ec.generate_private_key(ec.SECP521R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Private, **fields: Any) -> dict[str, Any]:
    """Return what a provider publishes of a key."""
    public: Any = key.public_key()
    algorithm: Any = {"RSA": RSAAlgorithm, "EC": ECAlgorithm}.get(type(key).__name__[:2].replace("RS", "RSA"))
    if isinstance(key, ed25519.Ed25519PrivateKey):
        algorithm = OKPAlgorithm
    return {**json.loads(algorithm.to_jwk(public)), **fields}


def public_pem(key: Private) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class ProviderServer:
    """Context manager. `pages` may be changed while it runs: a body, or a status to fail with."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes | int] = {}
        self.asked: Counter[str] = Counter()
        self.hold = threading.Event()
        """While it is cleared, answers wait."""
        self.hold.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["content-length"])))

            def _answer(self, body: bytes) -> None:
                provider.asked[self.path.partition("?")[0]] += 1
                provider.hold.wait(20)
                status, location, page = provider.answer(self.path, self.headers, body)
                self.send_response(status)
                if location:
                    self.send_header("location", location)
                self.send_header("content-length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.publish(public_jwk(private_key("RSA"), kid="one"))
        self.pages["/.well-known/openid-configuration"] = json.dumps(
            {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
        ).encode()

    def answer(self, path: str, headers: Message, body: bytes) -> tuple[int, str, bytes]:
        """Return status, `Location` and body of an answer."""
        page = self.pages.get(path, 404)
        if isinstance(page, int):
            return page, "/jwks" if page == 302 else "", b""
        return 200, "", page

    def publish(self, *keys: dict[str, Any]) -> None:
        """Publish these keys and no others."""
        self.pages["/jwks"] = json.dumps({"keys": keys}).encode()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return the claims of a valid token; None takes one away."""
        now = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "exp": now + 600, "nbf": now - 5, "iat": now}
        return {name: value for name, value in {**claims, **changes}.items() if value is not None}

    def token(
        self, kind: str = "RSA", algorithm: str = "RS256", kid: str | None = "one", name: str = "", **changes: Any
    ) -> str:
        """Return a token with these claims."""
        headers = {"kid": kid} if kid is not None else None
        return jwt.encode(self.claims(**changes), private_key(kind, name), algorithm=algorithm, headers=headers)

    def __enter__(self) -> ProviderServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
