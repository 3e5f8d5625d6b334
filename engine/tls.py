"""Mutual TLS between gateways and engines: each side shows a certificate that the other's authority has signed.

Both ends are ours, so there is no older version than TLS 1.3 to get along with.
"""

from __future__ import annotations

import ssl

from msgspec import Struct


class Certificate(Struct, frozen=True):
    """Files in PEM format: who we are, and who may vouch for the other side."""

    authority: str
    """Certificates of the authorities that sign the other side's."""
    certificate: str | None = None
    """Ours, followed by the ones between it and its authority."""
    key: str | None = None
    """Its private key."""


def server_context(files: Certificate) -> ssl.SSLContext:
    """For an engine: clients without a certificate of the authority are refused.

    Raises:
        ValueError: a file is missing or is not what it should be; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _loaded(context, files)


def client_context(files: Certificate) -> ssl.SSLContext:
    """For a gateway: the engine must have a certificate of the authority for the host of its address, or the name that
    it is known by.

    Raises:
        ValueError: as `server_context`.
    """
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


def _loaded(context: ssl.SSLContext, files: Certificate) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(files.authority)
    except OSError as error:  # an SSLError is one
        raise ValueError(f"{files.authority}: no certificates can be read from it: {_reason(error)}") from None
    if files.certificate is not None:
        try:
            # Without a password nobody is asked for one: a key that needs it is an error.
            context.load_cert_chain(files.certificate, files.key, password="")
        except OSError as error:
            names = f"{files.certificate}, {files.key}" if files.key else files.certificate
            raise ValueError(f"{names}: not a certificate and its private key: {_reason(error)}") from None
    return context


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).strip()
