"""Tasks for functions and schemas: that each can be solved, and what grades say."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from bench.structured_tasks import Grade, Task, grade_calls, grade_document, keeps_to, read

TASKS = read()
WEATHER = next(task for task in TASKS.tasks if len(task.calls) == 2)


def call(task: Task, number: int = 0, **changes: object) -> tuple[str, str]:
    expected = task.calls[number]
    return expected.name, json.dumps({**expected.arguments, **changes})


def test_there_are_a_hundred_different_tasks() -> None:
    assert len({task.ask for task in TASKS.tasks}) == 100
    assert {task.schema for task in TASKS.tasks if task.schema} == set(TASKS.schemas)
    assert {name for task in TASKS.tasks for name in task.tools} == set(TASKS.tools)


@pytest.mark.parametrize("task", TASKS.tasks, ids=lambda task: task.ask)
def test_the_expected_answer_of_each_task_is_allowed(task: Task) -> None:
    if task.schema is None:
        assert all(expected.name in task.tools for expected in task.calls)
        calls = [call(task, number) for number in range(len(task.calls))]
        assert grade_calls(task, TASKS.tools, calls) == Grade(True, True, True)
        return
    schema = TASKS.schemas[task.schema]
    Draft202012Validator.check_schema(schema)
    assert set(task.expected) <= set(schema["properties"])
    assert keeps_to(task.expected, {**schema, "required": list(task.expected)})


def test_calls_are_right_in_any_order_and_only_without_others() -> None:
    first, second = call(WEATHER), call(WEATHER, 1)
    assert grade_calls(WEATHER, TASKS.tools, [second, first]).right
    assert grade_calls(WEATHER, TASKS.tools, [first]) == Grade(True, True, False)
    assert grade_calls(WEATHER, TASKS.tools, [first, second, second]) == Grade(True, True, False)


@pytest.mark.parametrize(
    ("calls", "grade"),
    [
        ([], Grade(False, False, False)),
        ([("get_weather", '{"city":')], Grade(False, False, False)),
        ([("get_weather", '{"town": "Paris"}')], Grade(True, False, False)),
        ([("get_time", "{}")], Grade(True, False, False)),
        ([("get_weather", '{"city": "Bern"}')], Grade(True, True, False)),
    ],
)
def test_calls_that_lack_something(calls: list[tuple[str, str]], grade: Grade) -> None:
    assert grade_calls(WEATHER, TASKS.tools, calls) == grade


def test_a_call_where_none_is_right_does_not_count() -> None:
    talk = next(task for task in TASKS.tasks if task.tools and not task.calls)
    assert grade_calls(talk, TASKS.tools, []).right
    assert grade_calls(talk, TASKS.tools, [("get_weather", '{"city": "Rome"}')]) == Grade(False, False, False)


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ('{"name": "maria lopez", "age": 34, "email": "maria@example.org"}', Grade(True, True, True)),
        ('```json\n{"name": "Maria Lopez", "age": 34, "email": "maria@example.org"}\n```', Grade(True, True, True)),
        ('{"name": "Maria", "age": 34, "email": "maria@example.org"}', Grade(True, True, False)),
        ('{"name": "Maria Lopez", "age": "34", "email": "maria@example.org"}', Grade(True, False, False)),
        ("Maria Lopez is 34.", Grade(False, False, False)),
    ],
)
def test_documents(text: str, grade: Grade) -> None:
    task = next(task for task in TASKS.tasks if task.expected.get("name") == "Maria Lopez")
    assert grade_document(task, TASKS.schemas["person"], text) == grade
