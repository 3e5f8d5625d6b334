"""The state of a batch: its status, what is to be done next, and how clients see it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.access.identity.principal import Principal
from gateway.protocol.response_create import Metadata

WINDOW = 86_400
"""Seconds after its creation at which a batch expires; clients call it `24h`."""

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]


class BatchStatus(enum.StrEnum):
    """Statuses of a batch, as OpenAI names them; `enter` refuses all transitions but those of `_NEXT`."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    """Its file holds no valid requests, or was deleted before they were answered."""
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


_NEXT = {
    BatchStatus.VALIDATING: {
        BatchStatus.IN_PROGRESS,
        BatchStatus.FAILED,
        BatchStatus.CANCELLING,
        BatchStatus.EXPIRED,
    },
    BatchStatus.IN_PROGRESS: {
        BatchStatus.FINALIZING,
        BatchStatus.FAILED,
        BatchStatus.CANCELLING,
        BatchStatus.EXPIRED,
    },
    BatchStatus.FINALIZING: {BatchStatus.COMPLETED},
    BatchStatus.CANCELLING: {BatchStatus.CANCELLED},
    BatchStatus.COMPLETED: set(),
    BatchStatus.FAILED: set(),
    BatchStatus.EXPIRED: set(),
    BatchStatus.CANCELLED: set(),
}


class BatchStep(enum.Enum):
    """What a gateway that runs a batch does next."""

    VALIDATE = enum.auto()
    """Check all lines of the file."""
    ANSWER = enum.auto()
    """Answer the lines that have no result."""
    ABANDON = enum.auto()
    """Give the lines that have no result an error instead."""
    FINISH = enum.auto()
    """Complete the files of results."""
    NOTHING = enum.auto()


class ExpiresAfter(Struct, frozen=True, forbid_unknown_fields=True):
    """When a file expires, as a client asks for it."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class BatchCreate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class LineError(Struct, frozen=True):
    """Why a line of the input is no valid request."""

    code: str
    message: str
    line: int | None = None
    """Number of the line, from 1; None: the whole file."""
    param: str | None = None


class BatchProgress(Struct, frozen=True):
    """Results that were written, and the tokens that they took."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class BatchDocument(Struct, frozen=True, kw_only=True):
    """A batch of requests."""

    id: str
    principal: Principal
    """On whose behalf its requests are answered."""
    endpoint: Endpoint
    input_file_id: str
    created_at: int
    status: BatchStatus = BatchStatus.VALIDATING
    times: Mapping[BatchStatus, int] = {}
    """Unix time at which each status was entered."""
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None
    """Seconds that files of results are kept; None: as configured."""
    total: int = 0
    """Number of requests."""
    lines: int = 0
    """Number of lines of the file, empty ones included."""
    errors: tuple[LineError, ...] = ()
    counted: tuple[int, int] | None = None
    """Number of answers and of errors, once the batch has ended."""
    progress: BatchProgress = BatchProgress()
    """Counted beside the document, and put in when that is read."""

    @property
    def expires_at(self) -> int:
        return self.created_at + WINDOW

    @property
    def ended(self) -> bool:
        return not _NEXT[self.status]

    @property
    def output_file_id(self) -> str:
        """Id of the file of answers."""
        return f"file-{self.id.removeprefix('batch_')}-output"

    @property
    def error_file_id(self) -> str:
        """Id of the file of errors."""
        return f"file-{self.id.removeprefix('batch_')}-errors"

    def enter(self, status: BatchStatus, now: int, **fields: Any) -> BatchDocument:
        """Return the batch in its next status, with other `fields` changed.

        Raises:
            RuntimeError: the status may not follow.
        """
        if status not in _NEXT[self.status]:
            raise RuntimeError(f"illegal transition {self.status.value} -> {status.value}")
        return msgspec.structs.replace(self, status=status, times={**self.times, status: now}, **fields)

    def shown(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        progress, ended = self.progress, self.ended
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status.value,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{status}_at": self.times.get(status) for status in BatchStatus if status != BatchStatus.VALIDATING},
            "output_file_id": self.output_file_id if ended and progress.completed else None,
            "error_file_id": self.error_file_id if ended and progress.failed else None,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "request_counts": {"total": self.total, "completed": progress.completed, "failed": progress.failed},
            "usage": {
                "input_tokens": progress.input_tokens,
                "input_tokens_details": {"cached_tokens": progress.cached_tokens},
                "output_tokens": progress.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": progress.input_tokens + progress.output_tokens,
            },
            "metadata": self.metadata,
        }


def next_step(batch: BatchDocument, now: float) -> BatchStep:
    """Return what a gateway that runs the batch does next. `now`: Unix time."""
    match batch.status:
        case BatchStatus.VALIDATING | BatchStatus.IN_PROGRESS if now >= batch.expires_at:
            return BatchStep.ABANDON
        case BatchStatus.VALIDATING:
            return BatchStep.VALIDATE
        case BatchStatus.IN_PROGRESS:
            return BatchStep.ANSWER
        case BatchStatus.CANCELLING:
            return BatchStep.ABANDON
        case BatchStatus.FINALIZING:
            return BatchStep.FINISH
        case _:
            return BatchStep.NOTHING
