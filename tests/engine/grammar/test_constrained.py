"""Grammars in the engine: what comes out, what it costs others, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.core import EngineCore, SchedulerConfig
from engine.execution.readout import LaunchedStep
from engine.execution.runner import ModelRunner
from engine.plan import StepPlan, TokenMasks
from engine.request import RequestError
from engine.speculation.speculator import Speculator
from engine.wire import Grammar
from tests.amounts import examples
from tests.engine.checkpoints import random_prompt
from tests.engine.grammar import engines
from tests.engine.grammar.conftest import Model
from tests.engine.grammar.engines import Engine, ask
from tests.engine.grammar.schemas import SCHEMAS

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "done": {"type": "boolean"},
    },
    "required": ["name", "sizes", "done"],
    "additionalProperties": False,
}
JSON_SCHEMA = Grammar("json_schema", json.dumps(SCHEMA))
DATE = Grammar("regex", "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]")
COLOURS = ["red", "green", "blue", "light blue", "über-grün"]
CHOICE = Grammar("choice", json.dumps(COLOURS))
ARITHMETIC = Grammar(
    "lark",
    """
    start: sum
    sum: product (("+" | "-") product)~0..3
    product: atom (("*" | "/") atom)~0..2
    atom: /[0-9]{1,4}/ | "(" /[0-9]{1,4}/ "+" /[0-9]{1,4}/ ")"
    """,
)
PROMPT = random_prompt(9)


def is_date(text: str) -> bool:
    return re.fullmatch(DATE.source, text) is not None


def test_an_answer_to_a_schema_is_valid_json_of_it(engine: Engine) -> None:
    requests = [ask(str(seed), PROMPT, JSON_SCHEMA, seed=seed, max_tokens=400) for seed in range(16)]
    complete = 0
    for transcript in engine.serve(*requests).values():
        if transcript.finish == "stop":
            complete += 1
            jsonschema.validate(json.loads(engine.answer(transcript)), SCHEMA)
    assert complete >= 8


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schemas=st.lists(SCHEMAS, min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_whatever_a_model_says_under_a_random_schema_is_valid(
    engine: Engine, schemas: list[dict[str, Any]], seed: int
) -> None:
    requests = [
        ask(str(index), PROMPT, Grammar("json_schema", json.dumps(schema)), seed=seed, max_tokens=60)
        for index, schema in enumerate(schemas)
    ]
    for id, transcript in engine.serve(*requests).items():
        assert transcript.error_kind in (None, "invalid")
        if transcript.finish == "stop":
            document = json.loads(engine.answer(transcript))
            if "Infinity" not in json.dumps(document):
                jsonschema.Draft202012Validator(schemas[int(id)]).validate(document)


def test_an_answer_to_json_object_is_an_object(engine: Engine) -> None:
    requests = [ask(str(seed), PROMPT, Grammar("json_object", ""), seed=seed) for seed in range(24)]
    answers = [engine.answer(one) for one in engine.serve(*requests).values() if one.finish == "stop"]
    assert answers
    assert all(isinstance(json.loads(answer), dict) for answer in answers)


def test_an_answer_to_a_regex_matches_it_from_end_to_end(engine: Engine) -> None:
    for transcript in engine.serve(*(ask(str(seed), PROMPT, DATE, seed=seed) for seed in range(8))).values():
        assert transcript.finish == "stop"
        assert is_date(engine.answer(transcript))


@pytest.mark.parametrize("family", ["byte-level", "llama2", "unigram", "metaspace-never"])
def test_an_answer_to_a_choice_is_one_of_them_with_any_tokenizer(family: str, model: Model) -> None:
    with engines.engine(model(family)) as engine:
        colours = [colour for colour in COLOURS if engine.text.decode(engine.text.encode(colour)).strip() == colour]
        grammar = Grammar("choice", json.dumps(colours))
        answers = [
            engine.answer(transcript)
            for transcript in engine.serve(*(ask(str(seed), PROMPT, grammar, seed=seed) for seed in range(24))).values()
        ]
    assert set(answers) <= set(colours)
    assert len(set(answers)) > 1


def test_an_answer_to_a_grammar_can_be_computed(engine: Engine) -> None:
    for transcript in engine.serve(*(ask(str(seed), PROMPT, ARITHMETIC, seed=seed) for seed in range(16))).values():
        answer = engine.answer(transcript)
        if transcript.finish == "stop":
            assert re.fullmatch(r"[0-9+*/()-]+", answer)
            compile(re.sub(r"\b0+(?=\d)", "", answer), "answer", "eval")


def test_a_request_without_grammar_gets_the_same_tokens_beside_others_with_one(engine: Engine, model: Model) -> None:
    free = [
        ask("greedy", random_prompt(20), temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=2),
        ask("sampled", random_prompt(7), seed=5, max_tokens=30, ignore_eos=True, top_k=40, repetition_penalty=1.2),
    ]
    runner = engines.runner_for(model())
    alone = EngineCore(runner, runner.info, SchedulerConfig(64))
    for request in free:
        alone.add(request)
    expected: dict[str, list[int]] = {request.id: [] for request in free}
    while not alone.idle:
        for output in alone.step():
            expected[output.id] += output.tokens
    bound = [ask(str(seed), PROMPT, JSON_SCHEMA, seed=seed) for seed in range(4)]
    engine.compile(JSON_SCHEMA)
    transcripts = engine.serve(*free, *bound)
    assert {id: transcripts[id].tokens for id in expected} == expected


def test_log_probabilities_are_the_model_s_own(engine: Engine) -> None:
    """Those of the chosen tokens given the answer so far, whatever the grammar forbids: as prompt log-probabilities."""
    bound = engine.serve(ask("a", PROMPT, DATE, temperature=0.0, logprobs=0))["a"]
    again = ask("b", PROMPT + bound.tokens, max_tokens=1, prompt_logprobs=0)
    expected = engine.serve(again)["b"].prompt_logprobs[len(PROMPT) :]
    assert [entry.token for entry in bound.logprobs] == bound.tokens
    assert [entry.logprob for entry in bound.logprobs] == pytest.approx(
        [entry.logprob for entry in expected if entry], abs=1e-4
    )


def test_an_answer_that_nothing_can_follow_ends_without_an_end_of_sequence_token(engine: Engine) -> None:
    transcript = engine.serve(ask("a", PROMPT, DATE))["a"]
    assert transcript.grammar_complete
    assert transcript.tokens[-1] not in engine.runner.info.eos_token_ids
    assert is_date(engine.text.decode(transcript.tokens))


def test_an_answer_that_could_go_on_ends_with_an_end_of_sequence_token(engine: Engine) -> None:
    answers = engine.serve(*(ask(str(seed), PROMPT, Grammar("regex", "a+"), seed=seed) for seed in range(8))).values()
    for transcript in answers:
        assert transcript.finish == "stop"
        assert not transcript.grammar_complete
        assert transcript.tokens[-1] in engine.runner.info.eos_token_ids
        assert re.fullmatch("a+", engine.answer(transcript))


def test_an_answer_cut_by_max_tokens_says_so(engine: Engine) -> None:
    transcript = engine.serve(ask("a", PROMPT, JSON_SCHEMA, max_tokens=3))["a"]
    assert (transcript.finish, transcript.grammar_complete, len(transcript.tokens)) == ("length", False, 3)


def test_ignore_eos_goes_on_as_long_as_the_grammar_can(engine: Engine) -> None:
    one = ask("a", PROMPT, Grammar("regex", "a*"), ignore_eos=True, max_tokens=40)
    transcript = engine.serve(one)["a"]
    assert (transcript.finish, len(transcript.tokens)) == ("length", 40)
    transcript = engine.serve(ask("a", PROMPT, Grammar("regex", "a{5}"), ignore_eos=True))["a"]
    assert (transcript.finish, engine.answer(transcript)) == ("stop", "aaaaa")


def test_min_tokens_goes_on_as_long_as_the_grammar_can(engine: Engine) -> None:
    requests = [ask(str(seed), PROMPT, Grammar("regex", "[ab]*"), min_tokens=12, seed=seed) for seed in range(8)]
    for transcript in engine.serve(*requests).values():
        assert len(transcript.tokens) > 12
    transcript = engine.serve(ask("a", PROMPT, Grammar("choice", '["a"]'), min_tokens=12))["a"]
    assert (transcript.finish, engine.answer(transcript)) == ("stop", "a")


def test_a_stop_token_ends_an_answer_only_where_it_is_complete(engine: Engine) -> None:
    (comma,) = engine.text.encode(",", special=False)
    grammar = Grammar("regex", "(a,){3}b*")
    requests = [ask(str(seed), PROMPT, grammar, seed=seed, stop_token_ids=(comma,)) for seed in range(8)]
    answers = engine.serve(*requests).values()
    assert all(re.fullmatch(grammar.source, engine.answer(transcript)) for transcript in answers)
    assert any(transcript.tokens[-1] == comma for transcript in answers)


def test_logit_bias_and_penalties_apply_to_legal_tokens(engine: Engine) -> None:
    (b,) = engine.text.encode("b", special=False)
    one = ask("a", PROMPT, Grammar("regex", "[a-c]{6}"), logit_bias={b: 100.0}, temperature=0.0)
    assert engine.answer(engine.serve(one)["a"]) == "bbbbbb"


def test_a_bad_grammar_costs_its_own_request_only(engine: Engine) -> None:
    transcripts = engine.serve(ask("bad", PROMPT, Grammar("regex", "(")), ask("good", PROMPT, DATE))
    bad = transcripts["bad"]
    assert (bad.finish, bad.error_kind, bad.tokens) == ("error", "invalid", [])
    assert bad.error is not None
    assert bad.error.startswith("grammar: ")
    assert bad.usage is not None
    assert is_date(engine.answer(transcripts["good"]))


def test_requests_whose_grammar_compiles_hold_nobody_up(engine: Engine) -> None:
    # Two multiples whose automaton takes almost as long as it may.
    slow = Grammar("json_schema", '{"type": "integer", "multipleOf": 9973}')
    engine.core.add(ask("slow", PROMPT, slow, max_tokens=4))
    engine.core.add(ask("quick", PROMPT, max_tokens=4, ignore_eos=True))
    assert engine.core.load().waiting == 2
    ended = [output.id for output in engine.outputs() if output.finish is not None]
    assert ended == ["quick", "slow"]


@pytest.mark.parametrize("compiled", [False, True], ids=["while it compiles", "when it is compiled"])
def test_a_request_that_waits_for_its_grammar_can_be_cancelled(engine: Engine, compiled: bool) -> None:
    grammar = Grammar("regex", f"cancelled {compiled}")
    engine.core.add(ask("a", PROMPT, grammar))
    if compiled:
        engine.wait()
    engine.core.cancel("a")
    (output,) = engine.outputs()
    assert (output.finish, output.tokens) == ("cancelled", [])
    # The same id may be used at once, and what was on its way for the old request does not reach the new one.
    assert engine.answer(engine.serve(ask("a", PROMPT, DATE))["a"]) != ""


def test_an_id_is_taken_while_its_grammar_compiles(engine: Engine) -> None:
    engine.core.add(ask("a", PROMPT, DATE))
    for again in (ask("a", PROMPT, DATE), ask("a", PROMPT)):
        with pytest.raises(RequestError, match="live request"):
            engine.core.add(again)
    assert len(list(engine.outputs())) > 0


def test_requests_that_wait_for_their_grammar_count_against_the_engine_s_limit(model: Model) -> None:
    with engines.engine(model(), max_running=1, max_waiting=1) as engine:
        engine.core.add(ask("a", PROMPT, DATE))
        engine.core.add(ask("b", PROMPT, DATE))
        with pytest.raises(RequestError, match="full"):
            engine.core.add(ask("c", PROMPT))
        list(engine.outputs())


def test_an_engine_without_grammars_refuses_them(model: Model) -> None:
    runner = engines.runner_for(model())
    with pytest.raises(RequestError, match="grammar: not supported"):
        EngineCore(runner, runner.info, SchedulerConfig(64)).add(ask("a", PROMPT, DATE))


def test_a_checkpoint_without_tokenizer_refuses_grammars(tmp_path: Path) -> None:
    engines.write_model(tmp_path)
    with engines.engine(tmp_path) as engine:
        (tmp_path / "tokenizer.json").unlink()
        transcript = engine.serve(ask("a", PROMPT, DATE))["a"]
    assert (transcript.finish, transcript.error_kind) == ("error", "invalid")
    assert transcript.error is not None
    assert "tokenizer.json" in transcript.error


def test_a_prompt_in_chunks_is_constrained_from_its_first_token(model: Model) -> None:
    with engines.engine(model(), step_tokens=8, max_running=4) as engine:
        requests = [ask(str(seed), random_prompt(30, seed), DATE, seed=seed) for seed in range(4)]
        assert all(is_date(engine.answer(transcript)) for transcript in engine.serve(*requests).values())


def test_a_preempted_request_goes_on_in_its_grammar(model: Model) -> None:
    with engines.engine(model(), blocks=4, max_running=4) as engine:
        grammar = Grammar("regex", "(ab){20}")
        requests = [ask(str(seed), random_prompt(12, seed), grammar, seed=seed) for seed in range(3)]
        transcripts = engine.serve(*requests)
        assert engine.core.load().preemptions > 0
        assert {engine.answer(transcript) for transcript in transcripts.values()} == {"ab" * 20}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_token(model: Model, temperature: float) -> None:
    """Repetitive answers, so that n-grams are often right."""
    grammars = [Grammar("regex", "((ab|cd)(x|y)){30}"), Grammar("lark", 'start: ("one " | "two ")~20'), JSON_SCHEMA]
    requests = [
        ask(f"{index} {seed}", PROMPT, grammar, seed=seed, temperature=temperature, max_tokens=80)
        for index, grammar in enumerate(grammars)
        for seed in range(2)
    ]
    speculator = Speculator(ngrams=True, tokens=5, adaptive=False)
    with engines.engine(model()) as plain, engines.engine(model(), speculator=speculator) as drafting:
        expected = plain.serve(*requests)
        found = drafting.serve(*requests)
    assert speculator.accepted > 0
    assert {id: one.tokens for id, one in found.items()} == {id: one.tokens for id, one in expected.items()}
    assert {id: one.finish for id, one in found.items()} == {id: one.finish for id, one in expected.items()}


def test_a_grammar_that_costs_too_much_to_follow_ends_its_own_request_only(engine: Engine) -> None:
    """The ways to read the text so far grow with the cube of its length."""
    grammar = Grammar("lark", 'start: s\ns: s s | s s s | "x" | "xx"')
    costly = ask("costly", PROMPT, grammar, max_tokens=400, ignore_eos=True)
    transcripts = engine.serve(costly, ask("beside", PROMPT, DATE))
    assert (transcripts["costly"].finish, transcripts["costly"].error_kind) == ("error", "internal")
    assert is_date(engine.answer(transcripts["beside"]))


def test_a_step_that_fails_while_masks_are_computed_leaves_the_engine_usable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = ModelRunner.launch

    def fail(self: ModelRunner, plan: StepPlan, masks: TokenMasks | None = None) -> LaunchedStep:
        if masks is None:  # the engine's look at its device
            return launch(self, plan)
        raise RuntimeError("device failure")

    monkeypatch.setattr(ModelRunner, "launch", fail)
    assert engine.serve(ask("a", PROMPT, DATE))["a"].error_kind == "internal"
    monkeypatch.setattr(ModelRunner, "launch", launch)
    assert is_date(engine.answer(engine.serve(ask("a", PROMPT, DATE))["a"]))
