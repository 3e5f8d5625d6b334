"""What the semantic cache costs a turn that it cannot answer, and saves one that it can.

    ROUNDHOUSE_BENCH_DATA=/path/to/data python -m bench.semantic_latency

runs the embedded default (gateway, Redis, an engine with this repository's model, embedder), once with the cache and
once without, and asks labelled questions one after the other, with a pause in between: what a turn teaches is embedded
after it, and would make the next question wait. Comparisons are written as if many had been right, so that answers are
given at once. Look-ups (embedding, hints, entry read again, decision) are read from the gateway's own histogram; the
time to the first token is a client's. Results in `bench/results/semantic-latency.*`; they need a quiet machine.
"""

from __future__ import annotations

import http.client
import json
import re
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from redis import Redis

from bench import question_pairs
from bench.data import data_file
from bench.gateway import conditions
from bench.measure import quantile
from bench.report import options, publish, table
from bench.servers import gateway
from cache.semantic.evidence import Comparisons, Evidence
from cache.semantic.keys import evidence_key
from cache.semantic.model import shipped

METRIC = "roundhouse_semantic_cache_seconds"
KEY = "roundhouse-demo"
_EMBEDDER_SECONDS = 120.0
_BUCKET = re.compile(METRIC + r'_bucket\{le="([^"]+)"\} (\S+)')


class TimedTurn(msgspec.Struct):
    """One turn as its client saw it."""

    seconds: float
    """Seconds to the first text."""
    reason: str
    """Value of the header `x-roundhouse-cache-reason`."""


class LatencyResult(msgspec.Struct):
    """Results, all in milliseconds."""

    look_ups: int
    look_up_p50: float
    look_up_p99: float
    misses: int
    miss_p50: float
    """Time to the first text, with the cache, of turns that it did not answer."""
    miss_p99: float
    hits: int
    hit_p50: float
    hit_p99: float
    without_p50: float
    without_p99: float
    late: int
    """Turns without a look-up: not eligible, or the embedding came too late."""


def ask(port: int, question: str) -> TimedTurn:
    """Ask the model.

    Raises:
        RuntimeError: it was refused.
    """
    body = {
        "model": "small",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 400,  # an answer that is cut off is not stored
        "stream": True,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"refused: {response.read()!r}")
    seconds = 0.0
    for line in response:
        if line.startswith(b"data: {") and not seconds:
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                seconds = time.perf_counter() - began
    connection.close()
    return TimedTurn(seconds or time.perf_counter() - began, response.headers["x-roundhouse-cache-reason"] or "")


