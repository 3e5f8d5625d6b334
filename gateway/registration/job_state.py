"""The state of a registration job: its step, its progress, its result. Pure."""

from __future__ import annotations

import enum
import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.protocol.problems import Problem


class JobState(enum.Enum):
    """States of a job: QUEUED -> FETCHING -> CHECKING -> LOADING -> SUCCEEDED; FAILED from each but the last. Uploads
    skip FETCHING."""

    QUEUED = "queued"
    """The job waits for a worker."""
    FETCHING = "fetching"
    """The adapter's files are copied from a store."""
    CHECKING = "checking"
    """The adapter is checked against its base model, and stored."""
    LOADING = "loading"
    """An engine answers one token with the adapter."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


_NEXT = {
    JobState.QUEUED: {JobState.FETCHING, JobState.CHECKING, JobState.FAILED},
    JobState.FETCHING: {JobState.CHECKING, JobState.FAILED},
    JobState.CHECKING: {JobState.LOADING, JobState.FAILED},
    JobState.LOADING: {JobState.SUCCEEDED, JobState.FAILED},
    JobState.SUCCEEDED: set(),
    JobState.FAILED: set(),
}

TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED})


class Registered(Struct, frozen=True):
    """The result of a job."""

    adapter: str
    version: str
    loaded_on: str | None
    """Replica that answered with it; null if no engine of its model was connected."""


class RegistrationJob(Struct, frozen=True, kw_only=True):
    """Work that goes on after its request was answered. Kept for a day."""

    id: str
    kind: Literal["adapter.register"]
    tenant: str | None
    """Whose it is; null is the operators'."""
    adapter: str
    state: JobState = JobState.QUEUED
    progress: Annotated[float, Meta(ge=0, le=1, description="Of the present state's work.")] = 0.0
    result: Registered | None = None
    error: Problem | None = None
    created_at: int = msgspec.field(default_factory=lambda: int(time.time()))
    updated_at: int = msgspec.field(default_factory=lambda: int(time.time()))

    def enter(self, state: JobState, **fields: object) -> RegistrationJob:
        """The job in its next state.

        Raises:
            RuntimeError: the state may not follow.
        """
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"illegal transition {self.state.value} -> {state.value}")
        return msgspec.structs.replace(self, state=state, progress=float(state is JobState.SUCCEEDED), **fields)
