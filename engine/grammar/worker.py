"""The process that compiles grammars on trial (`trial.py`): `python -m engine.grammar.worker`."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import msgspec

from engine.grammar.tokens import GrammarTokens
from engine.grammar.trial import GrammarVerdict, TrialSetup, receive, send


def main() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    first = receive(stdin)
    if first is None:
        return
    # Signals to the process group are meant for the engine: this process ends with its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)
    setup = msgspec.msgpack.decode(first, type=TrialSetup)
    tokens = GrammarTokens(Path(setup.path), setup.vocabulary, setup.eos_token_ids)
    _limit_memory(setup.memory_bytes)
    send(stdout, msgspec.msgpack.encode(GrammarVerdict()))
    while (message := receive(stdin)) is not None:
        # The signal's default action ends the process, whatever code it runs.
        signal.setitimer(signal.ITIMER_PROF, setup.cpu_seconds)
        matcher = tokens.compile(message.decode())
        verdict = GrammarVerdict(matcher.get_error() or None, tuple(matcher.get_grammar_warnings()))
        del matcher
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(stdout, msgspec.msgpack.encode(verdict))


def _limit_memory(more: int) -> None:
    """Fail every allocation beyond `more` bytes from now on."""
    pages = int(Path("/proc/self/statm").read_text().split()[5]) if sys.platform == "linux" else 0
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    main()
