"""The `[ray]` section: engines on a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.pools import Tier
from gateway.records.section import Section


class RaySettings(Section, frozen=True):
    """Engines that `roundhouse ray up` has a Ray cluster start, see [ray.md](ray.md). Paths are those of its nodes."""

    namespace: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9_.-]{1,64}$",
            description="Ray namespace of the actors; installations that share a cluster have different ones.",
        ),
    ] = "roundhouse"
    register_key: Annotated[
        str | None, Meta(description="File on every node with the key that `roundhouse engine key` prints.")
    ] = None
    register_ca: Annotated[
        str | None, Meta(description="Authorities of Redis' certificates (PEM); empty: those of the node.")
    ] = None
    register_cert: Annotated[
        str | None, Meta(description="Certificate of engines for Redis (PEM), with `register_ca`.")
    ] = None
    register_cert_key: Annotated[
        str | None, Meta(description="Private key of that certificate (PEM, without a password).")
    ] = None
    tls_cert: Annotated[
        str | None,
        Meta(description="Certificate of engines (PEM): they listen at wss:// addresses, with the two files below."),
    ] = None
    tls_key: Annotated[str | None, Meta(description="Private key of that certificate (PEM, without a password).")] = (
        None
    )
    tls_client_ca: Annotated[str | None, Meta(description="Authorities of the gateways' certificates (PEM).")] = None
    server_name: Annotated[
        str | None, Meta(description="Name that the certificate is for; empty: the address of the node.")
    ] = None
    resources: Annotated[
        dict[Tier, dict[str, float]],
        Meta(
            description="Ray resources that each engine of a tier needs beside its CPUs and GPU, such as "
            '`{ large = { "accelerator_type:H100" = 0.001, memory = 60e9 } }`.'
        ),
    ] = msgspec.field(default_factory=dict)
