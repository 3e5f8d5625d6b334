"""The page of `docs/` that lists the endpoints."""

from __future__ import annotations

from gateway.admin.app import API
from gateway.admin.kit.endpoints import Endpoint

_PAGE = f"""# Endpoints of the admin API

Below `{API.prefix}`; how to use them stands in [admin-api.md](admin-api.md). Who may call what: *operators* are keys
with `operator = true`, *tenant* are the admins of the tenant in the path (and operators), *filtered* are all admins,
each of whom sees what belongs to its tenant. With `If-Match` means that the request needs the header.

This page is generated from the routes in `gateway/admin/` by `make docs`.
"""


def endpoints_page() -> str:
    """docs/admin-endpoints.md"""
    parts = [_PAGE]
    for group in API.groups:
        parts.append(f"\n## {group.tag}\n\n{group.description}\n\n")
        parts.append("| request | for | answers | what it does |\n|---|---|---|---|\n")
        parts += [_row(endpoint) for endpoint in group.all]
    return "".join(parts)


def _row(endpoint: Endpoint) -> str:
    notes = ["with `If-Match`"] if endpoint.conditional else []
    notes += ["`ETag`"] if endpoint.versioned and endpoint.answer_type is not None else []
    answers = ", ".join([str(endpoint.status), *notes])
    summary, _ = endpoint.documentation
    return f"| `{endpoint.method} {endpoint.path}` | {endpoint.access.value} | {answers} | {summary} |\n"
