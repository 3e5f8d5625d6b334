"""What a full prefix index takes: memory, time to hear of blocks, and time of a decision by the prompt's length.

    python -m bench.prefix_index

fills the index of a pool of 32 replicas, each with room for two million tokens, with blocks that are all different, in
frames as engines send them; then places prompts of several lengths, all but the last block of which a replica holds, by
the gateway's own code (`gateway/engines/placement.py`). Seconds are those of the thread's CPU.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Sequence

import msgspec

from bench.measure import ResidentMemory, quantile
from bench.replica_simulation import MODEL, ReplicaPool
from bench.report import Environment, options, publish, table
from engine.cache.prefix_keys import BLOCK_SIZE, block_numbers, chain_root
from engine.wire import Blocks
from gateway.engines.placement import salt_of
from router.replica import ReplicaPolicy

REPLICAS = 32
TOKENS = 2_000_000
LENGTHS = (1_000, 8_000, 32_000, 128_000)
PROMPTS = 20
"""Prompts of each length."""
_TOLD = 64
"""Blocks that an engine tells of at a time."""


class PromptCost(msgspec.Struct, frozen=True):
    """CPU seconds that a prompt of one length takes."""

    tokens: int
    placing_p50: float
    """Until its replica is chosen: naming its blocks, finding them, and the choice."""
    placing_p99: float
    counting_p50: float
    """To count its blocks as held until it has ended."""


class FullIndex(msgspec.Struct, frozen=True):
    environment: Environment
    replicas: int
    tokens: int
    """Room of each replica."""
    blocks: int
    bytes: int
    told: float
    """CPU seconds for each block that an engine tells of."""
    cleared: float
    """CPU seconds to forget the blocks of a replica whose connection is lost."""
    prompts: list[PromptCost]


def measure(replicas: int, tokens: int, prompts: int) -> FullIndex:
    """Fill an index; memory that the process has used before and kept counts as none."""
    chance = random.Random(1)
    texts = [chance.choices(range(100_000), k=length) for length in LENGTHS for _ in range(prompts)]
    pool = ReplicaPool(replicas, tokens, ReplicaPolicy())
    index, names = pool.placer.index, list(pool.nodes)
    before, began = ResidentMemory().now(), time.thread_time()
    for number, text in enumerate(texts):
        blocks = block_numbers(chain_root(MODEL, len(text), None, salt_of("")), text)[:-1]
        pool.placer.told(names[number % replicas], Blocks(stored=struct.pack(f"<{len(blocks)}Q", *blocks)))
    for name in names:
        while (room := tokens // BLOCK_SIZE - index.blocks(name)) > 0:
            pool.placer.told(name, Blocks(stored=chance.randbytes(8 * min(room, _TOLD))))
    told, gained, held = time.thread_time() - began, ResidentMemory().now() - before, len(index)
    costs = [_cost(pool, texts[at : at + prompts], chance) for at in range(0, len(texts), prompts)]
    began = time.thread_time()
    pool.placer.told(names[0], Blocks(cleared=True))
    cleared = time.thread_time() - began
    return FullIndex(Environment.here(), replicas, tokens, held, gained, told / held, cleared, costs)


def _cost(pool: ReplicaPool, texts: Sequence[Sequence[int]], chance: random.Random) -> PromptCost:
    placing, counting = [], []
    for text in texts:
        began = time.thread_time()
        placement = pool.place(text, chance.getrandbits(64))
        placing.append(time.thread_time() - began)
        chosen = placement.choice.order[0]
        if placement.matched[chosen] < len(text) - 2 * BLOCK_SIZE:
            raise RuntimeError(f"{chosen} holds no more than {placement.matched[chosen]} of {len(text)} tokens")
        began = time.thread_time()
        with pool.carrying(chosen, placement, most=1000):
            pass
        counting.append(time.thread_time() - began)
    return PromptCost(len(texts[0]), quantile(placing, 0.5), quantile(placing, 0.99), quantile(counting, 0.5))


def markdown(result: FullIndex) -> str:
    lines = [
        "# A full prefix index",
        "",
        f"{result.replicas} replicas with room for {result.tokens:,} tokens each, whose blocks are all different: "
        f"{result.blocks:,} blocks take {result.bytes / 1e6:,.0f} MB, {result.bytes / result.blocks:,.0f} bytes each, "
        f"in each gateway process. To hear of a block takes {result.told * 1e6:.1f} µs, to forget a replica whose "
        f"connection is lost {result.cleared * 1e3:,.0f} ms.",
        "",
        "A decision, by the prompt's length: *placing* names its blocks, finds them in the index and chooses; "
        "*counting* takes its blocks for held from then until it ends. CPU of one thread; all but a prompt's last "
        "block is held by one of the replicas. Made by `python -m bench.prefix_index`.",
        "",
        *table(
            "prompt tokens | placing p50 (ms) | p99 (ms) | counting p50 (ms)",
            (
                f"{each.tokens:,} | {each.placing_p50 * 1e3:.2f} | {each.placing_p99 * 1e3:.2f} | "
                f"{each.counting_p50 * 1e3:.2f}"
                for each in result.prompts
            ),
            words=0,
        ),
        "",
        f"- {result.environment}",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--replicas", type=int, default=REPLICAS, help="number of replicas")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens that each has room for")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts of each length")
    chosen = parser.parse_args(arguments)
    result = measure(chosen.replicas, chosen.tokens, chosen.prompts)
    publish(chosen.output / "prefix-index", markdown(result), result)


if __name__ == "__main__":
    main()
