"""Decides what each step drafts, and learns from the results. Pure but for the draft model, which it only calls.

Drafts come from two sources: the request's own text (`engine.speculation.ngram`) and a draft model. A request uses the
source that is right more often. How many tokens it drafts is decided anew in every step from measured rates and
costs (`engine.speculation.depth`); so that these do not grow stale, a step now and then does the opposite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from engine.plan import Sampled, StepPlan
from engine.request import Request
from engine.speculation.acceptance import Acceptance, Tally
from engine.speculation.costs import StepCosts
from engine.speculation.depth import Candidate, choose_depths
from engine.speculation.ngram import LONGEST, SHORTEST, NgramIndex

MODEL = 0
"""Number of the draft model as a source; the number of an n-gram match is its length."""
_PROBE_STEPS = 256
"""Steps after which an alternative not chosen is tried: a step without drafts, or a source of drafts."""
_PROBE_TOKENS = 4
"""Tokens of a trial draft: enough to learn the cost of the draft model's steps."""
_SLEEP_STEPS = 8
"""Steps for which a draft model that does not pay is not considered: without them, 2 % slower (bench/README.md)."""
_READ_TOKENS = 2048
"""Most tokens that n-gram indices take up in a step; until a long prompt is read, nothing is drafted from it."""
_PROBE_SHARE = 0.02
"""Share of the time since its last use that a draft model may spend on reading up for a trial."""


class Drafter(Protocol):
    """A draft model as the speculator sees it."""

    costs: StepCosts

    def limit(self, request: Request) -> int: ...
    def lag(self, request: Request) -> int: ...
    def propose(self, depths: Mapping[Request, int]) -> dict[str, tuple[int, ...]]: ...
    def release(self, request: Request) -> None: ...


@dataclass(slots=True)
class _History:
    """State kept of one request."""

    index: NgramIndex = field(default_factory=NgramIndex)
    tallies: dict[int, Tally] = field(default_factory=dict)
    continuation: tuple[int, ...] = ()
    """Tokens that followed this step's n-gram match."""
    source: int = MODEL
    """Source of this step's draft."""


