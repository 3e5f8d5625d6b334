"""Stores questions, the checks of their answers, and the evidence that they give, in Redis. No decisions.

Redis is the truth: whatever an index hints at is read again before it is used, together with the answer itself. Without
Redis a look-up finds nothing and a check is lost; neither raises.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import resources

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cache.keys import epochs_key, response_key
from cache.questions.index import Hint, Name, Vector
from cache.response import CachedAnswer, Sealing, read_entry
from cache.semantic.decision import SemanticCandidate
from cache.semantic.entry import EntryState, Observation, Thresholds, after_check
from cache.semantic.evidence import Evidence
from cache.semantic.keys import answer_key, evidence_key, index_key, partition_key, phrasing_key
from cache.semantic.model import Offset, offset_of
from cache.semantic.profile import Profile

log = logging.getLogger("roundhouse.cache")

MAX_OBSERVATIONS = 64
"""Most checks that are kept of one answer."""
EVIDENCE_LIFE = 30 * 24 * 3600
"""Seconds that evidence is kept after the last comparison."""
_ATTEMPTS = 5

_profiles = msgspec.json.Decoder(Profile)
_offsets = msgspec.json.Decoder(Offset)
_observations = msgspec.json.Decoder(list[Observation])
_evidence_of = msgspec.json.Decoder(Evidence)


class FoundQuestions(Struct, frozen=True):
    """The stored questions that hints led to."""

    candidates: tuple[SemanticCandidate, ...] = ()
    """Candidates, nearest first."""
    stored: dict[str, CachedAnswer] = {}
    """Answers of the candidates by digest."""
    gone: tuple[Hint, ...] = ()
    """Hints that led nowhere."""
    evidence: Evidence = Evidence()
    """What the tenant's comparisons show, whatever they were made with."""


class Check(Struct, frozen=True, kw_only=True):
    """The result of comparing a fresh answer with a stored one."""

    answer: str
    correct: bool
    logit: float
    """`Judgement.logit` of the pair."""
    band: int | None
    """Band of the answer; None if it was not to be served, and so the check is no evidence."""
    basis: str
    """Embedder and model of the look-up."""
    promise: float
    """The tenant's `max_wrong_hits`."""


