"""A part of the recorded trace through a real gateway with real engines: `python -m bench.replicas --gateway 3`.

Some conversations of the trace, whole and in their order, in less time; a block of 512 recorded tokens is one of 16
here, and answers are shorter by the same. The gateway's rule is measured with its defaults, by load alone and by prefix
alone, as its settings allow. Every run has words of its own, so that none profits from what another one has computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

import httpx2
import msgspec

from bench.measure import quantile
from bench.replica_engines import KV_TOKENS, MODEL, RuleLine, median, rule_table
from bench.replica_simulation import ReplicaArrival, ceiling
from bench.replica_workload import TRACE_BLOCK
from bench.servers import engine_process, gateway, redis_server, shared_settings
from engine.cache.prefix_keys import BLOCK_SIZE
from engine.text.processor import TextProcessor

RULES: dict[str, dict[str, float]] = {
    "ours": {},
    "by load alone": {"replica_beta": 100, "replica_window": 100},
    "by prefix alone": {"replica_beta": 0, "replica_window": 100},
}
"""Settings of `[router]` by rule."""
PARTS = 25
"""One in this many conversations is taken."""
SECONDS = 70.0
"""Seconds into which the trace's hour is compressed."""
MOST_BLOCKS = 100
"""Most blocks of a prompt: longer ones do not fit the model's context."""
SCALE = TRACE_BLOCK // BLOCK_SIZE
_KEY = "bench"


class ServedReplicas(msgspec.Struct):
    engines: int
    requests: int
    ceiling: float
    runs: int
    lines: list[RuleLine]

    def markdown(self) -> list[str]:
        return [
            f"## Through a gateway, {self.engines} real engines",
            "",
            f"{self.requests} requests of the trace (one of {PARTS} conversations, the hour in {SECONDS:g} s, a block "
            f"of {TRACE_BLOCK} tokens as one of {BLOCK_SIZE}) through a gateway to {self.engines} processes that serve "
            f"a model of 2 million parameters with {KV_TOKENS:,} KV tokens each. One cache that all share would hold "
            f"{self.ceiling:.1%} of the blocks. Medians of {self.runs} runs, another rule first in each. *By load "
            "alone* and *by prefix alone* are the gateway's rule with other settings. Two busy cores for all engines: "
            "times differ from run to run, and what load alone finds differs with them.",
            "",
            *rule_table(self.lines),
        ]


def scaled(arrivals: Sequence[ReplicaArrival], parts: int = PARTS, seconds: float = SECONDS) -> list[ReplicaArrival]:
    """Return some conversations of the trace; requests that begin alike are one conversation."""
    taken = [each for each in arrivals if len(each.blocks) <= MOST_BLOCKS and _part(each, parts) == 0]
    span = max(each.at for each in taken) or 1.0
    return [
        ReplicaArrival(
            each.at * seconds / span, each.blocks, max(1, each.prompt // SCALE), max(1, each.answer // SCALE)
        )
        for each in taken
    ]


def _part(arrival: ReplicaArrival, parts: int) -> int:
    start = arrival.blocks[:2][-1]  # the first block is the same in most of them
    return int.from_bytes(hashlib.blake2b(b"%d" % start, digest_size=4).digest(), "little") % parts


async def measure(
    count: int, arrivals: Sequence[ReplicaArrival], repeats: int = 3, rules: Mapping[str, Mapping[str, float]] = RULES
) -> ServedReplicas:
    """Serve the arrivals with each rule in turn, so many times; returns the medians."""
    text = TextProcessor.from_path(MODEL)
    size = json.loads((MODEL / "config.json").read_text("utf-8"))["vocab_size"]
    words = [word for token in range(size) if (word := _word(text, token)) is not None]
    runs: dict[str, list[RuleLine]] = {name: [] for name in rules}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench-")))
        stack.enter_context(redis_server(folder))
        addresses = [f"unix://{folder}/engine-{number}" for number in range(count)]
        for address in addresses:
            await stack.enter_async_context(engine_process(address, MODEL, kv_tokens=KV_TOKENS))
        for turn in range(repeats):
            names = list(rules)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                with gateway(folder, _settings(folder, addresses, rules[name])) as (port, _):
                    runs[name].append(await _run(name, f"{name} {turn}", port, count, arrivals, words))
    lines = [median(each) for each in runs.values()]
    return ServedReplicas(count, len(arrivals), ceiling(arrivals), repeats, lines)


def _word(text: TextProcessor, token: int) -> str | None:
    """Return a token's text, if that is a word which always becomes that token."""
    try:
        word = text.token_bytes(token).decode()
    except (UnicodeDecodeError, ValueError):
        return None
    return word if word[:1] == " " and word[1:].isalpha() and text.encode(word) == [token] else None


def _settings(folder: Path, addresses: Sequence[str], router: Mapping[str, float]) -> str:
    lines = [
        "[cache]\nenabled = false\n[router]",
        *(f"{name} = {value}" for name, value in router.items()),
        f'[[pools]]\ntier = "small"\nname = "demo"\nmodel = "{MODEL}"\nengines = {json.dumps(list(addresses))}',
    ]
    return shared_settings(folder, _KEY) + "\n".join(lines)


async def _run(
    name: str, run: str, port: int, engines: int, arrivals: Sequence[ReplicaArrival], words: Sequence[str]
) -> RuleLine:
    sent: Counter[str] = Counter()
    ttfts: list[float] = []
    prompt_tokens = cached_tokens = 0

    async def send(client: httpx2.AsyncClient, arrival: ReplicaArrival) -> None:
        nonlocal prompt_tokens, cached_tokens
        await asyncio.sleep(began + arrival.at - monotonic())
        body = {
            "model": "small",
            "input": _prompt(run, arrival, words),
            "max_output_tokens": arrival.answer,
            "ignore_eos": True,
            "store": False,
            "stream": True,
        }
        asked, first = monotonic(), True
        headers = {"x-roundhouse-events": "true"}
        async with client.stream("POST", "/v1/responses", json=body, headers=headers) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = msgspec.json.decode(line.removeprefix("data: "))
                if event["type"] == "roundhouse.route":
                    sent[event["replica"]] += 1
                elif event["type"] == "response.output_text.delta" and first:
                    ttfts.append(monotonic() - asked)
                    first = False
                elif event["type"] in ("response.completed", "response.incomplete"):
                    usage = event["response"]["usage"]
                    prompt_tokens += usage["input_tokens"]
                    cached_tokens += usage["input_tokens_details"]["cached_tokens"]
                elif event["type"] in ("response.failed", "error"):
                    raise RuntimeError(f"a request failed: {line}")

    # A connection of its own each: one that is reused may be closed by the server just then.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    headers = {"authorization": f"Bearer {_KEY}"}
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=300, limits=limits
    ) as client:
        began = monotonic()
        async with asyncio.TaskGroup() as tasks:
            for arrival in arrivals:
                tasks.create_task(send(client, arrival))
    return RuleLine(
        rule=name,
        cached=cached_tokens / prompt_tokens,
        imbalance=max(sent.values()) * engines / sum(sent.values()),
        ttft_p50=quantile(ttfts, 0.5),
        ttft_p99=quantile(ttfts, 0.99),
    )


def _prompt(run: str, arrival: ReplicaArrival, words: Sequence[str]) -> str:
    """Return a prompt in which equal blocks are equal words, one a token."""
    said: list[str] = []
    for block in arrival.blocks:
        said += random.Random(f"{run} {block}").choices(words, k=BLOCK_SIZE)
    return "".join(said[: arrival.prompt])
