"""Compiles grammars beside the step loop, once each, within limits of size, time and memory."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
from llguidance import LLMatcher

from engine.grammar.line import TrialQueue
from engine.grammar.matcher import Matcher
from engine.grammar.source import GrammarLimits, may_ignore, to_llguidance
from engine.grammar.tokens import GrammarTokens
from engine.grammar.trial import TrialFailed, TrialSetup, TrialWorker
from engine.limited_process import ProcessLimits
from engine.request import GrammarError, RequestError
from engine.wire import Grammar, GrammarKind, ModelInfo, SamplingParams

_MAX_MESSAGE = 400
_TOO_MANY = "too many grammars of this tenant wait to be compiled; try again, or use fewer different ones"
_WARM_UP = Grammar("choice", '["a"]')
_PLAIN_WORDS = {
    r"^NoExtensionBias$": "no text matches it; correct it",
    r"Failed to generate regex for \w+ range: .*": "minimum or maximum is too large a number; choose a smaller one",
    r"Unimplemented keys: \[(.*)\]": r"JSON Schema's \1 cannot be enforced; leave it out",
    r"Unknown format: (\S+)": r'the format "\1" cannot be enforced; leave it out',
    r"oneOf constraints are not supported.*": "oneOf: its schemas may hold at the same time, which cannot be excluded; "
    "use anyOf, or tell them apart by a property with a const",
}


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar in its first state; every request gets a copy."""

    tokens: GrammarTokens
    start: LLMatcher

    def matcher(self, sampling: SamplingParams) -> Matcher:
        """Follow one request."""
        return Matcher(self.start.deep_copy(), self.tokens, sampling)


@dataclass(eq=False, slots=True)
class _Entry:
    grammar: Grammar
    bytes: int
    future: Future[CompiledGrammar]
    waiting: Counter[str] = field(default_factory=Counter)
    """Number of requests of each tenant that wait for the grammar."""