class SemanticStore:
    """Stored questions of all tenants, each in keys of its own.

    Args:
        redis: a client with `decode_responses=False`, whose timeouts bound what a look-up may cost.
        seal: of the answers.
        max_questions: kept per tenant; a partition has a quarter of them at most.
    """

    def __init__(self, redis: Redis, seal: Sealing, *, max_questions: int = 10_000) -> None:
        self._redis = redis
        self._seal = seal
        self._max_questions = max_questions
        self._look_up = redis.register_script(_script("look_up", shared=True))
        self._admit = redis.register_script(_script("admit", shared=True))
        self._record = redis.register_script(_script("record"))

    def configure(self, *, max_questions: int) -> None:
        """Use another bound from now on."""
        self._max_questions = max_questions

    async def read(self, name: Name, hints: Sequence[Hint]) -> FoundQuestions | None:
        """Read what the hints lead to, in one round trip; None if Redis does not answer."""
        tenant, partition = name
        answers = list(dict.fromkeys(hint.answer for hint in hints))
        keys = [epochs_key(tenant), evidence_key(tenant)]
        keys += [phrasing_key(tenant, partition, hint.phrasing) for hint in hints]
        keys += [key(tenant, answer) for answer in answers for key in (answer_key, response_key)]
        try:
            evidence, phrasings, known = await self._look_up(keys=keys, args=[len(hints), ""])
        except (RedisError, OSError) as error:
            log.warning("semantic cache look-up failed", extra={"error": type(error).__name__})
            return None
        records: dict[str, list[bytes | None]] = {}
        stored: dict[str, CachedAnswer] = {}
        for answer, (record, fields) in zip(answers, known, strict=True):
            entry = read_entry(fields, response_key(tenant, answer), self._seal) if fields else None
            if entry is not None:
                stored[answer], records[answer] = entry, record
        candidates, gone = [], []
        for hint, (answer, sealed) in zip(hints, phrasings, strict=True):
            candidate = None
            if sealed is not None and answer == hint.answer.encode() and hint.answer in stored:
                candidate = _candidate(hint, sealed, *records[hint.answer])
            if candidate is None:
                gone.append(hint)
            else:
                candidates.append(candidate)
        return FoundQuestions(tuple(candidates), stored, tuple(gone), _evidence(evidence))

    async def admit(self, name: Name, phrasing: str, answer: str, profile: Profile, vector: Vector) -> int | None:
        """Make a question lead to an answer of the exact cache. Return how many old questions it pushed out, or None if
        it was not stored: the answer is gone or was revoked, or Redis does not answer.

        Args:
            profile: sealed.
        """
        tenant, partition = name
        keys = [
            phrasing_key(tenant, partition, phrasing),
            answer_key(tenant, answer),
            response_key(tenant, answer),
            partition_key(tenant, partition),
            index_key(tenant),
        ]
        words: list[bytes | str | int] = [partition, phrasing, answer, self._max_questions, self._max_questions // 4]
        words += phrasing_key(tenant, "", "").removesuffix(":"), partition_key(tenant, "")
        words += "profile", msgspec.json.encode(profile), "vector", vector.astype("<f2").tobytes()
        try:
            evicted = int(await self._admit(keys=keys, args=words))
        except (RedisError, OSError) as error:
            log.warning("semantic cache store failed", extra={"error": type(error).__name__})
            return None
        return evicted if evicted >= 0 else None

    async def record(
        self, tenant: str, check: Check, *, sigma: float, thresholds: Thresholds
    ) -> tuple[EntryState, Evidence] | None:
        """Store a check. Return the new state of the answer and the evidence, or None if nothing was stored."""
        keys = [answer_key(tenant, check.answer), evidence_key(tenant)]
        try:
            for _ in range(_ATTEMPTS):
                async with self._redis.pipeline(transaction=False) as pipeline:
                    pipeline.hmget(keys[0], "state", "observations", "support", "version")
                    pipeline.hmget(keys[1], "state", "version")
                    (state, seen, support, version), (known, watched) = await pipeline.execute()
                if state is None or EntryState(state.decode()) is EntryState.REVOKED:
                    return None
                observations = [*(_observations.decode(seen) if seen else ()), Observation(check.logit, check.correct)]
                after = after_check(EntryState(state.decode()), observations, thresholds)
                observations = observations[-MAX_OBSERVATIONS:]
                fields: dict[str, bytes | str | int] = {
                    "state": str(after),
                    "observations": msgspec.json.encode(observations),
                    "offset": msgspec.json.encode(offset_of(observations, sigma)),
                    "support": int(support or 0) + check.correct,
                }
                evidence = _evidence(known)
                changed: bytes | str = ""
                if check.band is not None:
                    evidence = evidence.on(check.basis).after(check.band, check.correct, check.promise)
                    changed = msgspec.json.encode(evidence)
                words: list[bytes | str | int] = [version or b"0", watched or b"0", EVIDENCE_LIFE * 1000, changed]
                for field, value in fields.items():
                    words += field, value
                written = int(await self._record(keys=keys, args=words))
                if written:
                    return (after, evidence) if written > 0 else None
        except (RedisError, OSError, ValueError) as error:
            log.warning("a check of the semantic cache was lost", extra={"error": type(error).__name__})
        return None


def _candidate(
    hint: Hint, sealed: bytes, state: bytes | None, offset: bytes | None, support: bytes | None
) -> SemanticCandidate | None:
    try:
        return SemanticCandidate(
            id=hint.phrasing,
            answer=hint.answer,
            similarity=hint.similarity,
            profile=_profiles.decode(sealed),
            state=EntryState((state or b"").decode()),
            offset=_offsets.decode(offset) if offset else None,
            support=int(support or 0),
        )
    except ValueError:
        # Written by something else: as good as absent.
        return None


async def read_evidence(redis: Redis, tenants: Sequence[str]) -> dict[str, Evidence]:
    """Read what the comparisons of some tenants show.

    Raises:
        RedisError: it cannot be read.
    """
    async with redis.pipeline(transaction=False) as pipeline:
        for tenant in tenants:
            pipeline.hget(evidence_key(tenant), "state")
        found = await pipeline.execute()
    return {tenant: _evidence(state) for tenant, state in zip(tenants, found, strict=True)}


def _evidence(state: bytes | None) -> Evidence:
    try:
        return _evidence_of.decode(state) if state else Evidence()
    except ValueError:
        return Evidence()


def _script(name: str, *, shared: bool = False) -> str:
    folder = resources.files("cache")
    own = folder.joinpath("questions", f"{name}.lua").read_text("utf-8")
    return folder.joinpath("epochs.lua").read_text("utf-8") + own if shared else own
