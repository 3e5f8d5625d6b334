"""Grammars as the core needs them: requests that wait until theirs is compiled, and masks for the rows of a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue

from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.grammar.masks import FilledMasks, MaskFiller
from engine.grammar.matcher import Matcher
from engine.plan import Row
from engine.request import GrammarError, Request, RequestError, State

logger = logging.getLogger(__name__)


class Constraints:
    """Requests under a grammar, from their arrival to their last mask. Used by the core's thread only."""

    def __init__(self, compiler: GrammarCompiler, vocabulary: int, *, threads: int = 1) -> None:
        """Compile with `compiler`; compute masks of `vocabulary` tokens in `threads` threads."""
        self._compiler = compiler
        self._filler = MaskFiller(vocabulary, threads)
        self._compiling: dict[str, tuple[Request, Future[CompiledGrammar]]] = {}
        self._done: SimpleQueue[Request] = SimpleQueue()
        self._used = False

    def __len__(self) -> int:
        """Number of requests whose grammar is not compiled yet, or that have not been collected yet."""
        return len(self._compiling)

    def __contains__(self, id: str) -> bool:
        return id in self._compiling

    @property
    def ready(self) -> bool:
        """Whether `collect` may return something."""
        return not self._done.empty()

    def add(self, request: Request, wake: Callable[[], None]) -> None:
        """Set a request aside until its grammar is compiled; then `wake` is called, in any thread.

        Raises:
            RequestError: too many grammars of its tenant wait already.
        """
        assert request.grammar is not None
        self._used = True

        def done() -> None:
            self._done.put(request)
            wake()

        self._compiling[request.id] = (request, self._compiler.compile(request.grammar, done, request.tenant))

    def cancel(self, id: str) -> Request | None:
        """Forget a request that waits for its grammar; None if there is no such request."""
        entry = self._compiling.pop(id, None)
        if entry is None:
            return None
        self._release(entry[0])
        entry[0].move_to(State.FINISHED)
        return entry[0]

    def collect(self) -> list[tuple[Request, RequestError | None]]:
        """Return requests that wait no more, each with its matcher set or with the error of its grammar."""
        collected: list[tuple[Request, RequestError | None]] = []
        while not self._done.empty():
            request = self._done.get()
            entry = self._compiling.get(request.id)
            if entry is None or entry[0] is not request or request.grammar is None:  # cancelled
                continue
            del self._compiling[request.id]
            self._release(request)
            error = entry[1].exception()
            if error is None:
                request.matcher = entry[1].result().matcher(request.sampling)
                error = _replay(request.matcher, request.output) if request.output else None
            elif not isinstance(error, RequestError):
                logger.error("a grammar of kind %s cannot be compiled", request.grammar.kind, exc_info=error)
                error = GrammarError("the engine failed to compile it; change it or leave it out", "internal")
            collected.append((request, error))
        return collected

    def start(self, rows: Iterable[Row]) -> FilledMasks | None:
        """Begin to compute the masks that a step with `rows` needs; None if it needs none."""
        return self._filler.start(rows) if self._used else None

    def warm_up(self) -> None:
        """Prepare in the background what the first grammar would wait for."""
        self._compiler.warm_up()

    def close(self) -> None:
        """End threads and processes."""
        self._compiler.close()
        self._filler.close()

    def _release(self, request: Request) -> None:
        assert request.grammar is not None
        self._compiler.release(request.grammar, request.tenant)


def _replay(matcher: Matcher, output: Iterable[int]) -> RequestError | None:
    """Advance by what another engine said; return why that cannot be gone on with."""
    for token in output:
        matcher.consume(token)
    if matcher.error is not None or matcher.finished:
        return RequestError(f"{matcher.error or 'the grammar allows nothing more'} after these tokens", field="resumed")
    return None
