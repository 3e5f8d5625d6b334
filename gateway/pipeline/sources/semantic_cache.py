"""The semantic cache as a source: gives the answer to an earlier question in other words, where that is safe enough.

`cache.semantic` decides, after the exact cache has found nothing. This module gets the embedding, hints and stored
answer, replays it, and learns at the turn's end. What is missing or late is a miss; no turn fails by it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable
from functools import lru_cache
from time import monotonic

import msgspec
from redis.exceptions import RedisError

from cache.embedding.store import Embeddings
from cache.policy import Scope
from cache.questions.corrections import Corrections
from cache.questions.hints import Hints
from cache.questions.index import Name
from cache.questions.store import Check, FoundQuestions, SemanticStore
from cache.response import CachedAnswer
from cache.semantic.agreement import agree, same
from cache.semantic.decision import Action, SemanticDecision, ServingTerms, decide
from cache.semantic.eligibility import ineligible
from cache.semantic.entry import EntryState, Thresholds
from cache.semantic.model import CorrectnessModel
from cache.semantic.profile import profile, seal
from cache.statistics import CacheCounter
from gateway.access.identity.secret import derive
from gateway.background import BackgroundTasks
from gateway.config.settings import SemanticCacheSettings, Settings
from gateway.pipeline.sources.response_cache import StoredAnswers
from gateway.pipeline.sources.semantic_attempt import Attempt
from gateway.pipeline.values import Answered, CacheFindings, Progress
from gateway.telemetry.metrics.semantic import SemanticMetrics
from gateway.telemetry.trace import Stage
from gateway.turns import Turn

log = logging.getLogger("roundhouse.cache")

CANDIDATES = 5
"""Most candidates that a look-up judges, which is what the model was fitted on."""
MAX_LEARNING = 256
"""Most ended turns that are learnt from at the same time; more are left out."""
_LEARNING_SECONDS = 5.0
"""Seconds that the embeddings of two answers may take."""


class SimilarAnswers:
    """The semantic cache of one gateway, which lives as long as the process; settings come with each `Pipeline`."""

    def __init__(
        self,
        embeddings: Embeddings,
        hints: Hints,
        store: SemanticStore,
        corrections: Corrections,
        model: CorrectnessModel,
        statistics: CacheCounter,
        metrics: SemanticMetrics,
        secret: bytes,
    ) -> None:
        self._embeddings = embeddings
        self._hints = hints
        self._store = store
        self._corrections = corrections
        self._model = model
        self._model_digest = model.digest
        self._statistics = statistics
        self._metrics = metrics
        self._secret = lru_cache(maxsize=10_000)(lambda tenant: derive(secret, f"semantic cache of {tenant}"))
        self._learning = BackgroundTasks("semantic cache")
        self.draw: Callable[[], float] = random.random
        """Random number that decides which answers are checked."""

    def configure(self, settings: SemanticCacheSettings) -> None:
        """Take over changed bounds."""
        self._store.configure(max_questions=settings.max_questions_per_tenant)

    async def answer(self, progress: Progress, answers: StoredAnswers, settings: Settings) -> Answered | None:
        """Answer a turn, as `SemanticSource` does."""
        turn, cache = progress.admitted.turn, progress.admitted.cache
        tenant = turn.principal.tenant
        promise = settings.semantic_cache.promise_of(tenant)
        if cache.digest is None or promise <= 0:
            return None
        began = monotonic()
        refusal = _refusal(turn, cache)
        if refusal is not None:
            self._statistics.add(tenant, f"semantic_bypass.{refusal}")
            self._metrics.asked("bypass", None)
            return None
        attempt, found = await self._look_up(progress, answers, promise, settings.embedder.timeout)
        if attempt is None:
            self._statistics.add(tenant, "semantic_bypass.unavailable")
            self._metrics.asked("bypass", monotonic() - began)
            return None
        decision = attempt.decision
        self._metrics.asked(str(decision.action), monotonic() - began)
        if decision.action is not Action.SERVE:  # which is counted where it is replayed
            self._statistics.add(tenant, _counter(decision))
        reason = _REASONS.get(decision.action, cache.found.reason)
        progress.found(attempt=attempt, found=msgspec.structs.replace(cache.found, reason=reason))
        if decision.action is not Action.SERVE:
            return None
        assert decision.answer is not None
        self._learning.begin(self._corrections.note(tenant, turn.id, decision.answer))
        entry, reasons = found.stored[decision.answer], progress.admitted.remarks
        return answers.replay(progress, entry, counter="semantic_hit", reasons=reasons)

    def learn(self, cache: CacheFindings, fresh: CachedAnswer) -> None:
        """Learn in the background from a turn whose answer is in the exact cache: a check, a new question, or both."""
        attempt = cache.attempt
        if attempt is None or cache.digest is None:
            return
        if len(self._learning) >= MAX_LEARNING:
            self._statistics.add(attempt.name[0], "semantic_lost")
            return
        self._learning.begin(self._learn(attempt, fresh, cache.digest))

    def disliked(self, tenant: str, response: str) -> None:
        """Note in background that a user disliked a response: the stored answer that it came from is in doubt."""
        self._learning.begin(self._doubt(tenant, response))

    @property
    def learning(self) -> int:
        """Number of ended turns that are being learnt from."""
        return len(self._learning)

    async def start(self) -> None:
        """Begin to follow what other gateways store."""
        await self._hints.start()

    async def aclose(self) -> None:
        """Finish learning, within a second."""
        await self._learning.aclose(1.0)
        await self._hints.aclose()
        await self._embeddings.aclose()

    async def _look_up(
        self, progress: Progress, answers: StoredAnswers, promise: float, seconds: float
    ) -> tuple[Attempt | None, FoundQuestions]:
        admitted, turn = progress.admitted, progress.admitted.turn
        tenant, question = turn.principal.tenant, turn.conversation[-1].content
        hello = self._embeddings.hello
        if hello is None or hello.model != self._model.embedder:
            return None, FoundQuestions()
        secret = self._secret(tenant)
        basis = f"{hello.revision}:{self._model.version}"
        name = (tenant, answers.context(admitted, {"semantic": basis}))
        # The partition is read, if it has to be, while the question is embedded.
        preparing = self._prepared(name, hello.dimensions, seconds)
        vector = admitted.foreseen.embedding if admitted.foreseen else None
        if vector is None:
            embedding = self._embeddings.of(tenant, question, secret=secret, seconds=seconds)
            vector, _ = await asyncio.gather(embedding, preparing)
            progress.found(embedding=vector)
        else:
            await preparing
        if vector is None:
            return None, FoundQuestions()
        sealed = seal(profile(question), secret)
        hints = await self._hints.nearest(name, vector, CANDIDATES)
        hints = [hint for hint in hints if hint.similarity >= self._model.floor]
        found = await self._store.read(name, hints) if hints else FoundQuestions()
        if found is None:
            return None, FoundQuestions()
        if found.gone:
            await self._hints.gone(name, found.gone)
        evidence = found.evidence.on(f"{basis}:{self._model_digest}")
        terms = ServingTerms(max_wrong_hits=promise, evidence=evidence)
        decision = decide(sealed, found.candidates, model=self._model, terms=terms, draw=self.draw())
        checked = None
        if decision.action is Action.EXPLORE and decision.answer is not None:
            checked = found.stored[decision.answer]
        phrasing = hashlib.blake2b(f"{name[1]}\0{question}".encode(), digest_size=12, key=secret).hexdigest()
        return Attempt(name, phrasing, vector, sealed, promise, evidence, decision, checked), found

    async def _prepared(self, name: Name, dimensions: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hints.prepare(name, dimensions)
        except TimeoutError:
            pass  # it goes on; what is known by now has to do

    async def _learn(self, attempt: Attempt, fresh: CachedAnswer, answer: str) -> None:
        tenant = attempt.name[0]
        decision, checked = attempt.decision, attempt.checked
        if checked is not None and decision.answer is not None and decision.judgement is not None:
            correct = await self._agree(fresh.text, checked.text)
            check = Check(
                answer=decision.answer,
                correct=correct,
                logit=decision.judgement.logit,
                band=decision.band,
                basis=attempt.evidence.basis,
                promise=attempt.promise,
            )
            written = await self._store.record(tenant, check, sigma=self._model.sigma, thresholds=Thresholds())
            self._statistics.add(tenant, f"semantic_check.{'right' if correct else 'wrong'}")
            if written is not None and written[0] in (EntryState.QUARANTINED, EntryState.REVOKED):
                self._statistics.add(tenant, f"semantic_{written[0]}")
        evicted = await self._store.admit(attempt.name, attempt.phrasing, answer, attempt.sealed, attempt.vector)
        if evicted is None:
            return
        self._statistics.add(tenant, "semantic_store")
        if evicted:
            self._statistics.add(tenant, "semantic_evict", evicted)
        await self._hints.added(attempt.name, attempt.phrasing, answer, attempt.vector)

    async def _doubt(self, tenant: str, response: str) -> None:
        try:
            await self._corrections.doubt(tenant, response)
        except (RedisError, OSError) as error:
            log.warning("a disliked answer could not be put in quarantine", extra={"error": type(error).__name__})

    async def _agree(self, fresh: str, stored: str) -> bool:
        if same(fresh, stored):
            return True
        return agree(fresh, stored, await self._embeddings.similarity(fresh, stored, seconds=_LEARNING_SECONDS))


class SemanticSource:
    """Answers with stored answers to similar questions, under one configuration."""

    def __init__(self, similar: SimilarAnswers, answers: StoredAnswers, settings: Settings) -> None:
        """Args: answers: the exact cache, which holds the stored answers."""
        self._similar = similar
        self._answers = answers
        self._settings = settings

    async def answer(self, progress: Progress) -> Answered | None:
        answered = await self._similar.answer(progress, self._answers, self._settings)
        progress.admitted.turn.trace.mark(Stage.CACHE)
        return answered


_REASONS = {Action.SERVE: "similar", Action.EXPLORE: "checked", Action.REJECT: "different"}
"""Reasons that clients are told; a plain miss keeps the exact cache's reason."""


def _counter(decision: SemanticDecision) -> str:
    kind = f"semantic_{decision.action}"
    return kind if decision.reason is None else f"{kind}.{decision.reason}"


def _refusal(turn: Turn, cache: CacheFindings) -> str | None:
    """Return why this turn does not look up, beside what the exact cache has refused already."""
    request, conversation = turn.request, turn.conversation
    if cache.found.reason == "unavailable":
        return "unavailable"  # without Redis nothing that is similar can be given, and nothing is learnt
    if request.prompt is not None or not conversation or conversation[-1].role != "user":
        return "form"
    if request.tools is not None:
        return "tools"
    if request.caching.refresh or request.caching.max_age is not None:
        return "conditional"
    earlier = sum(message.role in ("user", "assistant") for message in conversation[:-1])
    return ineligible(conversation[-1].content, earlier_turns=earlier, private=cache.scope is Scope.USER)
