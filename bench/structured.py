"""How often models call functions and keep to schemas, with and without a grammar, over a hundred tasks.

    roundhouse serve                       # in another terminal: the models to measure
    python -m bench.structured             # all three tiers; results in bench/results/structured.*
    python -m bench.structured --models medium --tasks 10

Functions are offered in three ways: the model writes what it wants (`auto`), its calls are held to their schemas once
it begins one (`strict`), and it must call (`required`, where a call is right). Documents are asked for by a prompt that
shows the schema, without (`prompt`) and with (`schema`) the grammar of that schema. Decoding is greedy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import msgspec
from openai import APIStatusError, AsyncOpenAI
from tqdm import tqdm

from bench.report import Environment, options, publish, table
from bench.structured_tasks import Grade, Task, Tasks, grade_calls, grade_document, read

WAYS = ("auto", "strict", "required", "prompt", "schema")
_TOKENS = 300
"""Most tokens of an answer; right ones have at most half as many."""


class StructuredRow(msgspec.Struct, frozen=True):
    """How many answers of one model were right, when asked in one way."""

    model: str
    way: str
    tasks: int
    parses: int
    valid: int
    right: int


class StructuredRecord(msgspec.Struct, frozen=True):
    """All that was measured."""

    environment: Environment
    models: dict[str, str]
    """Name of the model that answered for each tier that was asked."""
    rows: list[StructuredRow]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of a running Roundhouse")
    parser.add_argument("--key", default="roundhouse-demo", help="API key")
    parser.add_argument("--models", default="small,medium,large", help="models to ask, separated by commas")
    parser.add_argument("--tasks", type=int, help="only every n-th task, so that there are about so many")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at a time")
    arguments = parser.parse_args(argv)
    tasks = read()
    if arguments.tasks:
        few = tasks.tasks[:: max(1, len(tasks.tasks) // arguments.tasks)]
        tasks = msgspec.structs.replace(tasks, tasks=few)
    client = AsyncOpenAI(base_url=f"{arguments.url}/v1", api_key=arguments.key, timeout=600)
    record = asyncio.run(_measure(client, tasks, arguments.models.split(","), arguments.concurrency))
    publish(arguments.output / "structured", _page(record), record)


async def _measure(client: AsyncOpenAI, tasks: Tasks, models: Sequence[str], concurrency: int) -> StructuredRecord:
    turn = asyncio.Semaphore(concurrency)
    rows: list[StructuredRow] = []
    answered: dict[str, str] = {}
    asked = [(model, way, [task for task in tasks.tasks if _fits(way, task)]) for model in models for way in WAYS]
    with tqdm(total=sum(len(some) for _, _, some in asked), unit="answer", dynamic_ncols=True) as progress:

        async def grade(model: str, way: str, task: Task) -> Grade:
            async with turn:
                name, found = await _ask(client, tasks, model, way, task)
            answered[model] = name
            progress.update()
            return found

        for model, way, some in asked:
            grades = await asyncio.gather(*(grade(model, way, task) for task in some))
            sums = [sum(getattr(one, field) for one in grades) for field in ("parses", "valid", "right")]
            rows.append(StructuredRow(model, way, len(some), *sums))
    return StructuredRecord(Environment.here(), answered, rows)


def _fits(way: str, task: Task) -> bool:
    if way in ("prompt", "schema"):
        return task.schema is not None
    return task.schema is None and (way != "required" or bool(task.calls))


async def _ask(client: AsyncOpenAI, tasks: Tasks, model: str, way: str, task: Task) -> tuple[str, Grade]:
    """Return the name of the model that answered, and its grade."""
    body: dict[str, object] = {"temperature": 0, "max_tokens": _TOKENS}
    prompt = task.ask
    if task.schema is None:
        offered = {name: tasks.tools[name] for name in task.tools}
        body["tools"] = [_function(name, offered[name].description, offered[name].parameters, way) for name in offered]
        body["tool_choice"] = "required" if way == "required" else "auto"
    else:
        schema = tasks.schemas[task.schema]
        prompt += f"\n\nAnswer with a JSON document, and nothing else, that keeps to this schema:\n{json.dumps(schema)}"
        if way == "schema":
            form = {"name": task.schema, "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
    try:
        answer = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            extra_headers={"cache-control": "no-store"},
            extra_body=body,
        )
    except APIStatusError as error:
        raise SystemExit(f"{task.ask!r} as {way!r} was refused: {error.message}") from None
    message = answer.choices[0].message
    if task.schema is not None:
        return answer.model, grade_document(task, schema, message.content or "")
    calls = [call.function for call in message.tool_calls or () if call.type == "function"]
    return answer.model, grade_calls(task, offered, [(call.name, call.arguments) for call in calls])


def _function(name: str, description: str, parameters: object, way: str) -> dict[str, object]:
    function = {"name": name, "description": description, "parameters": parameters, "strict": way != "auto"}
    return {"type": "function", "function": function}


def _page(record: StructuredRecord) -> str:
    shown = [
        f"{record.models[row.model]} | {row.way} | {row.tasks} | {_share(row.parses, row)} | {_share(row.valid, row)}"
        f" | {_share(row.right, row)}"
        for row in record.rows
        if row.tasks
    ]
    lines = [
        "### Calls and documents, without and with a grammar",
        "",
        *table("model | way | tasks | parse | keep to the schema | are right", shown, words=2),
        "",
        "- `auto`, `strict`, `required`: functions are offered, their schemas are enforced, a call is required",
        "- `prompt`, `schema`: a document is asked for by a prompt, and held to its schema",
        f"- greedy, at most {_TOKENS} tokens; {record.environment}",
    ]
    return "\n".join(lines) + "\n"


def _share(count: int, row: StructuredRow) -> str:
    return f"{100 * count / row.tasks:.0f} %"


if __name__ == "__main__":
    main()