def buckets(port: int) -> dict[float, float]:
    """Return the counts of the gateway's histogram by upper limit, in seconds."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        return {float(limit): float(count) for limit, count in _BUCKET.findall(page.read().decode())}


def within(counts: dict[float, float], share: float) -> float:
    """Return a quantile of a histogram, interpolated as in Prometheus; the last finite limit if it lies above."""
    limits = sorted(limit for limit in counts if limit < float("inf"))
    total = counts[float("inf")]
    place = np.interp(share * total, [0.0, *(counts[limit] for limit in limits)], [0.0, *limits])
    return float(place)


def run(
    folder: Path, first: Sequence[str], then: Sequence[str], *, enabled: bool, pause: float
) -> tuple[list[TimedTurn], dict[float, float]]:
    """Have `first` stored, then ask `then`; returns the turns of `then` and its look-ups."""
    folder.mkdir()
    settings = (
        f'[models]\nserve = []\n[redis]\ndata = "{folder / "data"}"\n[log]\nlevel = "warning"\n'
        "[limits]\ninput_tokens_per_minute = 100000000\noutput_tokens_per_minute = 100000000\n"
        f"[embedder]\nenabled = true\n[semantic_cache]\nenabled = {str(enabled).lower()}\n"
    )
    with gateway(folder, settings) as (port, _):
        _wait_for_embedder(port)
        for question in first:
            ask(port, question)
        if enabled:
            _prove(folder / "data" / "redis.sock", port)
        before = buckets(port)
        asked = []
        for question in then:
            time.sleep(pause)
            asked.append(ask(port, question))
        after = buckets(port)
    return asked, {limit: count - before.get(limit, 0.0) for limit, count in after.items()}


def _prove(socket: Path, port: int) -> None:
    """Have the gateway compare two answers, and make that many right comparisons."""
    for question in ("How do I clean a woollen carpet?", "How can I clean a woollen carpet?"):
        ask(port, question)
    limit = time.monotonic() + _EMBEDDER_SECONDS
    with Redis(unix_socket_path=str(socket)) as redis:
        while (state := redis.hget(evidence_key("demo"), "state")) is None:
            if time.monotonic() > limit:
                raise SystemExit("no comparison is recorded")
            time.sleep(0.1)
        evidence = msgspec.json.decode(state, type=Evidence)
        proven = msgspec.structs.replace(evidence, bands=(Comparisons(1000.0),) * len(shipped().bands))
        redis.hset(evidence_key("demo"), "state", msgspec.json.encode(proven))


def _wait_for_embedder(port: int) -> None:
    limit = time.monotonic() + _EMBEDDER_SECONDS
    while time.monotonic() < limit:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            if re.search(r"^roundhouse_embedder_up\{.*\} 1", page.read().decode(), re.MULTILINE):
                return
        time.sleep(0.2)
    raise SystemExit("the embedder does not start")


def questions(pairs: Sequence[question_pairs.Pair], count: int, seed: int) -> tuple[list[str], list[str]]:
    """Return questions to be stored, and others: half of them paraphrases of those by their label, half unlike all."""
    random = np.random.default_rng(seed)
    same = [pair for pair in pairs if pair.same]
    other = [pair for pair in pairs if not pair.same]
    chosen = [same[place] for place in random.choice(len(same), count // 2, replace=False)]
    unlike = [other[place].b for place in random.choice(len(other), count - count // 2, replace=False)]
    then = [*(pair.b for pair in chosen), *unlike]
    return [pair.a for pair in chosen], [then[place] for place in random.permutation(len(then))]


def summarise(asked: Sequence[TimedTurn], look_ups: dict[float, float], without: Sequence[TimedTurn]) -> LatencyResult:
    reasons = Counter(each.reason for each in asked)
    hits = [1000 * each.seconds for each in asked if each.reason == "similar"] or [float("nan")]
    misses = [1000 * each.seconds for each in asked if each.reason in ("absent", "checked", "different")]
    plain = [1000 * each.seconds for each in without]
    return LatencyResult(
        look_ups=int(look_ups[float("inf")]),
        look_up_p50=1000 * within(look_ups, 0.5),
        look_up_p99=1000 * within(look_ups, 0.99),
        misses=len(misses),
        miss_p50=quantile(misses, 0.5),
        miss_p99=quantile(misses, 0.99),
        hits=reasons["similar"],
        hit_p50=quantile(hits, 0.5),
        hit_p99=quantile(hits, 0.99),
        without_p50=quantile(plain, 0.5),
        without_p99=quantile(plain, 0.99),
        late=sum(reasons.values()) - int(look_ups[float("inf")]),
    )


def markdown(result: LatencyResult, where: str) -> str:
    """Return the table, and the share of the time to the first token."""
    rows = (
        ("look-up: embedding, hints, entry, decision", result.look_ups, result.look_up_p50, result.look_up_p99),
        ("first token, cache off", result.misses + result.hits, result.without_p50, result.without_p99),
        ("first token, looked up and not answered", result.misses, result.miss_p50, result.miss_p99),
        ("first token, answered from a similar question", result.hits, result.hit_p50, result.hit_p99),
    )
    share, slower = result.look_up_p50 / result.miss_p50, result.look_up_p50 / (300 + result.look_up_p50)
    lines = [
        "# Semantic cache: latency",
        "",
        where,
        "- this repository's model (2 million parameters: there is no faster one), one client, questions of "
        "real users; made by `python -m bench.semantic_latency`",
        "",
        *table(
            " | turns | p50, ms | p99, ms",
            (f"{name} | {count} | {p50:.1f} | {p99:.1f}" for name, count, p50, p99 in rows),
        ),
        "",
        f"At the median the look-up is {share:.0%} of the time to the first token of this tiny model; of a model that "
        f"takes 300 ms it would be {slower:.0%}. {result.late} of the turns did not look up: they are not eligible, or "
        "their embedding came too late.",
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--pairs", type=Path, help=f"pairs instead of {question_pairs.FILE} in ROUNDHOUSE_BENCH_DATA")
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between two turns")
    arguments = parser.parse_args(argv)
    pairs = question_pairs.read(data_file(question_pairs.FILE, arguments.pairs))
    first, then = questions(pairs, arguments.turns, 0)
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:
        asked, look_ups = run(Path(folder) / "on", first, then, enabled=True, pause=arguments.pause)
        without, _ = run(Path(folder) / "off", [], then, enabled=False, pause=arguments.pause)
    result = summarise(asked, look_ups, without)
    publish(arguments.output / "semantic-latency", markdown(result, conditions()), result)


if __name__ == "__main__":
    main()
