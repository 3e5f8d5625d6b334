"""The process that compiles grammars on trial (`trial.py`): `python -m engine.grammar.worker`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.grammar.tokens import GrammarTokens
from engine.grammar.trial import GrammarVerdict, TrialSetup
from engine.limited_process import serve


def prepare(encoded: bytes) -> Callable[[bytes], bytes]:
    """Return what answers a grammar in llguidance's notation with a `GrammarVerdict`."""
    setup = msgspec.msgpack.decode(encoded, type=TrialSetup)
    tokens = GrammarTokens(Path(setup.path), setup.vocabulary, setup.eos_token_ids)

    def judge(source: bytes) -> bytes:
        matcher = tokens.compile(source.decode())
        verdict = GrammarVerdict(matcher.get_error() or None, tuple(matcher.get_grammar_warnings()))
        return msgspec.msgpack.encode(verdict)

    return judge


if __name__ == "__main__":
    serve(prepare, niceness=10)
