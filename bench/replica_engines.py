"""The rules of `bench.replicas` in front of real engine processes: real prefix caches, real block events, real queues.

A small copy of the made-up service, because it has to run anywhere. The engines keep what they have cached from run to
run; each run has a salt of its own, so that none profits from another one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

import msgspec

from bench.measure import quantile
from bench.replica_simulation import ReplicaArrival, ReplicaPool, Rule, ceiling
from bench.replica_workload import Service, made_up
from bench.report import table
from bench.servers import engine_process
from engine.cache.prefix_keys import BLOCK_SIZE
from engine.client.engine_client import EngineClient
from engine.wire import SamplingParams
from gateway.engines.placement import salt_of
from router.replica import ReplicaPolicy

MODEL = Path(__file__).parent.parent / "deploy" / "demo" / "model"
KV_TOKENS = 8192
MOST_TOKENS = 900
"""Most tokens of a prompt: longer ones are left out, so that a run stays short."""
SERVICE = Service(
    tenants=10,
    prompts=2,
    system_tokens=(100, 500),
    turns=3.0,
    question_tokens=20,
    document_tokens=80,
    answer_tokens=12,
    think=2.0,
    conversations=2.5,
    seconds=40.0,
    block=BLOCK_SIZE,
)


class RuleLine(msgspec.Struct):
    """Results of one rule."""

    rule: str
    cached: float
    """Share of prompt tokens that engines found in their prefix caches."""
    imbalance: float
    ttft_p50: float
    """Median seconds to the first token."""
    ttft_p99: float


class Measured(msgspec.Struct):
    engines: int
    requests: int
    ceiling: float
    lines: list[RuleLine]

    def markdown(self) -> list[str]:
        return [
            f"## {self.engines} real engines",
            "",
            f"{self.requests} requests of a small made-up service, to {self.engines} processes that serve a model "
            f"of 2 million parameters with {KV_TOKENS:,} KV tokens each, and tell of their blocks. One cache that all "
            f"share would hold {self.ceiling:.1%} of the blocks. Medians of three runs, the rules in turn. Times are "
            "those of a small and busy machine: what is found is sure, how long it takes is not.",
            "",
            *rule_table(self.lines),
        ]


def rule_table(lines: Sequence[RuleLine]) -> list[str]:
    """Return the table in Markdown."""
    return table(
        "rule | prompt tokens cached | imbalance | TTFT p50 (ms) | TTFT p99 (ms)",
        (
            f"{line.rule} | {line.cached:.1%} | {line.imbalance:.2f} | {line.ttft_p50 * 1000:,.0f} | "
            f"{line.ttft_p99 * 1000:,.0f}"
            for line in lines
        ),
    )


async def measure(
    count: int, rules: Mapping[str, Callable[[], Rule]], service: Service = SERVICE, repeats: int = 3
) -> Measured:
    """Serve the service with each rule in turn, so many times; returns the medians."""
    arrivals = [arrival for arrival in made_up(service, seed=1) if arrival.prompt <= MOST_TOKENS]
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench-"))
        addresses = [f"unix://{folder}/engine-{number}" for number in range(count)]
        for address in addresses:
            await stack.enter_async_context(engine_process(address, MODEL, kv_tokens=KV_TOKENS))
        clients = [await stack.enter_async_context(EngineClient(address)) for address in addresses]
        for client in clients:
            await client.wait_connected()
        runs: dict[str, list[RuleLine]] = {name: [] for name in rules}
        for turn in range(repeats):
            for name, make in rules.items():
                runs[name].append(await _run(name, f"{name} {turn}", make(), clients, arrivals))
    return Measured(count, len(arrivals), ceiling(arrivals), [median(lines) for lines in runs.values()])


def median(lines: Sequence[RuleLine]) -> RuleLine:
    """Return the median of several runs with one rule, figure by figure."""

    def of(field: str) -> float:
        return float(statistics.median(getattr(line, field) for line in lines))

    return RuleLine(lines[0].rule, of("cached"), of("imbalance"), of("ttft_p50"), of("ttft_p99"))


async def _run(
    name: str, run: str, rule: Rule, clients: Sequence[EngineClient], arrivals: Sequence[ReplicaArrival]
) -> RuleLine:
    pool = ReplicaPool(len(clients), KV_TOKENS, ReplicaPolicy())
    behind = dict(zip(pool.nodes, clients, strict=True))
    for node, client in behind.items():
        client.follow_blocks(partial(pool.placer.told, node))
    chance = random.Random(1)
    prompt_tokens = cached_tokens = 0
    ttfts: list[float] = []
    sent: Counter[str] = Counter()
    began = monotonic()

    async def send(arrival: ReplicaArrival) -> None:
        nonlocal prompt_tokens, cached_tokens
        await asyncio.sleep(began + arrival.at - monotonic())
        info = clients[0].info
        assert info is not None
        prompt = _prompt(arrival)
        placement = pool.place(prompt, chance.getrandbits(64), model=info, tenant=run)
        node = rule(pool, placement, chance)
        sent[node] += 1
        asked = monotonic()
        sampling = SamplingParams(max_tokens=arrival.answer, ignore_eos=True)
        with pool.carrying(node, placement, arrival.answer) as flight:
            async with behind[node].generate(prompt, sampling, salt=salt_of(run), tenant=name) as generation:
                async for _ in generation:
                    if not flight.computed:
                        flight.prefilled()
                        ttfts.append(monotonic() - asked)
        pool.answer.observe(arrival.answer)
        prompt_tokens += generation.usage.prompt_tokens
        cached_tokens += generation.usage.cached_tokens

    async with asyncio.TaskGroup() as tasks:
        for arrival in arrivals:
            tasks.create_task(send(arrival))
    for client in clients:
        client.follow_blocks(None)
    return RuleLine(
        rule=name,
        cached=cached_tokens / prompt_tokens,
        imbalance=max(sent.values()) * len(clients) / sum(sent.values()),
        ttft_p50=quantile(ttfts, 0.5),
        ttft_p99=quantile(ttfts, 0.99),
    )


def _prompt(arrival: ReplicaArrival) -> list[int]:
    """Return a prompt in which equal blocks are equal tokens."""
    tokens: list[int] = []
    for block in arrival.blocks:
        chance = random.Random(block)
        tokens += [chance.randrange(100, 1000) for _ in range(BLOCK_SIZE)]
    return tokens[: arrival.prompt]