class Speculator:
    """Decides on the drafts of one engine.

    `tokens` is the most that a request drafts in a step. With `adaptive` false it always drafts that many, whether it
    pays or not.
    """

    def __init__(self, *, ngrams: bool, model: Drafter | None = None, tokens: int = 8, adaptive: bool = True) -> None:
        self.drafted = self.accepted = 0
        """Numbers of tokens drafted and of those that were right, since the start."""
        self._ngrams = ngrams
        self._model = model
        self._tokens = tokens
        self._adaptive = adaptive
        sources = [*range(SHORTEST, LONGEST + 1)] * ngrams + [MODEL] * (model is not None)
        self._acceptance = {source: Acceptance() for source in sources}
        self._used = dict.fromkeys(sources, 0)
        """Step in which each source was last used."""
        self._histories: dict[str, _History] = {}
        self._proposed: dict[str, int] = {}
        """Number of tokens proposed for each request in this step."""
        self._costs = StepCosts()
        self._step = 0
        self._plain_step = 0
        """Counts steps in which requests decoded; `_plain_step` is the last of them without drafts."""
        self._asleep_until = 0

    def depths(self, plan: StepPlan) -> dict[str, int]:
        """Choose how many tokens each request drafts in a step; requests that should draft none are left out."""
        self._proposed = {}
        if self._ngrams:
            self._read(plan)
        decoding = [row.request for row in plan.rows if row.count == 1 and row.sample]
        if not decoding:
            return {}
        self._step += 1
        modelled = self._model is not None and self._step >= self._asleep_until
        if not (self._ngrams or modelled):
            return {}
        if self._adaptive and self._step - self._plain_step > _PROBE_STEPS:
            self._plain_step = self._step
            return {}
        candidates = [one for request in decoding if request.speculate and (one := self._candidate(request, modelled))]
        if not self._adaptive:
            return {one.id: one.limit for one in candidates}
        chosen = self._choose(candidates, plan.tokens, len(decoding)) if candidates else {}
        if not chosen:
            self._plain_step = self._step
        if modelled and candidates and not any(one.modelled and one.id in chosen for one in candidates):
            self._asleep_until = self._step + _SLEEP_STEPS
        return chosen

    def propose(self, plan: StepPlan, granted: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Draft up to the granted number of tokens for each request of a step."""
        drafts = {}
        modelled: dict[Request, int] = {}
        for row in plan.rows:
            request, depth = row.request, granted.get(row.request.id)
            if depth is None:
                continue
            history = self._histories[request.id]
            if history.source == MODEL:
                modelled[request] = depth
            else:
                drafts[request.id] = history.continuation[:depth]
        if self._model is not None and modelled:
            drafts |= self._model.propose(modelled)
        self._proposed = {id: len(draft) for id, draft in drafts.items()}
        return drafts

    def observe(self, plan: StepPlan, sampled: Sequence[Sampled], seconds: float) -> None:
        """Learn from a step that took `seconds`, drafting not included."""
        self._costs.observe(plan.tokens, seconds)
        if not self._proposed:
            return
        for row, result in zip(plan.rows, sampled, strict=True):
            proposed = self._proposed.get(row.request.id, 0)
            if proposed:
                self._learn(row.request, proposed, len(result.tokens) - 1)
                self.drafted += len(row.draft)
                self.accepted += len(result.tokens) - 1

    def release(self, request: Request) -> None:
        """Forget a request that has finished or lost its blocks."""
        self._histories.pop(request.id, None)
        if self._model is not None:
            self._model.release(request)

    def _read(self, plan: StepPlan) -> None:
        """Index the new tokens of a step's requests, those first that have gained least."""
        unread = []
        for row in plan.rows:
            request = row.request
            if request.speculate and _left(request) > 0:
                index = self._history(request).index
                unread.append((request.length - len(index), request, index))
        unread.sort(key=itemgetter(0))
        budget = _READ_TOKENS
        for count, request, index in unread:
            index.extend(request.tokens(len(index), len(index) + min(count, budget)))
            budget -= count
            if budget <= 0:
                return

    def _history(self, request: Request) -> _History:
        history = self._histories.get(request.id)
        if history is None:
            history = self._histories[request.id] = _History()
        return history

    def _candidate(self, request: Request, modelled: bool) -> Candidate | None:
        """Return the better source of drafts for a request, if there is any; the draft model only if `modelled`."""
        history = self._history(request)
        left = _left(request)
        limit = min(self._tokens, left)
        found = None
        if limit > 0 and len(history.index) == request.length:
            match, history.continuation = history.index.propose(limit)
            if match:
                history.source = match
                found = Candidate(request.id, self._rate(history, match), limit, left=left)
        if self._model is not None and modelled:
            limit = min(limit, self._model.limit(request))
            rate = self._rate(history, MODEL)
            if limit > 0 and (found is None or rate > found.rate):
                history.source = MODEL
                lag = self._model.lag(request)
                found = Candidate(request.id, rate, limit, modelled=True, lag=lag, left=left)
        return found if found is not None and found.limit > 0 else None

    def _rate(self, history: _History, source: int) -> float:
        return self._acceptance[source].rate(history.tallies.setdefault(source, Tally()))

    def _choose(self, candidates: Sequence[Candidate], tokens: int, requests: int) -> dict[str, int]:
        """Choose drafts that pay, and now and then one to learn whether it does."""
        target, draft = self._costs.seconds, self._model_seconds
        chosen = choose_depths(candidates, tokens=tokens, requests=requests, target=target, draft=draft)
        return chosen | self._tries(candidates, chosen, target(tokens))

    def _tries(self, candidates: Sequence[Candidate], chosen: Mapping[str, int], step_seconds: float) -> dict[str, int]:
        """Choose trial drafts of sources that have rested long enough."""
        tries: dict[int, Candidate] = {}
        for one in candidates:
            source = self._histories[one.id].source
            rested = self._step - self._used[source]
            cheap = self._model_seconds(one.lag) <= _PROBE_SHARE * rested * step_seconds
            if one.id not in chosen and rested >= _PROBE_STEPS and cheap:
                tries.setdefault(source, one)
        return {one.id: min(one.limit, _PROBE_TOKENS) for one in tries.values()}

    def _model_seconds(self, tokens: int) -> float:
        return self._model.costs.seconds(tokens) if self._model is not None else 0.0

    def _learn(self, request: Request, proposed: int, right: int) -> None:
        # A grammar's cut of a proposal counts as wrong tokens too.
        history = self._histories[request.id]
        source = history.source
        self._acceptance[source].observe(history.tallies[source], proposed, right)
        self._used[source] = self._step


def _left(request: Request) -> int:
    """Return how many tokens a request may still get behind its next one."""
    return request.sampling.max_tokens - len(request.output) - 1
