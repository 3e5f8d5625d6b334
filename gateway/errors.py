"""One tree of errors, one JSON shape: OpenAI's `{"error": {"message", "type", "param", "code"}}`.

`docs/errors.md` lists every code; a test compares the list with this file.
"""

from __future__ import annotations

import math
from typing import Any


def retry_after_header(seconds: float) -> dict[str, str]:
    """The header in whole seconds, never too early."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}


class ApiError(Exception):
    """An error that a client is told about. `message` names the field and the remedy."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The `error` object of a response body or a WebSocket `error` event."""
        return {"message": self.message, "type": type(self).type, "param": self.param, "code": self.code}


class InvalidRequest(ApiError):
    status, type, code = 400, "invalid_request_error", "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class PreviousResponseNotFound(InvalidRequest):
    code = "previous_response_not_found"


class ContentBlocked(InvalidRequest):
    """A safety rule forbids it."""

    code = "content_blocked"


class TooLarge(InvalidRequest):
    status, code = 413, "request_too_large"


class MethodNotAllowed(InvalidRequest):
    status, code = 405, "method_not_allowed"


class Unauthorized(ApiError):
    status, type, code = 401, "authentication_error", "invalid_api_key"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code, headers={"www-authenticate": "Bearer"})


class SignInFailed(Unauthorized):
    """Nobody has signed in at an identity provider."""

    code = "sign_in_failed"


class Forbidden(ApiError):
    status, type, code = 403, "permission_error", "forbidden"


class NotFound(ApiError):
    status, type, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class Conflict(ApiError):
    status, type, code = 409, "invalid_request_error", "conflict"


class Gone(ApiError):
    """What was shared cannot be read any more."""

    status, type, code = 410, "invalid_request_error", "share_expired"


class PreconditionFailed(ApiError):
    """What is to be changed is not what the client has read."""

    status, type, code = 412, "invalid_request_error", "revision_mismatch"


class UnsupportedMediaType(InvalidRequest):
    status, code = 415, "unsupported_media_type"


class PreconditionRequired(InvalidRequest):
    """A change that does not say which state it is meant for."""

    status, code = 428, "precondition_required"


class RateLimited(ApiError):
    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"
    limit = "tokens"
    """Which limit was reached, for metrics: a field of `gateway.records.quota.Quota`."""

    def __init__(self, message: str, *, retry_after: float, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code, headers=retry_after_header(retry_after))
        self.retry_after = retry_after


class InsufficientQuota(RateLimited):
    """The money for this day or month is spent."""

    code = "insufficient_quota"


class NotCached(ApiError):
    """The client wants a stored answer or none (`only-if-cached`), and there is none."""

    status, type, code = 504, "invalid_request_error", "not_cached"


class Unavailable(ApiError):
    """No engine can answer, or the gateway is draining; the client may try again."""

    status, type, code = 503, "server_error", "unavailable"


class AnswerRedacted(ApiError):
    """What safety rules have replaced was needed for the format that the client asked for."""

    status, type, code = 502, "server_error", "answer_redacted"


class EngineFailed(ApiError):
    """An engine died after its first token: the turn fails, the next request is served by another one."""

    status, type, code = 502, "server_error", "engine_failed"


def invalid_value(param: str, reason: str) -> InvalidRequest:
    """The error for a field, header or parameter that holds something wrong; the message begins with its name."""
    return InvalidRequest(f"{param}: {reason}", param=param, code="invalid_value")


def unsupported_parameter(param: str, reason: str) -> InvalidRequest:
    """The error for what is part of OpenAI's API, and not served here; the message begins with its name."""
    return InvalidRequest(f"{param}: {reason}", param=param, code="unsupported_parameter")


def unknown_parameter(param: str) -> InvalidRequest:
    """The error for a field that no request has."""
    return InvalidRequest(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def missing_parameter(param: str) -> InvalidRequest:
    """The error for a field that is needed and not there."""
    return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
