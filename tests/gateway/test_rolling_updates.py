"""Gateways of two versions side by side: what one reads of another may have fields that it does not know; what people
write may not."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from engine.registration import Lease
from gateway.access.directory.audit import AuditRecord, SealedAuditRecord
from gateway.access.directory.plan import IdempotencyRecord
from gateway.access.identity import Principal
from gateway.access.tickets import _Stub as Ticket
from gateway.admin.app import API
from gateway.batches.files import StoredFile
from gateway.batches.state import BatchDocument
from gateway.billing.ledger import Checkpoint
from gateway.billing.store import Numbered
from gateway.config.settings import Settings
from gateway.engines.heartbeat import GatewayState
from gateway.pipeline.routing.canaries import TakenOut
from gateway.pipeline.routing.decisions import Feedback, LoggedDecision
from gateway.pipeline.routing.judgements import JudgeOpinion
from gateway.protocol.chats import ChatTurn, ChatWrite
from gateway.protocol.requests import Message
from gateway.records.directory import KINDS
from gateway.registration.job_state import RegistrationJob
from gateway.scaling.records import PoolRecord
from gateway.turns.comments import Comment
from gateway.turns.messages import GatewayMessage, TurnRecord

READ = (
    Numbered,
    Checkpoint,
    TurnRecord,
    GatewayMessage,
    Principal,
    Ticket,
    Message,
    ChatTurn,
    Comment,
    BatchDocument,
    StoredFile,
    *KINDS.values(),
    AuditRecord,
    SealedAuditRecord,
    IdempotencyRecord,
    RegistrationJob,
    GatewayState,
    Lease,
    PoolRecord,
    LoggedDecision,
    Feedback,
    JudgeOpinion,
    TakenOut,
)
"""What journals and Redis hold, and what gateways send each other."""
WRITTEN = (Settings, ChatWrite, *(each.body_type for each in API.endpoints if each.body_type is not None))
"""The configuration, and bodies of requests that have structs in them that Redis holds, too."""


def structs(kind: Any) -> Iterator[type[Struct]]:
    """Yield the structs that a type is made of."""
    found: set[type[Struct]] = set()
    waiting = [kind]
    while waiting:
        each = waiting.pop()
        if not (isinstance(each, type) and issubclass(each, Struct)):
            waiting += typing.get_args(each)
        elif each not in found:
            found.add(each)
            waiting += [field.type for field in msgspec.structs.fields(each)]
    yield from found


@pytest.mark.parametrize("kind", READ, ids=str)
def test_what_another_gateway_has_written_may_have_fields_that_are_not_known(kind: Any) -> None:
    assert [each for each in structs(kind) if each.__struct_config__.forbid_unknown_fields] == []


@pytest.mark.parametrize("kind", WRITTEN, ids=str)
def test_what_people_write_may_not(kind: Any) -> None:
    assert [each for each in structs(kind) if not each.__struct_config__.forbid_unknown_fields] == []
