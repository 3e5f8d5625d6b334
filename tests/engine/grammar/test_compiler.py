"""Compiling grammars: once each, beside everything else, and never at the engine's expense."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.grammar.source import GrammarLimits
from engine.grammar.tokens import GrammarTokens
from engine.request import RequestError
from engine.wire import Grammar
from tests.engine.grammar.engines import TIMEOUT, VOCABULARY
from tests.engine.ledger_runner import model_info
from tests.engine.tokenizer_zoo import FAMILIES, write_tokenizer

# What takes llguidance minutes, within all of its own limits.
ENDLESS = Grammar(
    "json_schema", json.dumps({"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}c"} for i in range(20)]})
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), FAMILIES["byte-level"]())


def make(directory: Path, **options: Any) -> GrammarCompiler:
    return GrammarCompiler(directory, model_info(vocabulary=VOCABULARY, eos=(2,)), **options)


@pytest.fixture
def compiler(directory: Path) -> Iterator[GrammarCompiler]:
    made = make(directory)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(directory: Path) -> Iterator[GrammarCompiler]:
    """For tests that leave nothing in it that others would meet: its process takes half a second to start."""
    made = make(directory)
    yield made
    made.close()


SOON = GrammarLimits(cpu_seconds=0.5)
"""For tests that wait until `ENDLESS` is given up."""


def compile_now(compiler: GrammarCompiler, grammar: Grammar) -> CompiledGrammar:
    """Raises what is wrong with it."""
    future = compiler.compile(grammar, lambda: None)
    try:
        return future.result(TIMEOUT)
    finally:
        compiler.release(grammar)


def number(index: int) -> Grammar:
    return Grammar("regex", f"number {index}")


def test_equal_grammars_are_compiled_once_even_at_the_same_time(compiler: GrammarCompiler) -> None:
    futures = [compiler.compile(number(1), lambda: None) for _ in range(3)]
    assert len({id(future.result(TIMEOUT)) for future in futures}) == 1
    compile_now(compiler, number(1))
    assert compiler.compilations == 1


@pytest.mark.parametrize(
    "other", [Grammar("choice", '["a"]'), Grammar("regex", '["b"]'), Grammar("regex", '["a"]', lenient=True)]
)
def test_different_grammars_are_not_confused(shared: GrammarCompiler, other: Grammar) -> None:
    compile_now(shared, Grammar("regex", '["a"]'))
    before = shared.compilations
    compile_now(shared, other)
    assert shared.compilations == before + 1


def test_whoever_waits_is_told(shared: GrammarCompiler) -> None:
    told = threading.Event()
    shared.compile(number(1), told.set)
    assert told.wait(TIMEOUT)
    told.clear()
    shared.compile(number(1), told.set)
    assert told.is_set()


def test_the_least_recently_used_are_forgotten_first(directory: Path) -> None:
    compiler = make(directory, cache_entries=2)
    for index in (1, 2, 1, 3, 1, 2):
        compile_now(compiler, number(index))
    assert compiler.compilations == 4
    compiler.close()


def test_large_grammars_leave_room_for_fewer(directory: Path) -> None:
    compiler = make(directory, cache_bytes=500_000)
    for _ in range(2):
        for index in range(3):
            compile_now(compiler, Grammar("choice", json.dumps([f"{index} {'x' * 600}"])))
    assert compiler.compilations == 6
    compiler.close()


def test_what_is_waited_for_is_never_forgotten(directory: Path) -> None:
    compiler = make(directory, cache_entries=1, cache_bytes=0)
    futures: list[Future[CompiledGrammar]] = [compiler.compile(number(index), lambda: None) for index in range(4)]
    assert [future.result(TIMEOUT).start.is_error() for future in futures] == [False] * 4
    for index in range(4):
        compiler.release(number(index))
    compiler.close()


def test_what_nobody_waits_for_any_more_is_not_compiled(directory: Path) -> None:
    compiler = make(directory, limits=SOON, threads=1)
    busy = compiler.compile(ENDLESS, lambda: None)
    waiting = compiler.compile(number(1), lambda: None)
    compiler.release(number(1))
    with pytest.raises(CancelledError):
        waiting.result(TIMEOUT)
    with pytest.raises(RequestError):
        busy.result(TIMEOUT)
    compile_now(compiler, number(1))
    compiler.close()


def test_a_tenant_s_heavy_grammars_hold_up_nobody_else_s(directory: Path) -> None:
    """However many there are: none of them has the last thread."""
    compiler = make(directory, limits=GrammarLimits(cpu_seconds=600))
    heavy = [Grammar("json_schema", ENDLESS.source + " " * index) for index in range(20)]
    futures = [compiler.compile(each, lambda: None, "greedy") for each in heavy]
    for index in range(5):
        compile_now(compiler, number(index))
    assert not any(future.done() for future in futures)
    compiler.close()


def test_a_grammar_that_another_tenant_wants_too_is_compiled_when_either_s_turn_comes(directory: Path) -> None:
    compiler = make(directory, limits=SOON, threads=1)
    busy = compiler.compile(ENDLESS, lambda: None, "a")
    for index in range(3):
        compiler.compile(number(index), lambda: None, "a")
    shared = compiler.compile(number(2), lambda: None, "b")
    compiler.release(number(2), "b")  # it is still waited for
    assert compiler.compile(number(2), lambda: None, "b") is shared
    with pytest.raises(RequestError):
        busy.result(TIMEOUT)
    assert not shared.result(TIMEOUT).start.is_error()
    for index in range(3):
        compiler.compile(number(index), lambda: None, "c").result(TIMEOUT)
    assert compiler.compilations == 3
    compiler.close()


def test_a_tenant_has_only_so_many_grammars_waiting(directory: Path) -> None:
    compiler = make(directory, threads=1, waiting=2)
    compiler.compile(ENDLESS, lambda: None, "a")
    waiting = [number(index) for index in range(9)]
    with pytest.raises(RequestError, match=r"grammar: too many grammars of this tenant wait .*; try again") as caught:
        for each in waiting:
            compiler.compile(each, lambda: None, "a")
    assert caught.value.kind == "overloaded"
    compiler.compile(waiting[0], lambda: None, "a")  # it waits already
    compiler.compile(number(10), lambda: None, "b")
    compiler.release(waiting[0], "a")
    compiler.release(waiting[0], "a")
    compiler.compile(number(11), lambda: None, "a")
    compiler.close()


def test_a_grammar_that_takes_too_long_is_refused_and_the_next_one_is_not(directory: Path) -> None:
    compiler = make(directory, limits=GrammarLimits(cpu_seconds=0.3), threads=1)
    with pytest.raises(RequestError, match=r"grammar: takes more than 0\.3 s to compile; simplify it") as caught:
        compile_now(compiler, ENDLESS)
    assert caught.value.kind == "invalid"
    compile_now(compiler, number(1))
    compiler.close()


def test_a_grammar_that_takes_too_much_memory_is_refused_and_the_next_one_is_not(directory: Path) -> None:
    compiler = make(directory, limits=GrammarLimits(memory_bytes=4 << 20, cpu_seconds=30), threads=1)
    large = {"type": "object", "properties": {f"property {index}": {"type": "string"} for index in range(2000)}}
    with pytest.raises(RequestError, match="grammar: takes too much memory") as caught:
        compile_now(compiler, Grammar("json_schema", json.dumps(large)))
    assert caught.value.kind == "invalid"
    compile_now(compiler, number(1))
    compiler.close()


def test_a_worker_that_was_killed_is_replaced(compiler: GrammarCompiler) -> None:
    compile_now(compiler, number(1))
    for worker in compiler._workers:
        worker.kill()
        assert worker._process is not None
        os.waitid(os.P_PID, worker._process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(RequestError, match="try again") as caught:
        compile_now(compiler, number(2))
    assert caught.value.kind == "internal"
    compile_now(compiler, number(2))


def test_a_worker_that_does_not_start_is_the_engine_s_fault(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = make(directory, threads=1)
    with monkeypatch.context() as patch:
        patch.setattr("engine.limited_process.sys.executable", "/bin/false")
        with pytest.raises(RequestError, match="does not start") as caught:
            compile_now(compiler, number(1))
    assert caught.value.kind == "internal"
    compile_now(compiler, number(1))
    compiler.close()


def test_it_closes_in_the_middle_of_a_compilation(directory: Path) -> None:
    compiler = make(directory, limits=GrammarLimits(cpu_seconds=600))
    future = compiler.compile(ENDLESS, lambda: None)
    compile_now(compiler, number(1))
    compiler.close()
    with pytest.raises(RequestError):
        future.result(TIMEOUT)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("regex", "a("), 'grammar: invalid regex "a(": unclosed group'),
        (Grammar("regex", "(?=a)"), "look-around, including look-ahead and look-behind, is not supported"),
        (Grammar("lark", "start: b\nb: c"), 'grammar: at 2(4): unknown name: "c"'),
        (Grammar("lark", "x"), "grammar: "),
        (Grammar("lark", ""), "grammar: no start rule found"),
        (Grammar("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000), "too deeply nested"),
        (
            Grammar("json_schema", '{"not": {}, "if": {}}'),
            'JSON Schema\'s "if", "not" cannot be enforced; leave it out',
        ),
        (Grammar("json_schema", '{"type": "string", "format": "iri"}'), 'the format "iri" cannot be enforced'),
        (Grammar("json_schema", '{"oneOf": [{"minimum": 1}, {"maximum": 2}]}'), "grammar: oneOf: its schemas may hold"),
        (Grammar("json_schema", '{"$ref": "https://example.com/schema"}'), "https://example.com/schema"),
        (Grammar("json_schema", '{"$ref": "#/$defs/none"}'), "/$defs/none"),
        (Grammar("json_schema", '{"type": "zork"}'), "grammar: Invalid type: zork"),
        (Grammar("json_schema", "false"), "grammar: Unsatisfiable schema"),
        (Grammar("lark", 'start: %json {"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (Grammar("regex", r"[^\s\S]"), "grammar: "),
        (Grammar("lark", "start: start"), "grammar: "),
    ],
    ids=repr,
)
def test_a_bad_grammar_is_refused_with_what_is_wrong(shared: GrammarCompiler, grammar: Grammar, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        compile_now(shared, grammar)
    assert message in str(caught.value)
    assert str(caught.value).startswith("grammar: ")
    assert len(str(caught.value)) < 500
    assert caught.value.kind == "invalid"


def test_a_lenient_schema_is_compiled_in_spite_of_what_it_ignores(shared: GrammarCompiler) -> None:
    source = '{"type": "array", "uniqueItems": true, "items": {"oneOf": [{"minimum": 1}, {"maximum": 2}]}}'
    with pytest.raises(RequestError):
        compile_now(shared, Grammar("json_schema", source))
    start = compile_now(shared, Grammar("json_schema", source, lenient=True)).start
    assert start.get_grammar_warnings()


def test_a_refusal_is_remembered(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Grammar] = []
    original = GrammarCompiler._compile
    monkeypatch.setattr(GrammarCompiler, "_compile", lambda self, g: (calls.append(g), original(self, g))[1])
    other = make(directory)
    for _ in range(3):
        with pytest.raises(RequestError):
            compile_now(other, Grammar("regex", "("))
    other.close()
    assert len(calls) == 1


def test_a_failure_of_the_engine_s_own_is_tried_again(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    with monkeypatch.context() as patch:
        patch.setattr("engine.limited_process.subprocess.Popen", fail)
        with pytest.raises(RequestError, match="try again") as caught:
            compile_now(compiler, number(1))
    assert caught.value.kind == "internal"
    compile_now(compiler, number(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tokenizer_is_used_or_refused(family: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, FAMILIES[family]())
    compiler = make(tmp_path)
    if family == "words":
        with pytest.raises(RequestError, match="which joins words with spaces"):
            compiler.prepare()
    else:
        tokens = compiler.prepare()
        assert compiler.prepare() is tokens
        assert tokens.llguidance.vocab_size == VOCABULARY
    compiler.close()


def test_a_tokenizer_without_end_of_sequence_token_is_refused(directory: Path) -> None:
    with pytest.raises(RequestError, match="names no end-of-sequence token"):
        GrammarTokens(directory, VOCABULARY, ())


def test_a_grammar_that_can_only_begin_with_a_space_is_refused_where_answers_cannot(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, FAMILIES["llama2"]())
    compiler = make(tmp_path)
    with pytest.raises(RequestError, match="starts with a space"):
        compile_now(compiler, Grammar("regex", " a"))
    compile_now(compiler, Grammar("regex", " ?a"))
    compiler.close()


def test_the_step_loop_runs_while_a_grammar_is_compiled(directory: Path) -> None:
    """llguidance lets other threads run in the meantime; were it not so, this thread would not get here."""
    tokens = GrammarTokens(directory, VOCABULARY, (2,))
    source = json.dumps(
        {"grammars": [{"lark_grammar": "start: a\na: " + " | ".join(f'"x{i}"' for i in range(15_000))}]}
    )
    done: list[LLMatcher] = []
    thread = threading.Thread(target=lambda: done.append(tokens.compile(source)))
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        thread.join(0.001)
    assert done
    assert turns > 10