class GrammarCompiler:
    """Compiles and caches the grammars of one engine, with the threads and processes behind that.

    Its methods are called from one thread; `done` callbacks come from others.
    """

    def __init__(
        self,
        path: Path,
        model: ModelInfo,
        *,
        limits: GrammarLimits | None = None,
        threads: int = 3,
        waiting: int = 256,
        cache_entries: int = 512,
        cache_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        """Serve the tokenizer of the checkpoint at `path`.

        Nothing is read or started before the first grammar, `prepare` or `warm_up`. The cache keeps at most
        `cache_entries` grammars, and of those that nobody waits for as many as take about `cache_bytes`. At most
        `waiting` grammars of one tenant wait to be compiled, and one of the `threads` is never a tenant's that has all
        others.
        """
        self._path, self._model = path, model
        self._limits = limits or GrammarLimits()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="grammar")
        self._line: TrialQueue[_Entry] = TrialQueue(running=max(1, threads - 1), waiting=waiting)
        self._lock = threading.Lock()
        """Guards the queue of grammars to be compiled."""
        self._thread = threading.local()
        self._workers: list[TrialWorker] = []
        self._reading = threading.Lock()
        self._tokens: GrammarTokens | None = None
        self._cache: OrderedDict[bytes, _Entry] = OrderedDict()
        """Cached grammars, the least recently used first."""
        self._cache_entries, self._cache_bytes = cache_entries, cache_bytes
        self._cached_bytes = 0
        self.compilations = 0
        """Grammars compiled since the start."""

    def prepare(self) -> GrammarTokens:
        """Read the tokenizer, if that has not been done yet.

        Raises:
            RequestError: this checkpoint's cannot be used with grammars.
        """
        with self._reading:
            if self._tokens is None:
                self._tokens = GrammarTokens(self._path, self._model.vocabulary, self._model.eos_token_ids)
            return self._tokens

    def warm_up(self) -> None:
        """Begin to read the tokenizer and to start a process, so that the first grammar need not wait for them."""
        with self._lock:
            self._push("", _Entry(_WARM_UP, 0, Future()))

    def compile(self, grammar: Grammar, done: Callable[[], None], tenant: str = "") -> Future[CompiledGrammar]:
        """Compile a grammar, at once or later, to a CompiledGrammar or a RequestError; then call `done`, in any thread.

        The caller calls `release` with the same grammar and tenant when it has the result or gives up.

        Raises:
            RequestError: too many grammars of this tenant wait already.
        """
        key = _digest(grammar)
        entry = self._cache.get(key)
        if entry is not None and not entry.waiting and entry.future.done() and not _lasting(entry.future):
            self._drop(key)
            entry = None
        if entry is None:
            entry = _Entry(grammar, _footprint(grammar), Future())
        if not entry.future.running() and not entry.future.done() and not entry.waiting[tenant]:
            # Also where another tenant's is the same: the tenant whose turn comes first has it compiled.
            with self._lock:
                if not self._line.has_room(tenant):
                    raise GrammarError(_TOO_MANY, "overloaded")
                self._push(tenant, entry)
        if key not in self._cache:
            self._cache[key] = entry
            self._cached_bytes += entry.bytes
        entry.waiting[tenant] += 1
        self._cache.move_to_end(key)
        self._evict()
        entry.future.add_done_callback(lambda _: done())
        return entry.future

    def release(self, grammar: Grammar, tenant: str = "") -> None:
        """Count one request less that waits for `grammar`. A grammar that none waits for is not compiled."""
        key = _digest(grammar)
        entry = self._cache[key]
        entry.waiting[tenant] -= 1
        if entry.waiting[tenant]:
            return
        del entry.waiting[tenant]
        with self._lock:
            self._line.remove(tenant, entry)
        if not entry.waiting and entry.future.cancel():
            self._drop(key)

    def close(self) -> None:
        """End threads and processes, in the middle of a compilation if need be."""
        with self._lock:
            for entry in self._line.clear():
                entry.future.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._pool.shutdown()
        for worker in self._workers:
            worker.close()

    def _evict(self) -> None:
        idle = (key for key, entry in list(self._cache.items()) if not entry.waiting)
        while len(self._cache) > self._cache_entries or self._cached_bytes > self._cache_bytes:
            key = next(idle, None)
            if key is None:
                return
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._cached_bytes -= self._cache.pop(key).bytes

    def _push(self, tenant: str, entry: _Entry) -> None:
        self._line.push(tenant, entry)
        self._pool.submit(self._work)

    # In a thread of the pool.

    def _work(self) -> None:
        """Compile the next grammar in the queue, until there is none that may run."""
        while True:
            with self._lock:
                taken = self._line.pop()
                if taken is None:
                    return
                tenant, entry = taken
                # Not if another tenant's turn came first, or if no request waits any more.
                due = not (entry.future.running() or entry.future.done())
                due = due and entry.future.set_running_or_notify_cancel()
            begun = monotonic()
            try:
                if due:
                    entry.future.set_result(self._compile(entry.grammar))
            except BaseException as error:
                entry.future.set_exception(error)
            finally:
                with self._lock:
                    self._line.ended(tenant, monotonic() - begun)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        tokens = self.prepare()
        source = to_llguidance(grammar, self._limits)
        try:
            verdict = self._worker().judge(source)
        except TrialFailed as error:
            raise GrammarError(f"{error}; simplify it") from error
        except OSError as error:
            raise GrammarError(f"cannot be compiled now: {error}; try again", "internal") from error
        if verdict.error is not None:
            raise GrammarError(_explain(verdict.error, grammar.kind))
        if verdict.warnings and not may_ignore(grammar):
            raise GrammarError(_explain("; ".join(verdict.warnings), grammar.kind))
        matcher = tokens.compile(source)
        self.compilations += 1
        if matcher.is_error():
            raise GrammarError(_explain(matcher.get_error(), grammar.kind), "internal")
        _check_start(matcher, tokens)
        return CompiledGrammar(tokens, matcher)

    def _worker(self) -> TrialWorker:
        """Return the process of this thread, started if need be."""
        worker: TrialWorker | None = getattr(self._thread, "worker", None)
        if worker is None:
            setup = TrialSetup(str(self._path.resolve()), self._model.vocabulary, self._model.eos_token_ids)
            limits = ProcessLimits(self._limits.cpu_seconds, self._limits.memory_bytes)
            worker = self._thread.worker = TrialWorker(setup, limits)
            self._workers.append(worker)
        return worker


def _check_start(matcher: LLMatcher, tokens: GrammarTokens) -> None:
    """Refuse a grammar that no answer can match."""
    mask = np.zeros(tokens.words, np.int32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if not mask.any():
        raise GrammarError("no text matches it; correct it")
    if tokens.not_first is not None and not (mask & ~tokens.not_first).any():
        raise GrammarError("it starts with a space, which this model's answers cannot; leave the space out")


def _digest(grammar: Grammar) -> bytes:
    head = f"{grammar.kind} {grammar.lenient} ".encode()
    return hashlib.blake2b(head + grammar.source.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _footprint(grammar: Grammar) -> int:
    """Estimate the bytes of a compiled grammar: measured were 70 to 330 for each character of large ones."""
    return 64 * 1024 + 320 * len(grammar.source)


def _lasting(future: Future[CompiledGrammar]) -> bool:
    """Whether compiling the same grammar again would end in the same way."""
    error = future.exception()
    return error is None or (isinstance(error, RequestError) and error.kind == "invalid")


def _explain(message: str, kind: GrammarKind) -> str:
    """Return llguidance's message without the source that it quotes, and with a remedy where there is a common one."""
    text, *rest = message.strip().splitlines() or [""]
    if reason := next((line for line in rest if line.startswith("error: ")), None):  # a regular expression's
        text = f"{text.split(' (in regex)')[0].rstrip(':')}: {reason.removeprefix('error: ')}"
    if kind != "lark":  # positions refer to a grammar that the client has not written
        text = re.sub(r"^at \d+\(\d+\): ", "", text)
    text = text.replace("failed to compile JSON schema: ", "")
    for pattern, plain in _PLAIN_WORDS.items():
        text = re.sub(pattern, plain, text)
    return text[:_MAX_MESSAGE]
